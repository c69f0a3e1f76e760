"""The claims of a sweep file, tested on the runs of its table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from deepnets.config.claim import Claim, Measured, Relation, claims_of, margins_of
from deepnets.config.sweep import set_at_scale, sweep_of
from deepnets.results.cell import FAIL_ABOVE, compared_error
from deepnets.results.columns import FULL, Column, arithmetic_of, columns_of, in_other_arithmetic
from deepnets.results.finding import CHANCE, FAIL_MARGIN, Finding, Side
from deepnets.results.read import Run, read_runs
from deepnets.results.series import is_plain
from deepnets.results.statistics import WORST_ERROR, holm
from deepnets.results.table import Table

DEPTH = ("depth", "units")  # of the model's node
OTHER_DEPTH = "nets of another depth than the paper's"


def findings_of(table: Table, index: int, sweeps: Path) -> list[Finding]:
    """Every claim of the table's sweep file in `sweeps`, tested on a column; a claim about an axis for each pair.

    None on nets of another depth than the file's full scale has: the claims are about depth.
    """
    if is_of_other_depth(table, index, sweeps):
        return []
    column, sweep = table.columns[index], sweep_of(sweeps / f"{table.name}.yaml")
    paper = min((cell.fail_above for cell in table.column(index).values()), default=math.inf)
    is_papers = column.is_published_protocol and not math.isinf(paper)
    margin = margins_of(sweep).get(_scale(column))
    findings = []
    for claim in claims_of(sweep):
        name = f"{table.name}/{claim.hash}"
        other, _, second = claim.second.rpartition("/")
        there = _sibling(column, table.name, other) if other else column.rows
        pairs = [(claim.first, second)] if other else pairs_of(claim, table.rows, len(sweep.get("axes") or [""]))
        for one, two in pairs:
            named = claim.above if column.is_published_protocol else None
            bound = named or (paper if is_papers else _fails_here(column, one))
            first, second_side = (
                _side(claim, name, row, runs.get(row, []), table.published.best_epochs)
                for row, runs in ((one, column.rows), (two, there))
            )
            learns = is_papers or claim.relation is not Relation.fails or _learns(table, index, bound)
            findings.append(Finding(claim, first, second_side, bound, margin, learns))
    return _with_holm(findings)


def _scale(column: Column) -> str:
    return next((run.settings.get("scale.name", FULL) for run in column.runs if run.config), FULL)


def _fails_here(column: Column, row: str) -> float:
    """The error from which a row fails where no paper says so, in percent: `FAIL_MARGIN` below the plain net's mean.

    Below that of guessing where the column has no plain net that has ended, or where it is the row itself.
    """
    plain = [run.error for run in column.runs if run.row != row and run.error is not None and is_plain(run)]
    return (fmean(min(error, WORST_ERROR) for error in plain) if plain else CHANCE) - FAIL_MARGIN


def _learns(table: Table, index: int, bound: float) -> bool:
    """Whether the rows that learn in the paper, and have runs here, have mean errors of at most `bound` percent."""
    cells = table.column(index).values()
    learning = [
        cell for cell in cells if isinstance(error := cell.published.test_error, float | int) and error <= FAIL_ABOVE
    ]
    means = [fmean(min(error, WORST_ERROR) for error in cell.errors) for cell in learning if cell.errors]
    return all(mean <= bound for mean in means)


def _with_holm(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their p corrected by Holm; pairs of the same experiments, under whatever names, count once."""
    by_pair = {_pair(finding): finding.p for finding in findings if finding.p is not None}
    corrected = dict(zip(by_pair, holm(list(by_pair.values())), strict=True))
    return [replace(finding, p_holm=corrected.get(_pair(finding))) for finding in findings]


def _pair(finding: Finding) -> tuple[Measured, frozenset[frozenset[str]]]:
    return finding.claim.error, frozenset({finding.first.identities, finding.second.identities})


def is_of_other_depth(table: Table, index: int, sweeps: Path) -> bool:
    """Whether the nets of a column are of another depth than the paper's, as at scale=mini."""
    models = [run.config["model"] for run in table.columns[index].runs if run.config]
    return are_of_other_depth(models, sweeps / f"{table.name}.yaml")


def are_of_other_depth(models: Iterable[Mapping[str, Any]], file: Path) -> bool:
    """Whether one of the `models`, nodes of a run's settings, has another depth than a sweep file sets for all rows."""
    papers = {key: set_at_scale(file, f"model.{key}", "full") for key in DEPTH}
    return any(model.get(key) != depth for model in models for key, depth in papers.items() if depth)


def pairs_of(claim: Claim, rows: Sequence[str], axes: int) -> list[tuple[str, str]]:
    """The rows that the claim is about; where its names are values of an axis, those that differ in them alone.

    A name with a word for each of the `axes` is a row, whether there are runs of it or not.
    """
    if claim.first in rows or claim.second in rows or claim.first.count(",") + 1 >= axes:
        return [(claim.first, claim.second)]
    pairs = []
    for row in rows:
        values = row.split(",")
        partner = ",".join(claim.second if value == claim.first else value for value in values)
        if partner != row and partner in rows:
            pairs.append((row, partner))
    return pairs


def _sibling(column: Column, name: str, other: str) -> dict[str, list[Run]]:
    """The rows of another sweep, trained as the column was, from the folder beside it."""
    folders: list[Path] = []
    for grid in sorted({run.grid for run in column.runs}):
        folder = grid.with_name(other + grid.name.removeprefix(name))
        folders += [folder] * folder.is_dir() + in_other_arithmetic([folder])
    columns = columns_of(read_runs(list(dict.fromkeys(folders))))
    alike = [there for there in columns if _arithmetic(there) == _arithmetic(column)]
    return alike[0].rows if len(alike) == 1 else {}


def _arithmetic(column: Column) -> set[str]:
    return {arithmetic_of(run) for run in column.runs} - {""}


def _side(claim: Claim, name: str, row: str, runs: Sequence[Run], best_epochs: int | None) -> Side:
    ended = [(run, error) for run in runs if (error := _error(run, claim.error, best_epochs)) is not None]
    return Side(
        row,
        errors=tuple(min(error, WORST_ERROR) for _, error in ended),
        # A run frozen before claims were named by their sweep noted the bare hashes of its own sweep's.
        known=tuple(bool({name, claim.hash} & {*run.result.get("claims", [])}) for run, _ in ended),
        seeds=tuple(-1 if run.seed is None else run.seed for run, _ in ended),
        wrong=tuple(run.test_wrong if error == run.error else None for run, error in ended),
        identities=frozenset(run.result.get("identity", str(run.folder)) for run, _ in ended),
    )


def _error(run: Run, measured: Measured, best_epochs: int | None) -> float | None:
    if run.error is None or math.isinf(run.error) or measured is Measured.test:
        return compared_error(run, best_epochs)
    return run.result.get("train_error")
