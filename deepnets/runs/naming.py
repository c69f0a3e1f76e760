"""Names the folder of a run after its configuration."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.compose import compose, composed_base
from deepnets.config.identity import flat, folder_name, is_execution
from deepnets.config.project import CONF
from deepnets.config.schema import DEFAULTS, Config, Row, Search, value_at
from deepnets.config.sweep import SWEEPS, axis_value
from deepnets.errors import UserError, brief
from deepnets.runs.folder import RunFolder, run_folders

RUNS = "runs"  # the folder of runs without a sweep
BUDGETS = ("epochs", "iterations")  # one is null, the other is the budget
MOST_NAMES = 200  # folders in which a run is looked for: with 8 changes in the name, up to 4 of them may be left out


def folders_of(rows: list[Row]) -> list[RunFolder]:
    """Return the folder of each row.

    Raises:
        UserError: two rows would share a folder.
    """
    folders = [folder_of(row) for row in rows]
    twice = [path for path, count in Counter(folder.path for folder in folders).items() if count > 1]
    if twice:
        raise UserError(
            f"several rows would share the folder {RunFolder(twice[0])}; a key that differs must be in sweep.rows"
        )
    return folders


def folder_of(row: Row) -> RunFolder:
    """Return `runs/<model>,<dataset>,<changes>/seed<seed>`, or `<sweep>+<changes>/<row>/seed<seed>` in a sweep.

    With `name=NAME`, NAME replaces `runs` or the sweep's name. A change is a setting whose value differs from that of
    the named options or the named sweep: `epochs=164` is no change if they set 164 too. If the run already lies in a
    folder named with fewer changes, because its file has been edited since, it stays there. A new run joins such runs
    from before an edit that have its values, if no folder is named with all changes. If such a run is in its place, but
    differs in other settings, the check of this folder says so.

    Raises:
        UserError: `sweep.axes` is empty, or has a name that is neither a group nor a key.
    """
    if row.config.sweep:
        axes = row.config.sweep.axes
        if not all(isinstance(axis, str) for axis in axes):
            raise UserError(f"sweep.axes: got {brief(axes)}; must be names of choices")
        if not axes:
            raise UserError("sweep.rows: names no choice; must be as {model/shortcut: [identity, none]}")
        grid, changes = row.config.name or row.choices["sweep"], _changes(row, {"sweep", *axes})
        name = ",".join(axis_value(row, axis) for axis in axes)
        places = [("+".join([grid, *kept]), name) for kept in _parts(changes)]
    else:
        grid = row.config.name or RUNS
        source = row.config.dataset.get("source")
        data, option = source.get("name") if isinstance(source, dict) else None, row.choices["dataset"]
        naming = {"model", "dataset", *(["dataset.source.name"] if data else [])}
        if data and (named := folder_name(data)) != option and _is_dataset(named, row):  # e.g. a folder called cifar10
            data = f"{option}={data}"
        name, changes = ",".join([row.choices["model"], data or option]), _changes(row, naming)
        places = [(grid, ",".join([name, *kept])) for kept in _parts(changes)]
    root, seed = Path(row.config.output_root), f"seed{row.config.seed}"
    folder, *others = (RunFolder(root / folder_name(grid) / folder_name(name) / seed) for grid, name in places)
    if (folder.path / "config.yaml").is_file():
        return folder
    if held := next((other for other in others if other.holds(row.config)), None):
        return held
    if changes and not _shared(folder, row).is_dir():
        for other, kept in zip(others, islice(_parts(changes), 1, None), strict=True):
            omitted, place = frozenset(changes) - {*kept}, _shared(other, row)
            is_taken = (other.path / "config.yaml").is_file() and not row.config.overwrite and not _has(other, omitted)
            if is_taken or not place.is_dir():
                continue
            if _holds_before_edit(place, omitted, row.search, place.stat().st_mtime_ns):
                return other
    return folder


def _shared(folder: RunFolder, row: Row) -> Path:
    """Return the folder whose runs have the same changes: a sweep's, or, of single runs, that of a row's seeds."""
    return folder.grid if row.config.sweep else folder.path.parent


@cache
def _holds_before_edit(place: Path, changes: frozenset[str], search: Search, changed_at: int) -> bool:
    """Return whether a folder, last changed then, has a run with these `key=value` from before an edit.

    Today's files give that run's overrides other values.
    """
    for run in run_folders(place):
        # Nobody asked for this run, and its row may be gone.
        with suppress(UserError, HydraException, OmegaConfBaseException):
            if _has(run, changes) and not changes & _values(compose(run.origin.overrides, search).config, changes):
                return True
    return False


def _has(run: RunFolder, changes: frozenset[str]) -> bool:
    """Return whether a run's configuration has all of these `key=value`."""
    with suppress(UserError):  # its check says that it cannot be read
        return changes == _values(run.config, changes)
    return False


def _values(config: Config, changes: frozenset[str]) -> set[str]:
    keys = [change.partition("=")[0] for change in changes]
    return {_change(key, value_at(config, key)) for key in keys}


def _changes(row: Row, naming: set[str]) -> list[str]:
    """Return `key=value` for each setting that is not in `naming` and does not follow from the row's other choices."""
    overrides = {override.partition("=")[0].lstrip("+~"): override for override in row.overrides}
    typed = [key for key in overrides if key == "sweep" or not is_execution(key)]
    groups = {key: row.choices[key] for key in typed if key in row.choices}
    values = [key for key in typed if key not in groups and key not in {"seed", *naming}]
    if "dataset.root" in overrides and "dataset.source.name" not in naming:  # root names the user's data set
        values.append("dataset.source.name")
    if "weights" in overrides and "weights_hash" not in values:
        values.append("weights_hash")
    search = row.search
    if search.defaults != DEFAULTS and not _is_own_sweep(row):  # all that the user's file sets counts as typed
        search = replace(search, defaults=DEFAULTS)
        options = {group: option for group, option in row.choices.items() if option and not group.startswith("hydra/")}
        groups |= {group: option for group, option in options.items() if not is_execution(group)}
        settable = [key for key in flat(asdict(row.config)) if not is_execution(key)]
        values = [key for key in dict.fromkeys([*values, *settable]) if key not in {"seed", *groups, *naming}]
    if not values and groups.keys() <= naming:
        return []
    axes = sorted(overrides[key] for key in typed if key in naming and key not in groups)

    def chosen(among: set[str]) -> tuple[str, ...]:
        return *sorted(f"{group}={option}" for group, option in groups.items() if group in among), *axes

    # A protocol chooses options too: compare it first, then compare the other options with its choices.
    protocol = composed_base(chosen(naming), search)[0].choices["protocol"]
    usual_choices = composed_base(chosen({*naming, "protocol"}), search)[0].choices | {"protocol": protocol}
    changed = {key: value for key, value in groups.items() if key not in naming and usual_choices.get(key) != value}
    usual, _ = composed_base(chosen(set(groups)), search)
    for key in values:
        value = value_at(row.config, key)
        if value == usual.value(key) or (value is None and key in BUDGETS):
            continue
        changed[key] = value
    return sorted(_change(key, value) for key, value in changed.items())


def _change(key: str, value: Any) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"


def _parts(changes: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield all changes, then all but one of them, and so on; at most `MOST_NAMES` choices."""
    sizes = range(len(changes), -1, -1)
    return islice(chain.from_iterable(combinations(changes, size) for size in sizes), MOST_NAMES)


def _is_own_sweep(row: Row) -> bool:
    """Return whether the sweep's file is the user's own; if so, the user's defaults count as part of the sweep."""
    return bool(row.choices.get("sweep")) and not (SWEEPS / f"{row.choices['sweep']}.yaml").is_file()


def _is_dataset(name: str, row: Row) -> bool:
    """Return whether a data set of this name can be chosen."""
    places = (Path(place.removeprefix("file://")) for place in row.search.places)
    return any((folder / "dataset" / f"{name}.yaml").is_file() for folder in (CONF, *places))
