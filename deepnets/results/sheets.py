"""The results of a table as sheets: ours beside the published, our columns side by side, rows compared."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from deepnets.results.cell import FAIL, Cell, Published
from deepnets.results.columns import OURS
from deepnets.results.search import is_search, search_sheet
from deepnets.results.sheet import MINUS, NOTHING, Sheet, percent, signed
from deepnets.results.statistics import CONFIDENCE, Comparison, Errors, compare_rows, rank_agreement
from deepnets.results.table import Table

# The verdict comes first, where a narrow window shows it too.
RESULTS = ("row", "verdict", "median", "published", "difference", "n", "mean ± std", "95% interval", "best")
RESULTS += ("also published", "state")
RESULT_NUMBERS = frozenset(RESULTS[2:9])


def result_sheets(table: Table) -> list[Sheet]:
    """The table of the paper with our column; one sheet for each of our columns. Draws of a search are summed up."""
    sheets = []
    for index, column in enumerate(table.columns):
        if is_search(column.runs):
            draws = {row: runs for row in table.rows if (runs := column.rows.get(row))}
            sheets.append(search_sheet(column_title(table, index), draws))
        else:
            sheets.append(_rows_sheet(table, index, column_title(table, index)))
    return sheets


def draw_sheets(table: Table) -> list[Sheet]:
    """The single draws of the columns that are searches."""
    searches = [index for index, column in enumerate(table.columns) if is_search(column.runs)]
    return [_rows_sheet(table, index, f"{column_title(table, index)}: draws") for index in searches]


def column_title(table: Table, index: int) -> str:
    """The table's name and what is special about the column."""
    label = table.columns[index].label
    return table.name if label == OURS else f"{table.name}, {label}"


def overview_sheet(table: Table) -> Sheet | None:
    """Our columns beside one another: the medians; None where there is but one."""
    if len(table.columns) < 2:
        return None
    header = ("row", "published", *(column.label for column in table.columns))
    lines = []
    for row in table.rows:
        cells = [table.cells[row, index] for index in range(len(table.columns))]
        words = [f"{_median(cell)} (n = {len(cell.errors)})" if cell.errors else cell.remarks for cell in cells]
        lines.append((row, published_text(cells[0].published), *words))
    title = f"{table.name}: medians of the columns, which are never averaged with one another"
    return Sheet(title, header, tuple(lines), frozenset(header[1:]))


def comparison_sheets(table: Table) -> list[Sheet]:
    """Every pair of rows of a column."""
    sheets = []
    for index, column in enumerate(table.columns):
        if is_search(column.runs):  # its rows are draws of one thing, not things to compare
            continue
        errors = [Errors(row, tuple(errors)) for row in table.rows if (errors := table.cells[row, index].errors)]
        if len(errors) > 1:
            sheets.append(comparison_sheet(f"{column_title(table, index)}: do rows differ?", compare_rows(errors)))
    return sheets


def comparison_sheet(title: str, comparisons: Sequence[Comparison]) -> Sheet:
    """The pairs that could be tested, a line each; the note counts the others by their reason."""
    header = ("row", "n", "difference", "interval", "Hedges' g", "p", "p (Holm)", "other row", "error of the row")
    tested = [pair for pair in comparisons if pair.p is not None]
    silent = Counter(pair.claim for pair in comparisons if pair.p is None)
    notes = []
    if tested:
        notes.append(
            f"Welch's t test on the mean test errors, {_pairs(len(tested))}: p corrected by Holm; intervals hold with "
            f"{100 * CONFIDENCE:.0f}% for all pairs together (Bonferroni). Holm's test is sharper than the intervals: "
            "it may show a difference whose interval holds 0."
        )
    notes += [f"{_pairs(count).capitalize()} without a claim: {reason}." for reason, count in silent.items()]
    return Sheet(title, header, tuple(map(_comparison, tested)), frozenset(header[1:7]), " ".join(notes))


def published_text(published: Published) -> str:
    """The number that ours is compared with."""
    value = published.test_error
    return value if isinstance(value, str) else percent(value)


def _rows_sheet(table: Table, index: int, title: str) -> Sheet:
    lines = [(row, *_result(table.cells[row, index])) for row in table.rows]
    notes = ["Test error in percent."]
    if table.statistic:
        notes.append(f"Published: {table.statistic}.")
    notes += _rankings({row: table.cells[row, index] for row in table.rows})
    note = " ".join(notes)
    return Sheet(title, RESULTS, tuple(lines), RESULT_NUMBERS, note)


def _rankings(cells: Mapping[str, Cell]) -> list[str]:
    """How far our medians rank the rows as the paper does, fails last; only what varies in the last axis is ranked.

    So that blocks, depths or data sets, which a first axis sets, are not compared with one another.
    """
    groups = defaultdict(list)
    for row, cell in cells.items():
        if cell.median is not None and cell.published.test_error is not None:
            groups[row.rpartition(",")[0]].append(cell)
    rankings = []
    for group, printed in groups.items():
        ours = [math.inf if cell.is_fail else cell.median for cell in printed]
        theirs = [math.inf if cell.published.test_error == FAIL else cell.published.test_error for cell in printed]
        if agreement := rank_agreement(ours, theirs):
            tau, p = agreement
            of = f"{len(printed)} rows{group and f' of {group}'}"
            rankings.append(f"Ranking of {of}: Kendall's τ = {signed(tau)} with the published one (p = {p:.2g}).")
    return rankings


def _result(cell: Cell) -> tuple[str, ...]:
    spread = f"{percent(cell.mean)} ± {percent(cell.std)}" if cell.std is not None else percent(cell.mean)
    difference = signed(cell.difference)
    interval = f"{percent(cell.interval[0])} to {percent(cell.interval[1])}" if cell.interval else NOTHING
    return (
        cell.verdict,
        _median(cell),
        published_text(cell.published),
        difference if cell.is_published_protocol or difference == NOTHING else f"({difference})",
        str(len(cell.errors)),
        spread,
        interval,
        percent(cell.best),
        _also_published(cell.published),
        cell.remarks,
    )


def _also_published(published: Published) -> str:
    """`mean 7.69 ± 0.12, best 7.60`."""
    words = []
    if published.mean is not None:
        words.append(f"mean {published.mean:.2f}" + (f" ± {published.std:.2f}" if published.std is not None else ""))
    if published.best is not None:
        words.append(f"best {published.best:.2f}")
    return ", ".join(words)


def _median(cell: Cell) -> str:
    if cell.is_fail:
        return FAIL if math.isinf(cell.median) else f"{FAIL} ({percent(cell.median)})"
    return percent(cell.median)


def _comparison(pair: Comparison) -> tuple[str, ...]:
    return (
        pair.first,
        f"{pair.seeds[0]}, {pair.seeds[1]}",
        signed(pair.difference),
        f"{signed(pair.low)} to {signed(pair.high)}",
        f"{pair.effect:+.2f}".replace("-", MINUS),
        f"{pair.p:.2g}",
        f"{pair.p_corrected:.2g}",
        pair.second,
        pair.claim,
    )


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"
