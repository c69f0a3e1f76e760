"""Where a run lives: a function of what it is, not of how it was typed or when."""

import json
import re
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from deepnets.config.compose import composed
from deepnets.config.identity import flat, is_execution, plain
from deepnets.config.schema import Row
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder

ABSENT = object()
BUDGETS = ("epochs", "iterations")  # one is null, and the other tells


def folders_of(rows: list[Row]) -> list[RunFolder]:
    """The folder of each row.

    Raises:
        UserError: two rows would share one, or a name would tell an option that its table overrules.
    """
    for row in rows:
        if row.config.sweep:
            _check_options(row)
    folders = [folder_of(row) for row in rows]
    twice = [path for path, count in Counter(folder.path for folder in folders).items() if count > 1]
    if twice:
        raise UserError(
            f"several rows would share the folder {RunFolder(twice[0])}; a key that differs must be in sweep.axes"
        )
    return folders


def folder_of(row: Row) -> RunFolder:
    """`runs/<model>,<dataset>,<changes>/seed<seed>`, for a table of conf/sweep/ `<sweep>+<changes>/<row>/seed<seed>`.

    A change is what differs from the options, or the table, that name the run: `epochs=164` is none where they say 164
    anyway.
    """
    if row.config.sweep:
        axes = row.config.sweep.axes
        grid = "+".join([row.choices["sweep"], *_changes(row, {"sweep", *axes})])
        name = ",".join(_axis_value(row, axis) for axis in axes)
    else:
        grid = "runs"
        source = row.config.dataset.get("source")
        data = source.get("name") if isinstance(source, dict) else None
        name = ",".join([row.choices["model"], data or row.choices["dataset"], *_changes(row, {"model", "dataset"})])
    return RunFolder(Path(row.config.output_root) / plain(grid) / plain(name) / f"seed{row.config.seed}")


def _changes(row: Row, naming: set[str]) -> list[str]:
    """`key=value` of each typed choice and value that makes the run another than `naming` alone would."""
    words = {word.partition("=")[0].lstrip("+~"): word for word in row.overrides}
    typed = [key for key in words if key == "sweep" or not is_execution(key)]
    groups = {key: row.choices[key] for key in typed if key in row.choices}
    values = [key for key in typed if key not in groups and key not in {"seed", *naming}]
    if not values and groups.keys() <= naming:
        return []
    axes = sorted(words[key] for key in typed if key in naming and key not in groups)
    named = sorted(f"{group}={option}" for group, option in groups.items() if group in naming)
    usual_choices = composed((*named, *axes))[1]
    changed = {key: value for key, value in groups.items() if key not in naming and usual_choices.get(key) != value}
    chosen = sorted(f"{group}={option}" for group, option in groups.items())
    usual, ours = composed((*chosen, *axes))[0], OmegaConf.structured(row.config)
    for key in values:
        value = _selected(ours, key)
        if value == _selected(usual, key) or (value is None and key in BUDGETS):
            continue
        changed[key] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return sorted(f"{key}={value}" for key, value in changed.items())


def _check_options(row: Row) -> None:
    """Refuse an option of whose values the table sets some itself, whichever option is chosen.

    `model=resnet56` in a table that sets `model.depth` to 110 would be a net of 110 layers by the name of another.
    """
    sweep, scale = (f"{group}={row.choices[group]}" for group in ("sweep", "scale"))
    table, its_choices = composed((sweep, scale))
    its_axes = table.hydra.sweeper.params or {}
    typed = {key.lstrip("+~"): option for key, _, option in (word.partition("=") for word in row.overrides)}
    for group, option in typed.items():
        its_own = (its_choices.get(group), *re.split(r"[,\s]+", str(its_axes.get(group))))
        if group not in its_choices or group == "scale" or is_execution(group) or option in its_own:
            continue
        others = tuple(key.replace("/", ".") + "." for key in typed if key != group)
        overruled = {
            key: values
            for key, values in _overruled(row, group, its_own[0]).items()
            if not f"{key}.".startswith(others)
        }
        if overruled:
            told = [
                f"{key} ({'' if usual is ABSENT else f'{json.dumps(usual)} of the option, '}{json.dumps(value)} here)"
                for key, (value, usual) in overruled.items()
            ]
            remedy = " ".join(
                f"~{key}" if usual is ABSENT else f"{key}={json.dumps(usual, separators=(',', ':'))}"
                for key, (_, usual) in overruled.items()
            )
            raise UserError(
                f"{group}={option}: {sweep} sets some of its values whichever option is chosen: {', '.join(told)}. "
                f"Add {remedy}, or other values, or leave {group}={option} out"
            )


def _overruled(row: Row, group: str, its_option: str) -> dict[str, tuple[Any, Any]]:
    """The values that the table sets in spite of the row's option, which has others: the table's and the option's.

    What it sets is no change where the option agrees with `its_option`, which the table would take.
    """
    node, option = group.replace("/", "."), f"{group}={row.choices[group]}"
    within = (f"scale={row.choices['scale']}", *([f"model={row.choices['model']}"] if "/" in group else []))
    its, alone, both = (
        composed((*within, *words))[0]
        for words in ((f"{group}={its_option}",), (option,), (option, f"sweep={row.choices['sweep']}"))
    )
    before, usual, after = (flat(_selected(config, node, resolve=False)) for config in (its, alone, both))
    found = {}
    for key in sorted(after):
        if after[key] != usual.get(key, ABSENT) != before.get(key, ABSENT):
            full = f"{node}.{key}"
            value = _selected(OmegaConf.structured(row.config), full)
            ours = _selected(alone, full) if key in usual else ABSENT
            if value != ours:
                found[full] = value, ours
    return found


def _selected(config: DictConfig, key: str, resolve: bool = True) -> Any:
    value = OmegaConf.select(config, key, throw_on_missing=False)
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=resolve)
    return value.name if isinstance(value, Enum) else value


def _axis_value(row: Row, axis: str) -> str:
    if axis in row.choices:
        return row.choices[axis]
    return str(OmegaConf.select(OmegaConf.structured(row.config), axis))
