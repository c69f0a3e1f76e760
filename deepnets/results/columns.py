"""Which runs belong together: in a column, where the runs of a row are averaged; which rows make a line in a figure."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from deepnets.results.read import Run
from deepnets.results.sheet import short_commit
from deepnets.runs.folder import RunFolder, run_folders

FULL = "full"  # the label of the column that follows the table's own protocol
# Two rows of a table that differ in these, unless they are its axes, stand in separate columns.
PROTOCOL = ("scale.name", "batch_size", "selection")
# Two rows that differ in these may still be compared, if the reader knows.
BUDGET = ("epochs", "iterations")
PRECISION = "precision"  # changes no protocol; runs stand apart by the arithmetic that it meant where they trained
DEPTH = "model.depth"
FEWEST_VALUES = 3  # of a swept number; a depth needs but two
ARITHMETIC = {"fp32": "float32", "bf16": "bfloat16"}

Lines = dict[str, dict[float, str]]  # the row at each value, for each line by its name


@dataclass(frozen=True)
class Column:
    """Runs of one protocol in one arithmetic.

    `is_published_protocol` unless the command or the scale changed what the table says, other than the arithmetic.
    """

    label: str
    is_published_protocol: bool
    runs: tuple[Run, ...]

    @property
    def rows(self) -> dict[str, list[Run]]:
        rows = defaultdict(list)
        for run in self.runs:
            rows[run.row].append(run)
        return dict(rows)

    @property
    def scale(self) -> str:
        """`scale.name` of its runs, which is `FULL` for a paper's own protocol."""
        return next((run.settings.get("scale.name", FULL) for run in self.runs if run.config), FULL)


def columns_of(runs: Sequence[Run]) -> list[Column]:
    """The columns of one table: by folder and arithmetic, and by every setting but the seed that a row has twice.

    Folders of one place that only `precision=` tells apart are one, unless they hold the same run. A column names its
    arithmetic where the table has several.
    """
    grids: dict[Path, list[Run]] = defaultdict(list)
    for run in runs:
        grids[run.grid].append(run)
    usual = {grid: _usual_arithmetic(inside) for grid, inside in grids.items()}
    groups = _joined(grids, usual)
    places = {
        (_name(grid), arithmetic_of(run) or usual[run.grid], grid) for grid, inside in groups.items() for run in inside
    }
    folders = Counter((name, arithmetic) for name, arithmetic, _ in places)
    has_several = len({arithmetic for _, arithmetic in folders if arithmetic}) > 1
    columns = []
    for grid, inside in groups.items():
        keys = _separating(inside)
        parts: dict[tuple[str, tuple[tuple[str, str], ...]], list[Run]] = defaultdict(list)
        broken = [run for run in inside if not run.config]
        for run in inside:
            if run.config:
                settings = tuple((key, _text(run.settings.get(key))) for key in keys)
                parts[arithmetic_of(run) or usual[run.grid], settings].append(run)
        if not parts:
            parts["", ()] = []
        next(iter(parts.values())).extend(broken)
        changes = _name(grid)[1:]
        for (arithmetic, settings), members in parts.items():
            words = [*changes, *(f"{key}={value}" for key, value in settings)]
            words += [arithmetic] * (has_several and arithmetic != "")
            if folders[_name(grid), arithmetic] > 1:
                words.append(f"in {RunFolder(grid)}")
            scale = next((run.settings.get("scale.name") for run in members if run.config), "full")
            if scale != "full" and not any(word.startswith("scale") for word in words):
                words.insert(0, f"scale={scale}")
            is_published = scale == "full" and not changes
            columns.append(Column(" ".join(words) or FULL, is_published, tuple(members)))
    return columns


def warnings_of(column: Column) -> list[str]:
    """What a reader must know before trusting an average or a comparison within the column."""
    ended = [run for run in column.runs if run.error is not None]
    facts: dict[str, list[Any]] = {
        "versions of the code": [short_commit(run.result.get("commit")) for run in ended],
        "precisions": [run.result.get(PRECISION) for run in ended],  # of single runs
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
    for row, runs in column.rows.items():
        data = [run.result["data"] for run in runs if run.result.get("data")]
        known = set.intersection(*map(set, data)) if data else ()  # older results name fewer facts
        data = [json.dumps({name: facts[name] for name in sorted(known)}) for facts in data]
        warnings.append(_mixture(f"{column.label}: {row} was trained on different data", data))
    return [warning for warning in warnings if warning]


def arithmetic_of(run: Run) -> str:
    """The arithmetic of a run of a sweep, as in "float32": its result's, or that which `precision` names.

    Empty where neither does: a run with precision=auto that has not ended.
    """
    if not run.sweep:  # single runs share a folder, not a protocol
        return ""
    return run.result.get(PRECISION) or ARITHMETIC.get(run.settings.get(PRECISION, ""), "")


def in_other_arithmetic(paths: Sequence[Path]) -> list[Path]:
    """The folders beside a sweep's that hold it with `precision=` typed, where they are."""
    found = []
    for path in (path.resolve() for path in paths):
        sweep, *changes = path.name.split("+")
        if not any(change.startswith(PRECISION) for change in changes):
            names = ["+".join([sweep, *sorted([*changes, f"{PRECISION}={value}"])]) for value in ARITHMETIC]
            found += [path.with_name(name) for name in names if run_folders(path.with_name(name))]
    return found


def lines_over(key: str, rows: Mapping[str, Run]) -> Lines:
    """The lines that rows make over a number: those whose names differ in nothing else.

    Empty, unless one has two depths, or `FEWEST_VALUES` values of another number.
    """
    settings = {row: run.settings.get(key) for row, run in rows.items()}
    values = {row: value for row, value in settings.items() if is_number(value)}
    parts = {row: _parts(row, rows[row]) for row in values}
    named = {row: name for row in values if (name := _without_axis(parts[row], key))}
    lines: Lines = defaultdict(dict)
    for row, value in values.items():
        # Of rows that were changed in the number, the one that was not is named by what the others have in common.
        name = named.get(row) or (row if row in named.values() else _without_number(parts[row], key, value))
        if name:
            lines[name].setdefault(value, row)
    fewest = 2 if key == DEPTH else FEWEST_VALUES
    return {name: dict(sorted(values.items())) for name, values in sorted(lines.items()) if len(values) >= fewest}


def swept(rows: Mapping[str, Run]) -> list[str]:
    """The numbers, apart from depth, over which rows make lines."""
    return [key for key in varying(rows.values()) if key != DEPTH and lines_over(key, rows)]


def varying(runs: Iterable[Run]) -> list[str]:
    """The settings that are a number of at least `FEWEST_VALUES` values."""
    numbers: dict[str, set[float]] = defaultdict(set)
    for run in runs:
        for key, value in run.settings.items():
            if is_number(value):
                numbers[key].add(value)
    return [key for key, values in numbers.items() if len(values) >= FEWEST_VALUES]


def is_plain(run: Run) -> bool:
    """Whether the net has no shortcuts: y = F(x)."""
    return run.settings.get("model.shortcut.shortcut_scale") == 0


def is_number(value: object) -> TypeGuard[float]:
    """Whether a setting can be drawn on a scale."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _joined(grids: dict[Path, list[Run]], usual: dict[Path, str]) -> dict[Path, list[Run]]:
    """The runs of each folder, with those of the folders that are one with it."""
    alike: dict[tuple[Path, tuple[str, ...]], list[Path]] = defaultdict(list)
    for grid in grids:
        alike[grid.parent, _name(grid)].append(grid)
    joined: dict[Path, list[Run]] = {}
    for folders in alike.values():
        runs = [run for grid in folders for run in grids[grid]]
        distinct = {(run.row, run.folder.path.name, arithmetic_of(run) or usual[run.grid]) for run in runs}
        joined |= {folders[0]: runs} if len(distinct) == len(runs) else {grid: grids[grid] for grid in folders}
    return joined


def _usual_arithmetic(runs: Sequence[Run]) -> str:
    """That of most runs of a folder; a run that has not ended is expected to have it."""
    known = Counter(filter(None, map(arithmetic_of, runs)))
    return known.most_common(1)[0][0] if known else ""


def _name(grid: Path) -> tuple[str, ...]:
    """The table, and what the command changed of it, but for its arithmetic."""
    table, *changes = grid.name.split("+")
    return table, *(change for change in changes if change.partition("=")[0] != PRECISION)


def _separating(runs: Sequence[Run]) -> list[str]:
    """The settings that differ within a row, and what of the protocol differs between rows."""
    axes = {axis for run in runs for axis in run.sweep.get("axes", [])}
    rows: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.config:
            rows[run.row].append(run)
    keys = {key for same in rows.values() for key in _differing(same)}
    if axes:  # single runs share a folder, not a protocol
        keys |= {key for key in _differing([run for same in rows.values() for run in same]) if key in PROTOCOL}
    return sorted(keys - axes - {PRECISION})


def _differing(runs: Sequence[Run]) -> set[str]:
    first, *others = [run.settings for run in runs] or [{}]
    different = [other for other in others if other != first]
    keys = {key for settings in (first, *different) for key in settings}
    return {key for key in keys if any(other.get(key) != first.get(key) for other in different)}


def _mixture(what: str, values: Sequence[Any]) -> str:
    counts = Counter(map(str, values)).most_common()
    if len(counts) < 2:
        return ""
    return f"{what}: " + ", ".join(f"{value} ({count} run{'s' * (count > 1)})" for value, count in counts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parts(row: str, run: Run) -> list[tuple[str, str]]:
    """The words of a row's name, each behind the key of the group or number that it names (see naming.py)."""
    words, axes = row.split(","), run.sweep.get("axes", [])
    keys = axes or ["model", "dataset", *(word.partition("=")[0] for word in words[2:])]
    keys = [key.replace("/", ".") for key in keys] + [""] * len(words)  # a list in a name has commas too
    return list(zip(keys, words, strict=False))


def _without_axis(parts: Sequence[tuple[str, str]], key: str) -> str | None:
    """The name without the word that is the number; None where none is."""
    words = [word for named, word in parts if named != key]
    return (",".join(words) or key) if len(words) < len(parts) else None


def _without_number(parts: Sequence[tuple[str, str]], key: str, value: float) -> str | None:
    """The name without the number in the word for its group, as in resnet20; None where that word lacks it."""
    number = re.compile(rf"(?<![\d.]){re.escape(f'{abs(value):g}')}(?![\d.])")
    for index, (group, word) in enumerate(parts):
        if key.startswith(f"{group}.") and number.search(word):
            words = [word for _, word in parts]
            words[index] = number.sub("", word, count=1).strip("_-")
            return ",".join(filter(None, words)) or key
    return None
