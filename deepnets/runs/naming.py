"""Where a run lives: a function of what it is, not of how it was typed or when."""

import json
from collections import Counter
from pathlib import Path

from deepnets.config.compose import ABSENT, composed, selected, value_at
from deepnets.config.identity import is_execution, plain
from deepnets.config.schema import Row
from deepnets.errors import UserError, brief
from deepnets.runs.folder import RunFolder

BUDGETS = ("epochs", "iterations")  # one is null, and the other names the budget


def folders_of(rows: list[Row]) -> list[RunFolder]:
    """The folder of each row.

    Raises:
        UserError: two rows would share one.
    """
    folders = [folder_of(row) for row in rows]
    twice = [path for path, count in Counter(folder.path for folder in folders).items() if count > 1]
    if twice:
        raise UserError(
            f"several rows would share the folder {RunFolder(twice[0])}; a key that differs must be in sweep.axes"
        )
    return folders


def folder_of(row: Row) -> RunFolder:
    """`runs/<model>,<dataset>,<changes>/seed<seed>`, in a sweep of conf/sweep/ `<sweep>+<changes>/<row>/seed<seed>`.

    A change is what differs from the options, or the sweep, that name the run: `epochs=164` is none where they say 164
    anyway.

    Raises:
        UserError: `sweep.axes` is empty, or names what is not there.
    """
    if row.config.sweep:
        axes = row.config.sweep.axes
        if not all(isinstance(axis, str) for axis in axes):
            raise UserError(f"sweep.axes: got {brief(axes)}; must be names of choices")
        if not axes:
            raise UserError("sweep.axes: names no choice, so that all rows would share a folder")
        grid = "+".join([row.choices["sweep"], *_changes(row, {"sweep", *axes})])
        name = ",".join(_axis_value(row, axis) for axis in axes)
    else:
        grid = "runs"
        source = row.config.dataset.get("source")
        data = source.get("name") if isinstance(source, dict) else None
        naming = {"model", "dataset", *(["dataset.source.name"] if data else [])}
        name = ",".join([row.choices["model"], data or row.choices["dataset"], *_changes(row, naming)])
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

    def chosen(among: set[str]) -> tuple[str, ...]:
        return *sorted(f"{group}={option}" for group, option in groups.items() if group in among), *axes

    # A protocol chooses options too, so that it is compared first, and the others with what it chooses.
    protocol = composed(chosen(naming), row.search).choices["protocol"]
    usual_choices = composed(chosen({*naming, "protocol"}), row.search).choices | {"protocol": protocol}
    changed = {key: value for key, value in groups.items() if key not in naming and usual_choices.get(key) != value}
    usual = composed(chosen(set(groups)), row.search).config
    for key in values:
        value = value_at(row.config, key)
        if value == selected(usual, key) or (value is None and key in BUDGETS):
            continue
        changed[key] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return sorted(f"{key}={value}" for key, value in changed.items())


def _axis_value(row: Row, axis: str) -> str:
    if axis in row.choices:
        return row.choices[axis]
    value = value_at(row.config, axis, ABSENT)
    if value is ABSENT:
        raise UserError(f"sweep.axes: {axis} is neither a group of options nor a key of the configuration")
    return str(value)
