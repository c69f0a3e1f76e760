"""Rows in lines: which rows differ in one number, as resnet20 and resnet110 do, and are drawn as one line over it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from deepnets.results.read import Run

DEPTH = "model.depth"
FEWEST_VALUES = 3  # of a swept number; a depth needs but two

Lines = dict[str, dict[float, str]]  # the row at each value, for each line by its name


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
