"""Draws all pictures of a report for which there are numbers."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from deepnets.monitor.style import styled
from deepnets.results.cell import TRIAL, Cell, Net
from deepnets.results.claims import findings_of
from deepnets.results.columns import DEPTH, FULL, swept, varying
from deepnets.results.figures.curves import (
    MOST_IN_PANEL,
    MOST_PANELS,
    best_curves,
    degradation,
    learning_rates,
    training_curves,
)
from deepnets.results.figures.points import bars, error_over, looks_of_claims, losses_over, losses_over_depth
from deepnets.results.finding import Finding
from deepnets.results.page import Picture
from deepnets.results.read import Run
from deepnets.results.table import Table

MOST_SWEPT = 4

Drawn = Iterator[tuple[str, str, Figure | None]]  # name, caption, figure if there are numbers for it


def pictures_of(tables: Sequence[Table], logarithmic: bool = False) -> list[Picture]:
    """Draw all pictures of a report, each with a file name of its own."""
    named: dict[str, Picture] = {}
    with styled():
        for picture in (*_of_depth(tables, logarithmic), *_of_tables(tables, logarithmic)):
            name, number = picture.name, 2
            while name in named:
                name, number = f"{picture.name}-{number}", number + 1
            named[name] = replace(picture, name=name)
    return list(named.values())


def _of_tables(tables: Sequence[Table], logarithmic: bool) -> Iterator[Picture]:
    for table in tables:
        for index, column in enumerate(table.columns):
            for what, caption, figure in _of_column(table, index, logarithmic):
                if figure is not None:
                    name = _file_name(what, column.label if len(table.columns) > 1 else FULL)
                    prefix = f"{_file_name(table.name)}-" if len(tables) > 1 else ""
                    yield Picture(prefix + name, f"{table.title(index)}: {caption}", figure)


def _of_column(table: Table, index: int, logarithmic: bool) -> Drawn:
    cells = table.column(index)
    nets = {row: cell for row, cell in cells.items() if isinstance(cell, Net)}
    runs = {row: run for row, cell in cells.items() if (run := cell.example)}
    trained = {row: run for row, run in runs.items() if run.history}
    curves = _best(trained, cells, MOST_IN_PANEL if nets else MOST_PANELS)
    if not nets:
        is_published = any(cell.published.test_error is not None for cell in cells.values())
        yield "bars", "final test errors" + " and the published values" * is_published, bars(cells)
    if curves:
        which = "best trial" if nets else "run of median result (of two the worse)"
        rest = f"; the best {len(curves)} of {len(trained)} rows" if len(curves) < len(trained) else ""
        yield "curves", f"error of each row's {which}{rest}", training_curves(curves, logarithmic)
    if nets:
        searched = varying(run for net in nets.values() for run in net.trials)
        for key in [key for key in searched if key not in (DEPTH, TRIAL)][:MOST_SWEPT]:
            yield key.replace(".", "-"), f"final training loss over {key}", losses_over(key, nets)
    else:
        for key in (DEPTH, *swept(runs)[:MOST_SWEPT]):
            what = "depth" if key == DEPTH else key
            yield what.replace(".", "-"), f"test error over {what}", error_over(key, runs, cells)
    yield "schedule", "learning rate", learning_rates(curves)
    if not nets:
        findings = [each for each in findings_of(table, index, table.sweeps) if isinstance(each, Finding)]
        yield "claims", "claims at each look", looks_of_claims(findings)


def _of_depth(tables: Sequence[Table], logarithmic: bool) -> Iterator[Picture]:
    """Draw columns of one protocol together: a paper may have plain and residual nets in two tables."""
    columns = [(column.label, table.column(index)) for table in tables for index, column in enumerate(table.columns)]
    labels = list(dict.fromkeys(label for label, _ in columns))
    for label in labels:
        cells = {row: cell for other, column in columns if other == label for row, cell in column.items()}
        nets = {row: cell for row, cell in cells.items() if isinstance(cell, Net)}
        runs = {row: run for row, cell in cells.items() if row not in nets and (run := cell.example) and run.history}
        for what, caption, figure in (
            ("degradation", "plain nets beside nets with shortcuts", degradation(runs, logarithmic)),
            ("search", "training loss of the best trials", best_curves(nets)),
            ("search-depth", "final training loss of trials, and the mean of the best tenth", losses_over_depth(nets)),
        ):
            if figure is not None:
                name = _file_name(what, label if len(labels) > 1 else FULL)
                yield Picture(name, f"Depth: {caption}" + f" ({label})" * (label != FULL), figure)


def _best(runs: dict[str, Run], cells: dict[str, Cell], most: int) -> dict[str, Run]:
    """Choose the rows to draw: all in the table's order, or the `most` with the lowest medians, lowest first."""
    if len(runs) <= most:
        return runs
    medians = {row: math.inf if (median := cells[row].median) is None else median for row in runs}
    return {row: runs[row] for row in sorted(runs, key=medians.__getitem__)[:most]}


def _file_name(what: str, label: str = FULL) -> str:
    return re.sub(r"[^\w.=-]+", "_", what if label == FULL else f"{what}-{label}")[:80]
