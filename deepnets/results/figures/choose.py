"""Which pictures a report shows: those for which there are numbers."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from deepnets.results.cell import Cell
from deepnets.results.columns import OURS
from deepnets.results.figures.curves import MOST_IN_PANEL, MOST_PANELS, degradation, learning_rates, training_curves
from deepnets.results.figures.points import bars, error_over
from deepnets.results.figures.style import Picture, styled
from deepnets.results.read import Run, example
from deepnets.results.search import best_curves, final_loss, is_search, losses_over_depth
from deepnets.results.series import DEPTH, swept
from deepnets.results.sheets import column_title
from deepnets.results.table import Table

MOST_SWEPT = 4


def pictures_of(tables: Sequence[Table], logarithmic: bool = False) -> list[Picture]:
    """All pictures of a report; every file name is another."""
    with styled():
        pictures = list(_of_depth(tables, logarithmic))
        pictures += [
            replace(picture, name=f"{_file_name(table.name)}-{picture.name}" if len(tables) > 1 else picture.name)
            for table in tables
            for picture in _of_table(table, logarithmic)
        ]
    named: dict[str, Picture] = {}
    for picture in pictures:
        name, number = picture.name, 2
        while name in named:
            name, number = f"{picture.name}-{number}", number + 1
        named[name] = replace(picture, name=name)
    return list(named.values())


def _of_table(table: Table, logarithmic: bool) -> Iterator[Picture]:
    for index, column in enumerate(table.columns):
        where = column_title(table, index) if len(table.columns) > 1 else table.name
        cells = {row: table.cells[row, index] for row in table.rows}
        runs = {row: example([run for run in cell.runs if run.config]) for row, cell in cells.items() if _known(cell)}
        is_searched = is_search(column.runs)  # one panel tells enough of its draws
        trained = {row: run for row, run in runs.items() if run.history}
        curves = _best(trained, table, index, MOST_IN_PANEL if is_searched else MOST_PANELS)
        drawn = []
        if not is_searched:
            drawn.append(("bars", f"{where}: final test errors and the published values", bars(cells)))
        if curves:
            caption = f"{where}: error of each row's run of median result (of two the worse)"
            if len(curves) < len(trained):
                caption += f"; the best {len(curves)} of {len(trained)} rows"
            drawn.append(("curves", caption, training_curves(curves, logarithmic)))
        drawn.append(("depth", f"{where}: test error over depth", error_over(DEPTH, runs, cells)))
        for key in swept(runs)[:MOST_SWEPT]:
            drawn.append((key.replace(".", "-"), f"{where}: test error over {key}", error_over(key, runs, cells)))
        drawn.append(("schedule", f"{where}: learning rate", learning_rates(curves)))
        for what, caption, figure in drawn:
            if figure is not None:
                label = column.label if len(table.columns) > 1 else OURS
                yield Picture(_file_name(f"{what}-{label}"), caption, figure)


def _of_depth(tables: Sequence[Table], logarithmic: bool) -> Iterator[Picture]:
    """Plain and residual nets may stand in two tables of the paper; columns of one protocol go together."""
    labels = list(dict.fromkeys(column.label for table in tables for column in table.columns))
    for label in labels:
        columns = [column for table in tables for column in table.columns if column.label == label]
        trained = {
            row: known
            for column in columns
            for row, runs in column.rows.items()
            if (known := [run for run in runs if run.history])
        }
        if any(is_search(column.runs) for column in columns):
            draws = {row: example(runs, final_loss) for row, runs in trained.items()}
            drawn = [
                ("search", "Depth: training loss of the best draws", best_curves(draws)),
                (
                    "search-depth",
                    "Depth: final training loss of all draws, and the mean of the best tenth",
                    losses_over_depth(draws),
                ),
            ]
        else:
            curves = {row: example(runs) for row, runs in trained.items()}
            drawn = [("degradation", "Depth: plain nets beside nets with shortcuts", degradation(curves, logarithmic))]
        for what, caption, figure in drawn:
            if figure is not None:
                name = _file_name(f"{what}-{label if len(labels) > 1 else OURS}")
                yield Picture(name, caption + f" ({label})" * (label != OURS), figure)


def _known(cell: Cell) -> bool:
    return any(run.config for run in cell.runs)


def _best(runs: dict[str, Run], table: Table, index: int, most: int) -> dict[str, Run]:
    """In the table's order, unless there are more than `most` rows: then those of the lowest medians."""
    if len(runs) <= most:
        return runs
    medians = {row: table.cells[row, index].median for row in runs}
    order = sorted(runs, key=lambda row: math.inf if medians[row] is None else medians[row])
    return {row: runs[row] for row in order[:most]}


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", name.removesuffix(f"-{OURS}"))[:80]
