"""Makes tables of a sweep's rows beside the published numbers, shows them as sheets and compares their rows."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from deepnets.config.sweep import SWEEPS, matching, names_at
from deepnets.errors import UserError
from deepnets.results.cell import FAIL_ABOVE, TRIAL, Cell, Net, is_search, nets_of, search_note
from deepnets.results.columns import (
    FULL,
    Column,
    axes_of_rows,
    choice_of,
    columns_of,
    frame_of,
    is_number,
    mixes_code,
    warnings_of,
)
from deepnets.results.published import FAIL, VERDICT_RULE, Published, PublishedRow, published_of
from deepnets.results.read import Run
from deepnets.results.statistics import (
    CONFIDENCE,
    FEWEST_SEEDS,
    TEST_SET_NOTE,
    Comparison,
    Errors,
    compare_rows,
    rank_agreement,
)
from deepnets.runs.contents import Result
from deepnets.runs.folder import RunFolder
from deepnets.system.files import natural
from deepnets.system.printing import MINUS, NOTHING, Sheet, percent, setting_text, signed

FAILS = (
    "fail, as He et al. 2016 define it: a non-finite median, or one above 20% under the full protocol; it agrees with "
    "a published fail, and with that only."
)
INTERVAL = (
    "95% interval: a bootstrap interval of the median, which should hold the true median in 95 of 100 cases. With up "
    "to five seeds it is the range of their errors; with three it holds the true median in 75 of 100 cases, with "
    "five in 94."
)
DIVERGED = "fail: a non-finite median."
CHANGED = (
    "At another scale, or with other settings than the sweep's, there is no verdict and no difference from the printed "
    "number, and only a non-finite median is a fail."
)
LARGE = "The paper itself prints errors above 20%: only a non-finite median is a fail."
# All other columns are numbers.
TEXT = frozenset({"verdict", "published view", "also published", "settings of the best", "state"})


@dataclass(frozen=True)
class Table:
    """A table of a sweep, or of the single runs, which belong to no sweep; `cells` are by row and column.

    If the sweep is a random search, the rows are its nets, and `trials` is the same table with a row for each trial.
    """

    name: str
    published: Published
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, int], Cell] = field(repr=False)
    trials: "Table | None" = None
    sweeps: Path = SWEEPS  # the folder of its sweep file

    def title(self, index: int) -> str:
        """Return the table's name, the column's label unless that is `FULL`, and the folders that `name=` chose."""
        column = self.columns[index]
        words = [] if column.label == FULL else column.label.split(" ")
        named = {grid.name.split("+")[0] for grid in column.frame["grid"]} - {self.name}
        words += ["in", *sorted(named)] if named and "in" not in words else []  # a label may name the folder already
        return f"{self.name}, {' '.join(words)}" if words else self.name

    def column(self, index: int) -> dict[str, Cell]:
        """Return the cells of a column by row."""
        return {row: self.cells[row, index] for row in self.rows}

    def shown(self, index: int) -> dict[str, Cell]:
        """Return the cells of a column, without the rows that have runs in other columns only."""
        elsewhere = {row for (row, _), cell in self.cells.items() if cell.runs}
        return {row: cell for row, cell in self.column(index).items() if cell.runs or row not in elsewhere}

    def runs(self, index: int) -> list[Run]:
        """Return the runs of a column in the order of the rows."""
        return [run for cell in self.column(index).values() for run in cell.runs]

    @property
    def row_name(self) -> str:
        """The last word of each axis whose values name the rows, as in `block,ordering`; `row` if there are no axes."""
        axes: list[str] = next(
            (run.sweep["axes"] for cell in self.cells.values() for run in cell.runs if run.sweep), []
        )
        kept = [axis for axis in axes if not self.trials or axis != TRIAL]
        return ",".join(re.split(r"[/.]", axis)[-1] for axis in kept) or "row"

    @property
    def warnings(self) -> list[str]:
        """The problems that a reader must know before comparing; see `warnings_of`."""
        of_columns = [warning for column in self.columns for warning in warnings_of(column)]
        removed = self.removed_rows
        more = f" and {len(removed) - 1} more" if len(removed) > 1 else ""
        fate = "its runs are shown until you delete them"
        lines = [f"the sweep's file does not have the row {row}{more}; {fate}" for row in removed[:1]]
        grids = dict.fromkeys(run.grid for column in self.columns for run in column.runs if run.sweep)
        results = [file.parent for grid in grids for file in sorted(grid.glob(f"*/seed*/{Result.FILE}"))]
        lost = [place for place in results if not (place / "config.yaml").exists()]
        lines += [f"{RunFolder(place)}: has a result but no config.yaml, and is left out" for place in lost]
        return [*(f"cannot be read: {problem}" for problem in self.published.problems), *lines, *of_columns]

    @cached_property
    def removed_rows(self) -> list[str]:
        """The trained rows that the sweep's file lacks, as after an edit."""
        scales = {run.settings.get("scale.name", FULL) for cell in self.cells.values() for run in cell.runs}
        declared = [row for scale in {FULL, *scales} for row in _declared(self.sweeps / f"{self.name}.yaml", scale)]
        if self.trials or not declared:
            return []
        trained = {row for (row, _), cell in self.cells.items() if cell.runs}
        return [row for row in self.rows if row in trained and matching(row, declared) is None]

    @property
    def notes(self) -> list[str]:
        """The rules by which intervals are computed, and verdicts and fails decided."""
        printed = [row.test_error for row in self.published.rows.values() if row.test_error is not None]
        notes = [VERDICT_RULE] if printed and any(column.is_published_protocol for column in self.columns) else []
        if FAIL in printed:
            notes.append(FAILS)
        elif any(cell.is_fail for cell in self.cells.values()):
            notes.append(DIVERGED)
        if printed and not all(column.is_published_protocol for column in self.columns):
            notes.append(CHANGED)
        if FAIL in printed and math.isinf(_fail_above(self.published)):
            notes.append(LARGE)
        if any(cell.interval for cell in self.cells.values()):
            notes.append(INTERVAL)
        return notes


def tables_of(runs: Sequence[Run], sweeps: Path = SWEEPS, project_sweeps: Path | None = None) -> list[Table]:
    """Make a table for each sweep; its columns are the folders, scales and protocols in which it was trained.

    Published numbers come from the first sweep file found in `project_sweeps`, in `sweeps`, or beside the runs.
    Raises what `published_of` raises.
    """
    tables = []
    for name, members in frame_of(runs).groupby("table", sort=False):
        grids = members["grid"].unique()
        files = [place / f"{name}.yaml" for place in (*filter(None, [project_sweeps]), sweeps, *grids)]
        # The folder of a copied sweep may have any name, and a record does not note the sweep.
        files += [grid / f"{run.noted_sweep}.yaml" for run in members["run"] if run.noted_sweep for grid in grids]
        if any(run.sweep for run in members["run"]):
            files += [beside[0] for grid in grids if len(beside := [*grid.glob("*.yaml")]) == 1]
        file = next(filter(Path.is_file, files), sweeps / f"{name}.yaml")
        tables.append(
            _table(
                file.stem,
                members,
                file.parent,
                file if file.is_file() and file.parent in (project_sweeps, sweeps) else None,
            )
        )
    return tables


def result_sheets(table: Table) -> list[Sheet]:
    """Show every row beside its published numbers, a sheet for each column of the table."""
    return [result_sheet(table, index) for index in range(len(table.columns))]


def result_sheet(table: Table, index: int) -> Sheet:
    """Show the rows of the column `index`, with a note on what the numbers are."""
    lines = {row: cell.facts() for row, cell in table.shown(index).items()}
    header = (table.row_name, *next(iter(lines.values()), ()))
    if table.trials:
        notes = [search_note(table.trials.column(index).values())]
    else:
        notes = ["Test error in percent; training: median error of the last epoch, on its images as trained."]
        notes += [f"Published: {table.published.statistic}."] if table.published.statistic else []
        if count := table.published.best_epochs:
            notes.append(
                f"Best epochs: the mean of a run's {count} lowest test errors, as published; median over runs. "
                "Verdict, difference, interval and claims are by it."
            )
        notes += _rankings(table, index)
    counts = Counter(run.result["precision"] for run in table.columns[index].runs if "precision" in run.result)
    if counts:
        precisions = [
            f"{name} ({count} run{'s' * (count > 1)})" if len(counts) > 1 else name
            for name, count in counts.most_common()
        ]
        notes.append(f"Precision: {', '.join(precisions)}.")
    cells = tuple((row, *facts.values()) for row, facts in lines.items())
    return Sheet(table.title(index), header, cells, frozenset(header[1:]) - TEXT, " ".join(notes))


def overview_sheet(table: Table) -> Sheet | None:
    """Show the columns beside one another; None if there is only one."""
    if len(table.columns) < 2:
        return None
    header = (table.row_name, "published", *(column.label for column in table.columns))
    columns = [table.shown(index) for index in range(len(table.columns))]
    lines = []
    for row in table.rows:
        cells = [column[row].headline if row in column else NOTHING for column in columns]
        lines.append((row, table.cells[row, 0].published.text, *cells))
    title = f"{table.name}: one number of each column; columns are never averaged with one another"
    return Sheet(title, header, tuple(lines), frozenset(header[1:]))


def comparison_sheets(table: Table) -> list[tuple[Sheet, str]]:
    """Compare every pair of rows, column by column; each sheet comes with a line about the row of the lowest mean."""
    sheets = []
    for index in range(len(table.columns)):
        errors = [errors_of(row, cell.runs) for row, cell in table.column(index).items() if cell.errors]
        if len(errors) > 1:
            title, comparisons = table.title(index), compare_rows(errors)
            lowest = _about_lowest(errors, comparisons)
            sheets.append((comparison_sheet(f"{title}: do rows differ?", comparisons), lowest and f"{title}: {lowest}"))
    return sheets


def _about_lowest(rows: Sequence[Errors], comparisons: Sequence[Comparison]) -> str:
    """Say which row has the lowest mean of those with enough seeds, and which rows are not shown to differ from it.

    Rows of mixed code are left out. Empty if no pair could be tested.
    """
    means = {
        row.row: fmean(row.values)
        for row in rows
        if len(row.values) >= FEWEST_SEEDS and all(map(math.isfinite, row.values)) and not row.is_mixed
    }
    if not means or all(pair.why_not for pair in comparisons):
        return ""
    lowest = min(means, key=lambda row: means[row])
    pairs = [pair for pair in comparisons if lowest in (pair.first, pair.second)]
    higher = {row for x in pairs if not x.why_not and x.p_corrected <= 1 - CONFIDENCE for row in (x.first, x.second)}
    like = sorted(means.keys() - higher - {lowest}, key=lambda row: means[row])
    which = f"lowest mean of {FEWEST_SEEDS} seeds or more, none diverged: '{lowest}'"
    if not like:
        return f"{which}; every other such row is higher (Welch, Holm)"
    names = ", ".join(f"'{row}'" for row in like[:3]) + f" and {len(like) - 3} more" * (len(like) > 3)
    return f"{which}; it is not shown to differ from {names} (Welch, Holm)"


def errors_of(row: str, runs: Sequence[Run]) -> Errors:
    """Gather the errors of the runs that have ended, the test images that each got wrong, and checksums of weights."""
    ended = [run for run in runs if run.error is not None]
    errors = tuple(run.error for run in ended if run.error is not None)
    weights = tuple(run.result.get("weights_sha256") for run in ended)
    return Errors(row, errors, tuple(run.test_wrong for run in ended), weights, mixes_code(runs))


def comparison_sheet(title: str, comparisons: Sequence[Comparison]) -> Sheet:
    """Show the pairs that could be tested, a line each; the note counts the others by their reason."""
    header = (
        *("row", "n", "difference", "interval", "test set", "Hedges' g", "p", "p (Holm)"),
        *("other row", "error of the row"),
    )
    tested = [pair for pair in comparisons if not pair.why_not]
    untested = Counter(pair.why_not for pair in comparisons if pair.why_not)
    notes = []
    if tested:
        notes.append(
            f"Welch's t test on the mean test errors, {_pairs(len(tested))}: p corrected by Holm; intervals hold with "
            f"{100 * CONFIDENCE:.0f}% for all pairs together (Bonferroni). Holm's test is sharper than the intervals: "
            f"it may show a difference whose interval holds 0. {TEST_SET_NOTE}"
        )
    notes += [f"{_pairs(count).capitalize()} not tested: {reason}." for reason, count in untested.items()]
    return Sheet(title, header, tuple(map(_comparison, tested)), frozenset(header[1:8]), " ".join(notes))


def _table(name: str, runs: pd.DataFrame, sweeps: Path, edited: Path | None) -> Table:
    published = published_of(name, sweeps) if any(run.sweep for run in runs["run"]) else Published()
    declared = _declared(sweeps / f"{name}.yaml", FULL)
    order = {row: matching(row, declared) for row in {*runs["row"]} - published.rows.keys()}
    shown: dict[str, Run] = {}  # the first run of each row whose configuration can be read
    for run in runs["run"]:
        if run.row not in shown or not shown[run.row].config:
            shown[run.row] = run
    axes = [] if any(run.sweep for run in shown.values()) else axes_of_rows(shown.values())

    def place(row: str) -> tuple[Any, ...]:
        choices = [choice_of(shown[row], axis) for axis in axes]
        keys = [(0, value, []) if is_number(value) else (1, 0.0, natural(setting_text(value))) for value in choices]
        return math.inf if order[row] is None else order[row], *keys, natural(row)

    trained = sorted(order, key=place)
    rows, columns = (*published.rows, *trained), tuple(columns_of(runs, edited))
    cells = {}
    for index, column in enumerate(columns):
        # A paper's bound holds for its full protocol, not for a shorter one and not for single runs.
        is_table = any(run.sweep for run in column.runs)
        bound = _fail_above(published) if is_table and column.is_published_protocol else math.inf
        for row in rows:
            printed, members = published.rows.get(row, PublishedRow()), tuple(column.rows.get(row, ()))
            cells[row, index] = Cell(members, printed, column.is_published_protocol, bound)
    table = Table(name, published, rows, columns, cells, sweeps=sweeps)
    return _by_net(table) if is_search(runs["run"]) else table


def _declared(file: Path, scale: str) -> list[str]:
    """Return the rows at a scale, in the order of the sweep file; none if they cannot be read from the file."""
    try:
        return names_at(file, scale)
    except (UserError, ValueError):
        return []


def _by_net(trials: Table) -> Table:
    nets = [nets_of(trials.column(index)) for index in range(len(trials.columns))]
    rows = tuple(dict.fromkeys(net for column in nets for net in column))
    missing = Net((), PublishedRow(), True, math.inf)
    cells: dict[tuple[str, int], Cell] = {
        (row, i): column.get(row, missing) for i, column in enumerate(nets) for row in rows
    }
    return Table(trials.name, trials.published, rows, trials.columns, cells, trials, trials.sweeps)


def _fail_above(published: Published) -> float:
    """Return `FAIL_ABOVE` if the paper prints fails but no number above it; infinity otherwise."""
    printed = [row.test_error for row in published.rows.values()]
    is_large = any(isinstance(error, int | float) and error > FAIL_ABOVE for error in printed)
    return FAIL_ABOVE if FAIL in printed and not is_large else math.inf


def _rankings(table: Table, index: int) -> list[str]:
    """Say how well our ranking of the rows by median agrees with the paper's; fails rank last.

    Rows are ranked together only if they differ in nothing but the last axis, so that data sets or blocks, which the
    first axis sets, are not compared.
    """
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, cell in table.column(index).items():
        if cell.median is not None and (error := cell.published.test_error) is not None:
            pair = math.inf if cell.is_fail else cell.median, math.inf if isinstance(error, str) else error
            groups[row.rpartition(",")[0]].append(pair)
    rankings = []
    for group, pairs in groups.items():
        measured, printed = zip(*pairs, strict=True)
        if agreement := rank_agreement(measured, printed):
            tau, p = agreement
            ranked = f"{len(pairs)} rows{group and f' of {group}'}"
            rankings.append(f"Ranking of {ranked}: Kendall's τ = {signed(tau)} with the published one (p = {p:.2g}).")
    return rankings


def _comparison(pair: Comparison) -> tuple[str, ...]:
    return (
        pair.first,
        f"{pair.seeds[0]}, {pair.seeds[1]}",
        signed(pair.difference),
        f"{signed(pair.low)} to {signed(pair.high)}",
        percent(pair.image_noise),
        f"{pair.effect:+.2f}".replace("-", MINUS),
        f"{pair.p:.2g}",
        f"{pair.p_corrected:.2g}",
        pair.second,
        pair.answer,
    )


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"
