"""From YAML and overrides to a configuration."""

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from deepnets.config.composing import WithoutCallbacks, composing
from deepnets.config.frozen import refuse_interpolations
from deepnets.config.places import CONF, home, program
from deepnets.config.resolvers import at_scale, case, choice, log_uniform, uniform
from deepnets.config.schema import Config, Row, Search
from deepnets.errors import UserError

ABSENT = object()  # where there is no such key
CONF_ALONE = Search()


def typed(composed: DictConfig) -> Config:
    """What Hydra composed as a `Config`: every interpolation resolved, every folder absolute.

    Raises:
        OmegaConfBaseException: a value is missing, or an interpolation leads nowhere.
        UserError: a key is none of `Config`'s, one of its keys has no value, or values contradict each other.
    """
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    try:
        refuse_interpolations(OmegaConf.to_container(composed, resolve=True))
    except ValueError as error:
        raise UserError(f"a value is written with a backslash in front of ${{: {error}") from error
    for place, schema in (("", config), ("scale.", config.scale), ("sweep.", config.sweep)):
        if schema is None:
            continue
        # What a + in front has added and a ~ has taken away, where no class checks it.
        known, found = {key.name for key in fields(schema)}, vars(schema)
        unknown, missing = found.keys() - known, {key for key in known if found.get(key) == MISSING}
        if unknown:
            raise UserError(f"unknown key {place + min(unknown)!r}; --cfg job prints those there are")
        if missing:
            raise UserError(f"{place + min(missing)}: needs a value")
    if config.scale.name == "deep" and config.sweep and not config.sweep.deep:
        raise UserError("scale=deep is not supported by this sweep: use scale=mini or scale=full")
    if config.setting is not None and "${setting}" not in OmegaConf.to_yaml(composed):
        raise UserError(
            f"setting={config.setting}: numbers the trials of a random search, but this is no random search"
        )
    for node, key in ((vars(config), "output_root"), (config.dataset, "root")):
        if isinstance(node.get(key), str) and node[key]:  # an empty one is refused, and is not the working directory
            node[key] = os.path.abspath(os.path.expanduser(node[key]))
    return config


def row_of(composed: DictConfig, choices: dict[str, str], overrides: Iterable[str], search: Search) -> Row:
    """The run that Hydra composed, with what named it.

    Raises:
        UserError: as `typed`, or it has the name of another scale, by which values would be chosen.
    """
    config = typed(composed)
    if config.scale.name != choices["scale"]:
        raise UserError(f"scale.name={config.scale.name}: is set by scale={choices['scale']}; take another scale=NAME")
    return Row(config, choices, tuple(overrides), search)


def renamed(word: str) -> str:
    """A word of the command line, whose key is a launcher's argument now where it once stood at the top."""
    return re.sub(r"^(\+\+)?(?=(runs_per_device|stacked|wait|retry)=)", r"\1launcher.", word)


def check_words(words: Iterable[str]) -> None:
    """Refuse what Hydra takes as a group's option without being a name, and a key that was dropped.

    Raises:
        UserError: as for `model=null`, `scale=0.5` or `sync_batchnorm=true`.
        OverrideParseException: a word that cannot be read.
    """
    for word in words:
        group, equals, _ = word.lstrip("+").partition("=")
        if group == "sync_batchnorm":
            raise UserError(
                "sync_batchnorm: batch statistics are over the whole batch on any number of devices; "
                "model.batchnorm_images=N computes them over groups of at most N images"
            )
        if equals and not group:
            raise UserError(f"{word}: needs a key in front of the =")
        if equals and (CONF / group).is_dir():
            (override,) = OverridesParser.create().parse_overrides([word])
            if not override.is_sweep_override() and not isinstance(override.value(), str):
                raise UserError(f"{word}: {group} needs the name of an option; --help lists all")


def register() -> None:
    """Make the schemas and the resolvers known to Hydra, which reads them while it composes."""
    ConfigStore.instance().store(name="config", node=Config)
    ConfigStore.instance().store(group="hydra", name="config", node=WithoutCallbacks, provider="hydra")
    OmegaConf.register_new_resolver("repository", lambda path: str(home() / path), replace=True)
    OmegaConf.register_new_resolver("program", program, replace=True)
    OmegaConf.register_new_resolver("folder_name", lambda path: Path(path).resolve().name, replace=True)
    for resolver in (at_scale, case, log_uniform, uniform, choice):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
    # Where Hydra may write the copy of the configuration that it insists on; every grid overwrites it.
    scratch = Path(tempfile.gettempdir()) / f"deepnets-{os.getuid()}"
    OmegaConf.register_new_resolver("scratch", lambda: str(scratch), replace=True)


def compose(overrides: Sequence[str], search: Search = CONF_ALONE) -> Row:
    """The run that conf/train.yaml is with these overrides of `train`.

    Raises:
        HydraException: an unknown option or key. UserError: as `typed`.
    """
    cached, choices = composed(tuple(overrides), search)
    config = deepcopy(cached)
    with open_dict(config):
        del config["hydra"]
    return row_of(config, choices, cached.hydra.overrides.task, search_of(cached.hydra, search.defaults))


@cache
def composed(overrides: tuple[str, ...], search: Search = CONF_ALONE) -> tuple[DictConfig, dict[str, str]]:
    """The configuration and Hydra's own node as they are composed, and the option chosen in every group."""
    register()
    check_words(overrides)
    # Hydra's compose finds the file that is one run in the first place only.
    places = [f"file://{CONF}", *search.places]
    first = next((place for place in places if _holds(place, search.defaults)), places[0])
    others = [place for place in places if place != first]
    words = [*overrides, *([f"hydra.searchpath=[{','.join(map(_quoted, others))}]"] if search.places else [])]
    with initialize_config_dir(first.removeprefix("file://"), version_base="1.3"), composing(overrides):
        config = hydra.compose(search.defaults, words, return_hydra_config=True)
    return config, dict(config.hydra.runtime.choices)


def search_of(composed: Any, defaults: str) -> Search:
    """Where the options were searched for that Hydra's own node says it was composed of."""
    sources = [(each.provider, each.schema, each.path) for each in composed.runtime.config_sources]
    places = (f"{schema}://{path}" for provider, schema, path in sources if provider not in ("hydra", "schema"))
    return Search(tuple(place for place in places if place != f"file://{CONF}"), defaults)


def _holds(place: str, name: str) -> bool:
    return place.startswith("file://") and (Path(place.removeprefix("file://")) / f"{name}.yaml").is_file()


def _quoted(word: str) -> str:
    """As Hydra's grammar reads any text."""
    escaped = word.replace("'", "\\'")
    return f"'{escaped}'"


def selected(config: DictConfig, key: str, otherwise: Any = None, resolve: bool = True) -> Any:
    """The plain value under a dotted key, `otherwise` where there is no such key or it depends on one without value."""
    value = OmegaConf.select(config, key, default=otherwise, throw_on_resolution_failure=False)
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=resolve)
    return value.name if isinstance(value, Enum) else value
