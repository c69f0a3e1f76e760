"""Puts runs into one frame, and decides which of them share a column of a table or a line of a figure."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import pandas as pd

from deepnets.config.sweep import value_at_scale
from deepnets.errors import listed
from deepnets.results.read import Run
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.system.printing import setting_text, short_commit

FRAME = (  # the columns of a frame of runs
    *("run", "table", "changes", "grid", "sweep", "row", "seed", "folder"),
    *("status", "reason", "is_read", "arithmetic"),
)
FULL = "full"  # the label of the column that follows the table's own protocol
# Runs that differ in one of these settings go into separate columns, unless the setting is an axis of the table.
PROTOCOL = ("scale.name", "batch_size", "selection")
# So do runs that differ in these, if the sweep's file beside them sets a number: then the file has been edited. Other
# rows that differ in these may still be compared; a warning tells the reader.
BUDGET = ("epochs", "iterations")
CLASSES = 10  # of a run that did not note them
FAIL_MARGIN = 10.0  # percent points
PRECISION = "precision"  # not part of the protocol; columns are split by the arithmetic in which the runs trained
DEPTH = "model.depth"
FEWEST_VALUES = 3  # a line over a swept number needs at least 3 values; over depth, 2
ARITHMETIC = {"fp32": "float32", "bf16": "bfloat16"}

FigureLines = dict[str, dict[float, str]]  # for the name of each line, its rows by the number they lie at


def frame_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Put runs into one frame, one run per line: the run itself, where it lies, its status and its arithmetic.

    `sweep` is the name of the folder `grid`, and `table` the name of the sweep file. `changes` has the command's
    overrides of that file, without `precision`. `is_read` is False if the run's configuration is damaged.
    """
    lines = []
    for run in runs:
        names = {
            "run": run,
            "table": run.table,
            "changes": _changes(run.grid),
            "grid": run.grid,
            "sweep": run.grid.name,
        }
        names |= {"row": run.row, "seed": run.seed, "folder": str(run.folder)}
        status = {"status": run.state.name, "reason": run.contradiction or run.state.reason}
        lines.append(names | status | {"is_read": bool(run.config), "arithmetic": arithmetic_of(run)})
    return pd.DataFrame(lines, columns=FRAME)


@dataclass(frozen=True, eq=False)
class Column:
    """The runs of one protocol in one arithmetic; `frame` is their part of the frame of all runs.

    `is_published_protocol` is True if neither the command nor the scale changed a setting other than the arithmetic,
    and no other column of the folder has another batch size, selection or budget.
    """

    label: str
    is_published_protocol: bool
    frame: pd.DataFrame

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(self.frame["run"])

    @cached_property
    def rows(self) -> dict[str, list[Run]]:
        """The runs of each row of the table; a row's runs may be averaged."""
        return {row: list(runs) for row, runs in self.frame.groupby("row", sort=False)["run"]}

    @property
    def guessing(self) -> float:
        """The error in percent of guessing among the classes."""
        noted = [len(run.result["input"]["classes"]) for run in self.runs if "input" in run.result]
        return 100 - 100 / max(noted, default=CLASSES)

    @property
    def scale(self) -> str:
        """The `scale.name` of the runs; it is `FULL` for a paper's own protocol."""
        return next((run.settings.get("scale.name", FULL) for run in self.runs if run.config), FULL)


def columns_of(runs: pd.DataFrame, file: Path | None = None) -> list[Column]:
    """Split the runs of a table into columns: by folder, arithmetic and settings.

    The settings are those that differ within a row, those of `PROTOCOL` that differ between rows of a sweep, and the
    budget if the sweep's `file` (None: its copy beside the runs) sets another one than the runs have.
    Folders whose names differ only in `precision=` count as one, unless two of them hold the same run. Labels name the
    arithmetic if the table has several.
    """
    if runs.empty:
        return []
    frame = _with_places(runs)
    names = ["table", "changes", "arithmetic"]
    places = Counter(frame.drop_duplicates([*names, "place"])[names].itertuples(index=False, name=None))
    has_several = len({arithmetic for *_, arithmetic in places if arithmetic}) > 1
    columns = []
    for place, inside in frame.groupby("place", sort=False):
        table, changes = inside[["table", "changes"]].iloc[0]
        for arithmetic, settings, members in _protocols(inside, file):
            words = [*changes, *(f"{key}={value}" for key, value in settings)]
            words += [arithmetic] * (has_several and arithmetic != "")
            if places[table, changes, arithmetic] > 1:
                words.append(f"in {RunFolder(place)}")
            scale = next((run.settings.get("scale.name") for run in members["run"] if run.config), FULL)
            if scale != FULL and not any(word.startswith("scale") for word in words):
                words.insert(0, f"scale={scale}")
            is_own = changes or any(key in (*PROTOCOL, *BUDGET) for key, _ in settings)
            columns.append(Column(" ".join(words) or FULL, scale == FULL and not is_own, members))
    return columns


def mixes_code(runs: Sequence[Run]) -> bool:
    """Return whether several versions of the user's code trained the ended runs of a row, or one of these runs."""
    codes = {run.code for run in runs if run.has_ended}
    return len(codes) > 1 or any("," in code for code in codes)


def warnings_of(column: Column) -> list[str]:
    """Return what a reader must know before trusting an average or a comparison within the column."""
    ended = [run for run in column.runs if run.error is not None]
    facts: dict[str, list[Any]] = {
        "versions of the code": [short_commit(run.result.get("commit")) for run in ended],
        "precisions": [run.result.get(PRECISION) for run in ended],  # only single runs can differ within a column
        "versions of torch": [run.result.get("versions", {}).get("torch") for run in ended],
    }
    warnings = [f"cannot be read: {file}" for run in column.runs for file in run.broken]
    warnings += [f"contradicts itself: {run.folder}: {run.contradiction}" for run in column.runs if run.contradiction]
    warnings += [_mixture(f"{column.label}: several {name}", values) for name, values in facts.items()]
    axes = {axis for run in column.runs for axis in run.sweep.get("axes", [])}
    for key in BUDGET if axes else ():  # single runs share a folder, not a protocol
        if key not in axes:
            values = [run.settings.get(key) for run in column.runs if run.config]
            warnings.append(_mixture(f"{column.label}: rows differ in {key}", values))
    mixed: dict[str, list[str]] = {}  # the rows that several versions of the user's code trained, by these versions
    for row, runs in column.rows.items():
        data = [run.result["data"] for run in runs if run.result.get("data")]
        noted = set.intersection(*map(set, data)) if data else ()  # older results note fewer facts
        changing = sorted(name for name in noted if len({json.dumps(facts[name]) for facts in data}) > 1)
        data = [" ".join(f"{name} {facts[name]}" for name in changing) for facts in data]
        warnings.append(_mixture(f"{column.label}: {row} was trained on different data", data))
        if mixes_code(runs):
            seeds: dict[str, list[str]] = {}
            for run in runs:
                if run.has_ended:
                    seeds.setdefault(run.code, []).append(str(run.seed))
            versions = "; ".join(f"{code} seeds {', '.join(those)}" for code, those in sorted(seeds.items()))
            mixed.setdefault(versions, []).append(row)
    for versions, rows in mixed.items():
        names = " and ".join([*rows[:3], *([f"{len(rows) - 3} more"] if len(rows) > 3 else [])])
        what = f"{column.label}: {names} {'count' if len(rows) > 1 else 'counts'} for no claim, because different"
        remedy = (
            "to compare them, train the seeds of one version again: overwrite=true with these rows and seeds, and with "
            "code=frozen for the earlier version"
        )
        warnings.append(f"{what} versions of your own code trained them: {versions} (see result.json); {remedy}")
    warnings += rows_by_versions(column)
    if len({run.row for run in ended}) > 1 and min(run.error or 0.0 for run in ended) > column.guessing - FAIL_MARGIN:
        warnings.append(
            f"{column.label}: no run that has ended is {FAIL_MARGIN:.0f} percentage points better than guessing "
            f"({column.guessing:.0f}% error), so that differences between rows say little about nets that learn"
        )
    return [warning for warning in warnings if warning]


def rows_by_versions(column: Column) -> Iterator[str]:
    """Yield a line for each file of the user's code of which several versions trained the rows of a sweep's column.

    A row that several versions trained has another warning.
    """
    versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))  # by module, by its hash
    for row, runs in column.rows.items():
        if mixes_code(runs) or not all(run.sweep for run in runs):  # single runs share a folder, but are not compared
            continue
        codes = [code for run in runs if run.has_ended for code in (run.result.get("code") or {}).values()]
        for module, value in codes[0]["modules"].items() if codes else ():
            versions[module][value].append(row)
    for module, rows in versions.items():
        if len(rows) > 1:
            groups = "; ".join(f"{value} {listed(those)}" for value, those in rows.items())
            file = f"{module.replace('.', '/')}.py"
            yield (
                f"{column.label}: rows were trained by different versions of {file}: {groups}; "
                "if rows use what has changed, a difference between them may come from it"
            )


def arithmetic_of(run: Run) -> str:
    """Return the arithmetic of a run of a sweep, such as "float32", from its result or from its setting `precision`.

    It is empty for a single run, and for a run with precision=auto that has not ended.
    """
    if not run.sweep:  # single runs share a folder, not a protocol
        return ""
    return run.result.get(PRECISION) or ARITHMETIC.get(run.settings.get(PRECISION, ""), "")


def in_other_arithmetic(paths: Sequence[Path]) -> list[Path]:
    """Find the folders beside `paths` that hold the same sweeps, run with `precision=` typed in the command."""
    folders = []
    for path in (path.resolve() for path in paths):
        sweep, *changes = path.name.split("+")
        if not any(change.startswith(PRECISION) for change in changes):
            names = ["+".join([sweep, *sorted([*changes, f"{PRECISION}={value}"])]) for value in ARITHMETIC]
            folders += [path.parent / name for name in names if run_folders(path.parent / name)]
    return folders


def lines_over(key: str, rows: Mapping[str, Run]) -> FigureLines:
    """Group rows into lines over a numeric setting: the names of the rows on a line differ only in the number of `key`.

    If the sweep pairs an axis with the number, one to one, the names may differ in that axis too. A line has at least
    two depths, or `FEWEST_VALUES` values of another number.
    """
    settings = {row: run.settings.get(key) for row, run in rows.items()}
    values = {row: value for row, value in settings.items() if is_number(value)}
    parts = {row: _parts(row, rows[row]) for row in values}
    named = {row: name for row in values if (name := _without_axis(parts[row], _paired(rows[row], key)))}
    shared = Counter((name, values[row]) for row, name in named.items())
    for row, name in named.items():
        if shared[name, values[row]] > 1:  # this number occurs in several pairs: a line for each value of its partner
            named[row] = _without_axis(parts[row], [key]) or name
    lines: FigureLines = defaultdict(dict)
    for row, value in values.items():
        # A row whose name lacks the number belongs to the line that has the row's name.
        name = named.get(row) or (row if row in named.values() else _without_number(parts[row], key, value))
        if name:
            lines[name].setdefault(value, row)
    fewest = 2 if key == DEPTH else FEWEST_VALUES
    return {name: dict(sorted(values.items())) for name, values in sorted(lines.items()) if len(values) >= fewest}


def swept(rows: Mapping[str, Run]) -> list[str]:
    """Return the settings, apart from depth, over which `lines_over` finds lines."""
    return [key for key in varying(rows.values()) if key != DEPTH and lines_over(key, rows)]


def varying(runs: Iterable[Run]) -> list[str]:
    """Return the settings that have at least `FEWEST_VALUES` different numbers."""
    numbers: dict[str, set[float]] = defaultdict(set)
    for run in runs:
        for key, value in run.settings.items():
            if is_number(value):
                numbers[key].add(value)
    return [key for key, values in numbers.items() if len(values) >= FEWEST_VALUES]


def is_plain(run: Run) -> bool:
    """Say whether the net has no shortcuts: y = F(x)."""
    return run.settings.get("model.shortcut.shortcut_scale") == 0


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a setting is a number, which can be drawn on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_places(runs: pd.DataFrame) -> pd.DataFrame:
    """Add `place`: the run's `grid`, or the first of several such folders that count as one.

    A run of unknown arithmetic is assumed to have the arithmetic of most runs in its folder.
    """
    usual = runs.groupby("grid", sort=False)["arithmetic"].transform(_most_common)
    frame = runs.assign(arithmetic=runs["arithmetic"].where(runs["arithmetic"] != "", usual))
    parts = []
    named = frame["grid"].map(lambda grid: grid.parent / grid.name.split("+")[0])
    for _, alike in frame.groupby([named, "table", "changes"], sort=False):
        inside = pd.concat([part for _, part in alike.groupby("grid", sort=False)])
        names = inside.assign(name=[run.folder.path.name for run in inside["run"]])
        is_twice = names.duplicated(["row", "name", "arithmetic"]).any()
        parts.append(inside.assign(place=inside["grid"] if is_twice else [inside["grid"].iloc[0]] * len(inside)))
    return pd.concat(parts)


def _most_common(arithmetic: pd.Series) -> str:
    counts = Counter(filter(None, arithmetic))
    return counts.most_common(1)[0][0] if counts else ""


def _changes(grid: Path) -> tuple[str, ...]:
    """Read from the folder's name what the command overrode in the sweep file, without `precision`."""
    return tuple(change for change in grid.name.split("+")[1:] if change.partition("=")[0] != PRECISION)


def _protocols(inside: pd.DataFrame, file: Path | None) -> list[tuple[str, tuple[tuple[str, str], ...], pd.DataFrame]]:
    """Split the runs of a place by arithmetic and the settings of `_separating`; damaged runs go to the first part."""
    keys = _separating(inside, file)
    settings = [tuple((key, setting_text(run.settings.get(key))) for key in keys) for run in inside["run"]]
    inside = inside.assign(settings=pd.Series(settings, inside.index, dtype=object))
    whole, broken = inside[inside["is_read"]], inside[~inside["is_read"]]
    if whole.empty:
        return [("", (), broken)]
    groups = whole.groupby(["arithmetic", "settings"], sort=False)
    parts = [(arithmetic, values, members) for (arithmetic, values), members in groups]
    arithmetic, values, members = parts[0]
    return [(arithmetic, values, pd.concat([members, broken])), *parts[1:]]


def _separating(inside: pd.DataFrame, file: Path | None) -> list[str]:
    """Return the settings that differ within a row, and those between rows that put them into separate columns."""
    axes = {axis for run in inside["run"] for axis in run.sweep.get("axes", [])}
    whole = inside[inside["is_read"]]
    keys = {key for _, same in whole.groupby("row")["run"] for key in _differing(list(same))}
    if axes:  # single runs share a folder, not a protocol
        keys |= {key for key in _differing(list(whole["run"])) if key in PROTOCOL}
        if any(_is_edited(list(whole["run"]), key, file) for key in BUDGET):
            keys |= {key for key in BUDGET if any(run.settings.get(key) is not None for run in whole["run"])}
    return sorted(keys - axes - {PRECISION})


def _is_edited(runs: Sequence[Run], key: str, file: Path | None) -> bool:
    """Return whether the sweep's file sets the key to one number for all rows, and some runs have another one."""
    typed = {change.partition("=")[0] for run in runs for change in _changes(run.grid)}
    for place in {file or run.grid / f"{run.table}.yaml" for run in runs} if not typed & {*BUDGET} else ():
        number = value_at_scale(place, key, FULL)
        numbers = {run.settings.get(key) for run in runs}
        is_full = all(run.settings.get("scale.name") == FULL for run in runs)
        if is_number(number) and (len(numbers) > 1 or (is_full and numbers != {number})):
            return True
    return False


def _differing(runs: Sequence[Run]) -> set[str]:
    first, *others = [run.settings for run in runs] or [{}]
    different = [other for other in others if other != first]
    keys = {key for settings in (first, *different) for key in settings}
    return {key for key in keys if any(other.get(key) != first.get(key) for other in different)}


def _mixture(what: str, values: Sequence[Any]) -> str:
    counts = Counter(map(str, values)).most_common()
    listing = ", ".join(f"{value} ({count} run{'s' * (count > 1)})" for value, count in counts)
    return f"{what}: {listing}" if len(counts) > 1 else ""


def _choices(run: Run) -> dict[str, Any]:
    """Return what names the run's row, as {"model/shortcut": "none"}; a record's option is the word in the name."""
    words: dict[str, list[str]] = {}
    for key, word in _parts(run.row, run):
        words.setdefault(key, []).append(word.removeprefix(f"{key}="))
    names = {group.replace("/", "."): group for group in [*run.options, *run.sweep.get("axes", [])]}
    known = run.options | run.settings
    return {names.get(key, key): known.get(names.get(key, key), ",".join(values)) for key, values in words.items()}


def axes_of_rows(runs: Iterable[Run]) -> list[str]:
    """Return the groups and keys that name the row of one of these runs, or of several, as `model/shortcut`."""
    axes = dict.fromkeys(axis for run in runs for axis in _choices(run))
    return [axis for axis in axes if axis not in {each.replace("/", ".") for each in axes if "/" in each}]


def choice_of(run: Run, axis: str, with_defaults: bool = True) -> Any:
    """Return a run's choice in a group or its value of a key, also of a default that its row's name leaves out."""
    named, known = _choices(run), run.options | run.settings if with_defaults else {}
    return named.get(axis, named.get(axis.replace("/", "."), known.get(axis)))


def _parts(row: str, run: Run) -> list[tuple[str, str]]:
    """Split a row's name into words, and pair each with the group or the key whose choice it names: see `folder_of`."""
    words, axes = row.split(","), run.sweep.get("axes", [])
    keys = [] if axes else ["model", "dataset"]
    for axis in axes:  # a list has several words
        keys += [axis.replace("/", ".")] * (str(run.settings.get(axis)).count(",") + 1)
    for word in words[len(keys) :]:
        keys.append(word.partition("=")[0] if "=" in word else keys[-1])
    return list(zip(keys, words, strict=False))


def _paired(run: Run, key: str) -> list[str]:
    """Return the key and the axes that the sweep pairs with it."""
    groups = [[axis.replace("/", ".") for axis in group] for group in run.sweep.get("zip", [])]
    return next((group for group in groups if key in group), [key])


def _without_axis(parts: Sequence[tuple[str, str]], keys: Sequence[str]) -> str | None:
    """Return the name without the words that belong to `keys`; None if it has no such word."""
    words = [word for named, word in parts if named not in keys]
    return (",".join(words) or keys[0]) if len(words) < len(parts) else None


def _without_number(parts: Sequence[tuple[str, str]], key: str, value: float) -> str | None:
    """Return the name without the number in the option that sets it: resnet for resnet20; None if no option has it."""
    number = re.compile(rf"(?<![\d.]){re.escape(f'{abs(value):g}')}(?![\d.])")
    for index, (group, word) in enumerate(parts):
        if key.startswith(f"{group}.") and number.search(word):
            words = [word for _, word in parts]
            words[index] = number.sub("", word, count=1).strip("_-")
            return ",".join(filter(None, words)) or key
    return None
