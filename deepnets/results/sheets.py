"""The results of a table as sheets: rows beside the published numbers, columns side by side, rows compared."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from deepnets.config.claim import claims_of
from deepnets.config.sweep import sweep_of
from deepnets.results.claims import OTHER_DEPTH, findings_of, is_of_other_depth
from deepnets.results.finding import IMAGE_NOISE, RULE, Finding
from deepnets.results.read import Run
from deepnets.results.search import search_note
from deepnets.results.sheet import MINUS, NOTHING, Sheet, percent, signed
from deepnets.results.statistics import CONFIDENCE, Comparison, Errors, compare_rows, rank_agreement
from deepnets.results.table import Table

CLAIM_HEADER = (
    "claim",
    "outcome",
    "error",
    "place",
    "n",
    "difference",
    "interval",
    "look",
    "p (Holm)",
    "test set",
    "P",
    "next",
)
CLAIM_NUMBERS = frozenset(CLAIM_HEADER[4:])
TEXT = frozenset({"row", "verdict", "published view", "also published", "state"})  # all other columns are numbers


def result_sheets(table: Table) -> list[Sheet]:
    """Every row beside what is published about it; one sheet for each column of the table."""
    return [result_sheet(table, index) for index in range(len(table.columns))]


def result_sheet(table: Table, index: int) -> Sheet:
    """The rows of the column `index`, with a note on what the numbers are."""
    lines = {row: cell.facts() for row, cell in table.column(index).items()}
    header = ("row", *next(iter(lines.values()), ()))
    if table.trials:
        notes = [search_note(table.trials.column(index).values())]
    else:
        notes = ["Test error in percent; training: median error of the last epoch, on augmented images."]
        notes += [f"Published: {table.published.statistic}."] if table.published.statistic else []
        if count := table.published.best_epochs:
            notes.append(
                f"Best epochs: the mean of a run's {count} lowest test errors, as published; median over runs. "
                "Verdict, difference, interval and claims are by it."
            )
        notes += _rankings(table, index)
    counts = Counter(run.result["precision"] for run in table.columns[index].runs if "precision" in run.result)
    if counts:
        words = [
            f"{name} ({count} run{'s' * (count > 1)})" if len(counts) > 1 else name
            for name, count in counts.most_common()
        ]
        notes.append(f"Precision: {', '.join(words)}.")
    cells = tuple((row, *facts.values()) for row, facts in lines.items())
    return Sheet(table.title(index), header, cells, frozenset(header) - TEXT, " ".join(notes))


def overview_sheet(table: Table) -> Sheet | None:
    """The columns beside one another; None where there is but one."""
    if len(table.columns) < 2:
        return None
    header = ("row", "published", *(column.label for column in table.columns))
    lines = []
    for row in table.rows:
        cells = [table.cells[row, index] for index in range(len(table.columns))]
        lines.append((row, cells[0].published.text, *(cell.headline for cell in cells)))
    title = f"{table.name}: one number of each column; columns are never averaged with one another"
    return Sheet(title, header, tuple(lines), frozenset(header[1:]))


def claim_sheets(table: Table, sweeps: Path | None = None) -> list[Sheet]:
    """The claims of the table's sweep, tested on each column; none without claims."""
    sweeps = sweeps or table.sweeps
    if table.trials or not claims_of(sweep_of(sweeps / f"{table.name}.yaml")):
        return []
    sheets = []
    for index in range(len(table.columns)):
        lines = tuple(map(claim_line, findings_of(table, index, sweeps)))
        note = f"Not tested: {OTHER_DEPTH}." if is_of_other_depth(table, index, sweeps) else RULE
        sheets.append(Sheet(f"{table.title(index)}: claims", CLAIM_HEADER, lines, CLAIM_NUMBERS, note))
    return sheets


def claim_line(finding: Finding) -> tuple[str, ...]:
    """The cells of `CLAIM_HEADER`."""
    first, second = finding.seeds
    before = f" ({finding.seen_before} seen before)" if finding.seen_before else ""
    interval = f"{signed(finding.interval[0])} to {signed(finding.interval[1])}" if finding.interval else NOTHING
    return (
        f"{finding.first.row} {finding.claim.relation} {finding.other}",
        finding.outcome,
        finding.claim.error,
        finding.claim.place,
        f"{first}, {second}{before}",
        signed(finding.difference),
        interval,
        str(finding.looks[-1].seeds) if finding.looks else "",
        NOTHING if finding.p_holm is None else f"{finding.p_holm:.2g}",
        percent(finding.image_noise),
        percent(finding.superiority),
        _next_look(finding),
    )


def _next_look(finding: Finding) -> str:
    """The seeds that each row lacks for the next look, and the chance that it shows the difference seen so far."""
    if finding.lacking is None:
        return ""
    first, second = (" ".join(map(str, seeds)) or "none" for seeds in finding.lacking)
    chance = f" ({100 * finding.chance:.0f}%)" if finding.chance is not None else ""
    return (f"seeds {first}" if first == second else f"seeds {first} and {second}") + chance


def comparison_sheets(table: Table) -> list[Sheet]:
    """Every pair of rows of a column."""
    sheets = []
    for index in range(len(table.columns)):
        errors = [errors_of(row, cell.runs) for row, cell in table.column(index).items() if cell.errors]
        if len(errors) > 1:
            sheets.append(comparison_sheet(f"{table.title(index)}: do rows differ?", compare_rows(errors)))
    return sheets


def errors_of(row: str, runs: Sequence[Run]) -> Errors:
    """The errors of the runs that have ended, with the test images each got wrong."""
    ended = [(run.error, run.test_wrong) for run in runs if run.error is not None]
    return Errors(row, tuple(error for error, _ in ended), tuple(wrong for _, wrong in ended))


def comparison_sheet(title: str, comparisons: Sequence[Comparison]) -> Sheet:
    """The pairs that could be tested, a line each; the note counts the others by their reason."""
    header = (
        *("row", "n", "difference", "interval", "test set", "Hedges' g", "p", "p (Holm)"),
        *("other row", "error of the row"),
    )
    tested = [pair for pair in comparisons if not pair.why_not]
    silent = Counter(pair.why_not for pair in comparisons if pair.why_not)
    notes = []
    if tested:
        notes.append(
            f"Welch's t test on the mean test errors, {_pairs(len(tested))}: p corrected by Holm; intervals hold with "
            f"{100 * CONFIDENCE:.0f}% for all pairs together (Bonferroni). Holm's test is sharper than the intervals: "
            f"it may show a difference whose interval holds 0. {IMAGE_NOISE}"
        )
    notes += [f"{_pairs(count).capitalize()} not tested: {reason}." for reason, count in silent.items()]
    return Sheet(title, header, tuple(map(_comparison, tested)), frozenset(header[1:8]), " ".join(notes))


def _rankings(table: Table, index: int) -> list[str]:
    """How far the medians rank the rows as the paper does, fails last; only what varies in the last axis is ranked.

    So that blocks, depths or data sets, which a first axis sets, are not compared with one another.
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
            of = f"{len(pairs)} rows{group and f' of {group}'}"
            rankings.append(f"Ranking of {of}: Kendall's τ = {signed(tau)} with the published one (p = {p:.2g}).")
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
        pair.claim,
    )


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"
