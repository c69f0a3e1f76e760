"""What tells a row of a sweep from its neighbours, as columns of a table."""

from enum import Enum
from typing import Any

from omegaconf import OmegaConf

from deepnets.config.identity import is_execution
from deepnets.config.schema import Config

# Where numbers stand that are searched for: what is behind a random search's axis `setting`, and what -m often varies.
SEARCHED = ("optimizer", "schedule", "model.shortcut")
USUAL = ("model.depth", "model.layer", "epochs", "batch_size")


def choices_of(config: Config, origin: dict[str, Any]) -> dict[str, str | float | None]:
    """A run's value for each choice that names it: a group's option or a value of the configuration, and the seed.

    For a row of a table these are its axes, in a random search also what was drawn; other runs have no axes, so there
    it is all that often differs, and what was typed. Keys and types are the same for all rows of a table: numbers are
    floats, None stands for no value, all else is text.
    """
    options, values = origin.get("choices", {}), OmegaConf.structured(config)
    keys = list(config.sweep.axes) if config.sweep else [key for key in options if not key.startswith("hydra/")]
    if config.sweep is None or config.setting is not None:
        numbers = [f"{node}.{name}" for node in SEARCHED for name in _numbers(OmegaConf.select(values, node))]
        keys += [*numbers, *USUAL]
    if config.sweep is None:
        keys += [override.partition("=")[0].lstrip("+~") for override in origin.get("overrides", [])]
    keys = [key for key in keys if not is_execution(key) and key != "dataset.root"]
    columns = {key: options[key] if key in options else _plain(OmegaConf.select(values, key)) for key in keys}
    return {**columns, "seed": float(config.seed)}


def _numbers(node: Any) -> list[str]:
    return [name for name, value in (node or {}).items() if isinstance(value, int | float) and name[0] != "_"]


def _plain(value: Any) -> str | float | None:
    if value is None:
        return None
    if isinstance(value, Enum):
        return value.name
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
