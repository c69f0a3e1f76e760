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
    values = {row: value for row, run in rows.items() if _is_number(value := run.settings.get(key))}
    parts = {row: _parts(row, rows[row]) for row in values}
    named = {row: name for row in values if (name := _without_axis(parts[row], key))}
    lines: Lines = defaultdict(lambda: defaultdict(list))
    for row, value in values.items():
        # Of rows that were changed in the number, the one that was not is named by what the others have in common.
        name = named.get(row) or (row if row in named.values() else _without_number(parts[row], key, value))
        if name:
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


def _parts(row: str, run: Run) -> list[tuple[str, str]]:
    """The words of a row's name, each behind the key of the group or number that it tells (see naming.py)."""
    words, axes = row.split(","), run.sweep.get("axes", [])
    keys = axes or ["model", "dataset", *(word.partition("=")[0] for word in words[2:])]
    keys = [key.replace("/", ".") for key in keys] + [""] * len(words)  # a list in a name has commas too
    return list(zip(keys, words, strict=False))


def _without_axis(parts: Sequence[tuple[str, str]], key: str) -> str | None:
    """The name without the word that is the number, and without that of a draw; None where none is.

    In a random search all numbers but depth are drawn, and no word tells them.
    """
    words = [word for told, word in parts if told not in (key, SETTING)]
    is_drawn = key != DEPTH and SETTING in dict(parts)
    return (",".join(words) or ("draws" if is_drawn else key)) if is_drawn or key in dict(parts) else None


def _without_number(parts: Sequence[tuple[str, str]], key: str, value: float) -> str | None:
    """The name without the number in the word for its group, as in resnet20, and without that of a draw.

    None where that word does not tell it.
    """
    number = re.compile(rf"(?<![\d.]){re.escape(f'{abs(value):g}')}(?![\d.])")
    parts = [part for part in parts if part[0] != SETTING]
    for index, (group, word) in enumerate(parts):
        if key.startswith(f"{group}.") and number.search(word):
            words = [word for _, word in parts]
            words[index] = number.sub("", word, count=1).strip("_-")
            return ",".join(filter(None, words)) or key
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
