"""What distinguishes the runs of a sweep, as columns of TensorBoard's HParams."""

from enum import Enum
from typing import Any

from omegaconf import OmegaConf

from deepnets.config.identity import is_execution
from deepnets.config.schema import Config

# Nodes whose numbers a random search draws or -m often varies, and further keys that often differ.
SEARCHED = ("optimizer", "schedule", "model.shortcut")
USUAL = ("model.depth", "model.layer", "epochs", "batch_size")


def choices_of(config: Config, origin: dict[str, Any]) -> dict[str, str | float | None]:
    """A run's value for each choice that names it: a group's option or a value of the configuration, and the seed.

    In a sweep of conf/sweep/ these are its axes and, in a random search, what was drawn. Other runs have no axes: all
    that often differs, and what was typed. Keys and types are the same for all runs of a sweep: numbers are floats,
    None stands for no value, all else is text.
    """
    options, values = origin.get("choices", {}), OmegaConf.structured(config)
    keys = list(config.sweep.axes) if config.sweep else [key for key in options if not key.startswith("hydra/")]
    if config.sweep is None or config.setting is not None:
        numbers = [f"{node}.{name}" for node in SEARCHED for name in _numbers(OmegaConf.select(values, node))]
        keys += [*numbers, *USUAL]
    if config.sweep is None:
        keys += [override.partition("=")[0].lstrip("+~") for override in origin.get("overrides", [])]
    keys = [key for key in keys if not is_execution(key)]
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
