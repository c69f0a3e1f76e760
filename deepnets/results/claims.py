"""The claims of a sweep file, tested on the runs of its table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepnets.config.claim import Claim, Measured, claims_of
from deepnets.config.sweep_file import set_at_scale, sweep_of
from deepnets.results.cell import compared_error
from deepnets.results.columns import Column, arithmetic_of, columns_of, in_other_arithmetic
from deepnets.results.finding import FAILS_AT_SCALE, Finding, Side
from deepnets.results.read import Run, read_runs
from deepnets.results.statistics import WORST_ERROR
from deepnets.results.table import Table

DEPTH = ("depth", "units")  # of the model's node
OTHER_DEPTH = "nets of another depth than the paper's"


def findings_of(table: Table, index: int, sweeps: Path) -> list[Finding]:
    """Every claim of the table's sweep file in `sweeps`, tested on a column; a claim about an axis for each pair.

    None on nets of another depth than the file's full scale has: the claims are about depth.
    """
    if is_of_other_depth(table, index, sweeps):
        return []
    column, cells = table.columns[index], table.column(index)
    bound = min((cell.fail_above for cell in cells.values()), default=math.inf)
    if not column.is_published_protocol or math.isinf(bound):  # no paper says how large a failed run's error is
        bound = FAILS_AT_SCALE
    findings = []
    sweep = sweep_of(sweeps / f"{table.name}.yaml")
    for claim in claims_of(sweep):
        other, _, second = claim.second.rpartition("/")
        there = _sibling(column, table.name, other) if other else column.rows
        pairs = [(claim.first, second)] if other else pairs_of(claim, table.rows, len(sweep.get("axes") or [""]))
        for one, two in pairs:
            first, second_side = (
                _side(claim, f"{table.name}/{claim.hash}", row, runs.get(row, []), table.published.best_epochs)
                for row, runs in ((one, column.rows), (two, there))
            )
            named = claim.above if column.is_published_protocol else None
            findings.append(Finding(claim, first, second_side, named or bound))
    return findings


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
    # A run frozen before claims were named by their sweep noted the bare hashes of its own sweep's.
    known = tuple(bool({name, claim.hash} & {*run.result.get("claims", [])}) for run, _ in ended)
    wrong = tuple(run.test_wrong if error == run.error else None for run, error in ended)
    return Side(row, wrong, tuple(min(error, WORST_ERROR) for _, error in ended), known)


def _error(run: Run, measured: Measured, best_epochs: int | None) -> float | None:
    if run.error is None or math.isinf(run.error) or measured is Measured.test:
        return compared_error(run, best_epochs)
    return run.result.get("train_error")
