"""Reads YAML that a stranger may have written: only plain values of bounded size; nothing is resolved or called.

It also writes the configuration of a run.
"""

from typing import Any

import yaml
from omegaconf import MISSING
from omegaconf._utils import get_omega_conf_dumper

from deepnets.config.identity import plain_values, upgrade
from deepnets.config.schema import Config

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's build of libyaml is ten times as fast
LONGEST = 1_000_000  # characters; a configuration has a few thousand
DEEPEST = 20  # nested nodes; a configuration has five
ALIASES = 20  # allowed in a file of options; nine levels of nine aliases could fill any memory


def read_frozen(text: str) -> dict[str, Any]:
    """Read the settings in a frozen `config.yaml`, and upgrade them to this version.

    Raises:
        ValueError: the text does not map names to settings.
        ValueError, yaml.YAMLError: `plain_yaml` raises it.
    """
    frozen = plain_yaml(text)
    if not isinstance(frozen, dict) or not all(isinstance(key, str) for key in frozen):
        raise ValueError("it does not map names to settings")
    return upgrade(frozen)


def plain_yaml(text: str) -> Any:
    """Read the values of a YAML text.

    Raises:
        ValueError: the text is longer or nested deeper than any configuration; it has aliases, which can make a small
            text large; or it holds a date, bytes, or an interpolation (`${...}`), which other code may resolve.
        yaml.YAMLError: the text is not YAML of plain values.
    """
    check_bounds(text)
    values = yaml.load(text, LOADER)
    refuse_interpolations(values)
    _refuse_other_types(values)
    return values


def check_bounds(text: str, aliases: int = 0) -> None:
    """Raise ValueError if a YAML text is too long, nested too deep, or has more than `aliases` aliases.

    Hydra reads texts with aliases, by Python's loader, which may read on where libyaml stops. An alias repeats a part
    of the text. It is also refused if it lies inside this part, as it would repeat for ever.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{len(text)} characters, at most {LONGEST} are read")
    nodes: list[str | None] = []  # the anchors of the nodes around the event
    for event in yaml.parse(text, LOADER if aliases == 0 else yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) and (aliases := aliases - 1) < 0:
            raise ValueError(f"line {event.start_mark.line + 1}: an alias (*{event.anchor}); write the value itself")
        if isinstance(event, yaml.AliasEvent) and event.anchor in nodes:
            raise ValueError(f"line {event.start_mark.line + 1}: the alias *{event.anchor} repeats itself without end")
        if isinstance(event, yaml.CollectionStartEvent):
            nodes.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            nodes.pop()
        if len(nodes) > DEEPEST:
            raise ValueError(f"line {event.start_mark.line + 1}: nested deeper than {DEEPEST} nodes")


def _refuse_other_types(values: Any) -> None:
    """Raise ValueError if nested values hold a type of YAML that no configuration has: a date, bytes or a set."""
    if isinstance(values, dict):
        values = [*values, *values.values()]
    if isinstance(values, list):
        for value in values:
            _refuse_other_types(value)
    elif not isinstance(values, str | int | float | None):
        raise ValueError(f"{values}: a {type(values).__name__}; if you mean a text, write it in quotes")


def refuse_interpolations(values: Any) -> None:
    """Raise ValueError if a string or a key of nested values contains `${`."""
    if isinstance(values, dict):
        for key, value in values.items():
            refuse_interpolations(key)
            refuse_interpolations(value)
    elif isinstance(values, list | tuple):
        for value in values:
            refuse_interpolations(value)
    elif isinstance(values, str) and "${" in values:
        raise ValueError(f"{values!r}: an interpolation; a configuration that is frozen holds plain values only")


def is_plain_node(node: Any) -> bool:
    """Return whether OmegaConf would copy the node unchanged: all keys are texts, and no value is missing."""
    return isinstance(node, dict) and _is_plain(node)


def _is_plain(values: Any) -> bool:
    if isinstance(values, dict):
        return all(isinstance(key, str) and _is_plain(value) for key, value in values.items())
    return all(map(_is_plain, values)) if isinstance(values, list) else values != MISSING


def frozen_yaml(config: Config) -> str:
    """Return the configuration as YAML, like OmegaConf.to_yaml but without its slow check of every value's type."""
    dumper = get_omega_conf_dumper()  # it puts texts that look like numbers in quotes
    return yaml.dump(plain_values(config), Dumper=dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
