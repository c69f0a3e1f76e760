"""Ours beside the paper's: the rows of a table, and what was published about them."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepnets.config.identity import plain
from deepnets.results.cell import FAIL, FAIL_ABOVE, Cell, Published
from deepnets.results.columns import Column, columns_of, warnings_of
from deepnets.results.read import Run
from deepnets.results.search import is_search

RULE = (
    "agrees: the published value lies inside the bootstrap 95% interval of our median, from 3 seeds on; "
    "differs: it does not. A diverged run counts as the largest error. Of 3 to 5 seeds the interval is their range. "
    "The chance in the published number is left out: of rows with 5 seeds that come from the very same distribution, "
    "one in six differs from a median of 5, and one in three from a single run."
)
FAILS = (
    "fail, as He et al. 2016 define it: a non-finite median, or one above 20% under the full protocol; it agrees with "
    "a published fail, and with that only."
)
DIVERGED = "fail: a non-finite median."
CHANGED = "In brackets: another scale or other settings than the table's own; there only a non-finite median is a fail."
LARGE = "The paper itself prints errors above 20%: only a non-finite median is a fail."


@dataclass(frozen=True)
class Table:
    """A table of conf/sweep/, or the single runs of outputs/runs; `cells` by row and column."""

    name: str
    statistic: str | None
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    published: dict[str, Published]
    cells: dict[tuple[str, int], Cell] = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before comparing; see `warnings_of`."""
        return [warning for column in self.columns for warning in warnings_of(column)]

    @property
    def notes(self) -> list[str]:
        """How the verdicts and fails came about."""
        printed = [row.test_error for row in self.published.values() if row.test_error is not None]
        notes = [RULE] if printed else []
        if FAIL in printed:
            notes.append(FAILS)
        elif any(cell.is_fail for cell in self.cells.values()) and not any(is_search(c.runs) for c in self.columns):
            notes.append(DIVERGED)
        if printed and not all(column.is_published_protocol for column in self.columns):
            notes.append(CHANGED)
        if FAIL in printed and math.isinf(_fail_above(self.published)):
            notes.append(LARGE)
        return notes


def tables_of(runs: Sequence[Run]) -> list[Table]:
    """One table for each sweep; the folders, scales and protocols it was trained in are its columns."""
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.grid.name.split("+")[0]].append(run)
    return [_table(name, members) for name, members in by_name.items()]


def _table(name: str, runs: Sequence[Run]) -> Table:
    reported = [run.sweep.get("reported") or {} for run in runs]
    published = _published(reported)
    trained = sorted({run.row for run in runs} - published.keys(), key=_natural)
    rows, columns = (*published, *trained), columns_of(runs)
    cells = {}
    for index, column in enumerate(columns):
        # The bound of a paper's full protocol; a shorter one, or a single run of one's own, is not measured by it.
        is_table = any(run.sweep for run in column.runs)
        bound = _fail_above(published) if is_table and column.is_published_protocol else math.inf
        of_row = column.rows
        for row in rows:
            printed = published.get(row, Published())
            members = tuple(of_row.get(row, ()))
            cells[row, index] = Cell(members, printed, column.is_published_protocol, bound)
    statistic = next((each["statistic"] for each in reported if each.get("statistic")), None)
    return Table(name, statistic, rows, tuple(columns), published, cells)


def _published(reported: Sequence[dict[str, Any]]) -> dict[str, Published]:
    """By row, named as folders are; where runs were frozen with different tables the first word counts."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for table in reported:
        for statistic in ("test_error", "mean", "std", "best"):
            for row, value in (table.get(statistic) or {}).items():
                found[plain(str(row))].setdefault(statistic, value)
    return {row: Published(**statistics) for row, statistics in found.items()}


def _fail_above(published: dict[str, Published]) -> float:
    """`FAIL_ABOVE` where the paper prints fails, and no larger errors that are none to it; infinite elsewhere."""
    printed = [row.test_error for row in published.values()]
    is_large = any(isinstance(error, int | float) and error > FAIL_ABOVE for error in printed)
    return FAIL_ABOVE if FAIL in printed and not is_large else math.inf


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sorts numbers within names by value: resnet20 before resnet110."""
    words = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(1, float(word), "") if index % 2 else (0, 0.0, word) for index, word in enumerate(words)]
