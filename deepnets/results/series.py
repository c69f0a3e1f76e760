"""Rows in lines: which rows differ in one number, as resnet20 and resnet110 do, and are drawn as one line over it."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from deepnets.results.read import Run

DEPTH = "model.depth"
SETTING = "setting"  # the number of a draw of a random search; names a row and means nothing
FEWEST_VALUES = 3  # of a swept number; a depth needs but two

# Rows by their value, for each line by its name; several rows stand at one value where draws differ in other numbers.
Lines = dict[str, dict[float, list[str]]]


def lines_over(key: str, rows: Mapping[str, Run]) -> Lines:
    """The lines that rows make over a number: those whose names differ in nothing else.

    Empty, unless one has two depths, or `FEWEST_VALUES` values of another number.
    """
    lines: Lines = defaultdict(lambda: defaultdict(list))
    for row, run in rows.items():
        value = run.settings.get(key)
        if _is_number(value) and (name := _without(row, key, value, run.sweep.get("axes", []))) is not None:
            lines[name][value].append(row)
    fewest = 2 if key == DEPTH else FEWEST_VALUES
    kept = {name: dict(sorted(values.items())) for name, values in lines.items() if len(values) >= fewest}
    return dict(sorted(kept.items()))


def swept(rows: Mapping[str, Run]) -> list[str]:
    """The numbers, apart from depth, over which rows make lines."""
    numbers: dict[str, set[float]] = defaultdict(set)
    for run in rows.values():
        for key, value in run.settings.items():
            if _is_number(value) and key not in (DEPTH, SETTING):
                numbers[key].add(value)
    return [key for key, values in numbers.items() if len(values) >= FEWEST_VALUES and lines_over(key, rows)]


def is_plain(run: Run) -> bool:
    """Whether the net has no shortcuts: y = F(x)."""
    return run.settings.get("model.shortcut.shortcut_scale") == 0


def _without(row: str, key: str, value: float, axes: Sequence[str]) -> str | None:
    """The row's name without the value and without the number of a draw; None where it does not name the value.

    In a random search numbers are drawn, and no name tells them.
    """
    parts = row.split(",")
    if len(parts) == len(axes):
        if SETTING in axes:
            parts.pop(axes.index(SETTING))
            if key != DEPTH:
                return ",".join(parts) or "draws"
            axes = [axis for axis in axes if axis != SETTING]
        if key in axes:
            parts.pop(axes.index(key))
            return ",".join(parts) or key
    name = ",".join(parts)
    text = re.escape(f"{abs(value):g}")
    shorter, found = re.subn(rf"(?<![\d.]){text}(?![\d.])", "", name, count=1)
    return (shorter.strip("_,-") or key) if found else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
