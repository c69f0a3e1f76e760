"""The rows of a table beside what was published about them."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepnets.config.sweep import SWEEPS
from deepnets.results.cell import FAIL_ABOVE, Cell
from deepnets.results.columns import FULL, Column, columns_of, warnings_of
from deepnets.results.published import FAIL, Published, PublishedRow, published_of
from deepnets.results.read import Run
from deepnets.results.search import Net, is_search, nets_of
from deepnets.results.verdict import RULE

FAILS = (
    "fail, as He et al. 2016 define it: a non-finite median, or one above 20% under the full protocol; it agrees with "
    "a published fail, and with that only."
)
DIVERGED = "fail: a non-finite median."
CHANGED = (
    "In brackets: another scale or other settings than the sweep's; there is no verdict, and only a non-finite median "
    "is a fail."
)
LARGE = "The paper itself prints errors above 20%: only a non-finite median is a fail."


@dataclass(frozen=True)
class Table:
    """A table of conf/sweep/, or the single runs of outputs/runs; `cells` by row and column.

    The rows of a random search are its nets; `trials` is the same table with a row for each trial.
    """

    name: str
    published: Published
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, int], Cell] = field(repr=False)
    trials: "Table | None" = None
    sweeps: Path = SWEEPS  # where its sweep file is

    def title(self, index: int) -> str:
        """The table's name and what is special about the column."""
        label = self.columns[index].label
        return self.name if label == FULL else f"{self.name}, {label}"

    def column(self, index: int) -> dict[str, Cell]:
        """The cells of a column by row."""
        return {row: self.cells[row, index] for row in self.rows}

    def runs(self, index: int) -> list[Run]:
        """The runs of a column in the order of the rows."""
        return [run for cell in self.column(index).values() for run in cell.runs]

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before comparing; see `warnings_of`."""
        of_columns = [warning for column in self.columns for warning in warnings_of(column)]
        return [*(f"cannot be read: {problem}" for problem in self.published.problems), *of_columns]

    @property
    def notes(self) -> list[str]:
        """How the verdicts and fails came about."""
        printed = [row.test_error for row in self.published.rows.values() if row.test_error is not None]
        notes = [RULE] if printed else []
        if FAIL in printed:
            notes.append(FAILS)
        elif any(cell.is_fail for cell in self.cells.values()):
            notes.append(DIVERGED)
        if printed and not all(column.is_published_protocol for column in self.columns):
            notes.append(CHANGED)
        if FAIL in printed and math.isinf(_fail_above(self.published)):
            notes.append(LARGE)
        return notes


def tables_of(runs: Sequence[Run], sweeps: Path = SWEEPS, own: Path | None = None) -> list[Table]:
    """One table for each sweep; the folders, scales and protocols it was trained in are its columns.

    Published numbers are those of the sweep's file in `own`, a project's, or in `sweeps`, or of its copy beside the
    runs. Raises as `published_of` does.
    """
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.grid.name.split("+")[0]].append(run)
    tables = []
    for name, members in by_name.items():
        places = (*filter(None, [own]), sweeps, *dict.fromkeys(run.grid for run in members))
        place = next((place for place in places if (place / f"{name}.yaml").is_file()), sweeps)
        tables.append(_table(name, members, place))
    return tables


def _table(name: str, runs: Sequence[Run], sweeps: Path) -> Table:
    published = published_of(name, sweeps) if any(run.sweep for run in runs) else Published()
    trained = sorted({run.row for run in runs} - published.rows.keys(), key=_natural)
    rows, columns = (*published.rows, *trained), tuple(columns_of(runs))
    cells = {}
    for index, column in enumerate(columns):
        # The bound of a paper's full protocol; a shorter one, or a single run of one's own, is not measured by it.
        is_table = any(run.sweep for run in column.runs)
        bound = _fail_above(published) if is_table and column.is_published_protocol else math.inf
        of_row = column.rows
        for row in rows:
            printed, members = published.rows.get(row, PublishedRow()), tuple(of_row.get(row, ()))
            cells[row, index] = Cell(members, printed, column.is_published_protocol, bound)
    table = Table(name, published, rows, columns, cells, sweeps=sweeps)
    return _by_net(table) if is_search(runs) else table


def _by_net(trials: Table) -> Table:
    nets = [nets_of(trials.column(index)) for index in range(len(trials.columns))]
    rows = tuple(dict.fromkeys(net for column in nets for net in column))
    missing = Net((), PublishedRow(), True, math.inf)
    cells: dict[tuple[str, int], Cell] = {
        (row, i): column.get(row, missing) for i, column in enumerate(nets) for row in rows
    }
    return Table(trials.name, trials.published, rows, trials.columns, cells, trials, trials.sweeps)


def _fail_above(published: Published) -> float:
    """`FAIL_ABOVE` where the paper prints fails, and no larger errors that are none to it; infinite elsewhere."""
    printed = [row.test_error for row in published.rows.values()]
    is_large = any(isinstance(error, int | float) and error > FAIL_ABOVE for error in printed)
    return FAIL_ABOVE if FAIL in printed and not is_large else math.inf


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sorts numbers within names by value: resnet20 before resnet110."""
    words = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(1, float(word), "") if index % 2 else (0, 0.0, word) for index, word in enumerate(words)]
