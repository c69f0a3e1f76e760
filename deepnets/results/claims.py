"""Tests the claims of a sweep file on the runs of its table."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from deepnets.config.build import own_targets
from deepnets.config.claim import Claim, Measured, Registered, Relation, all_claims, margins_of, registered_on_file
from deepnets.config.project import program
from deepnets.config.quantity import DRAWN, Analysed, ClaimTest
from deepnets.config.schema import axes_of
from deepnets.config.sweep import sweep_of, value_at_scale
from deepnets.config.trust import to_trust
from deepnets.results.cell import FAIL_ABOVE, TRIAL, compared_error, final_loss, net_of
from deepnets.results.columns import (
    FAIL_MARGIN,
    Column,
    arithmetic_of,
    columns_of,
    frame_of,
    in_other_arithmetic,
    is_plain,
    mixes_code,
)
from deepnets.results.finding import MOST, Finding, PairFinding, Side, Waiting
from deepnets.results.read import Run, example, read_runs
from deepnets.results.registered import RegisteredFinding, analysed_number, noted_by, number_of, share_above
from deepnets.results.statistics import WORST_ERROR, holm
from deepnets.results.table import Table
from deepnets.runs.folder import RunFolder

DEPTH_KEYS = ("depth", "units")  # in the node `model`
OTHER_DEPTH = "nets of another depth than the paper's"


def findings_of(table: Table, index: int, sweeps: Path) -> list[Finding]:
    """Test every claim of the table's sweep file, which lies in `sweeps`, on one column of the table.

    A claim about two values of an axis is tested on each pair of rows that differ only in these. The last
    findings are about registered claims that have a test, among them claims of other files that are only about rows of
    this table. Claims are about depth: if the nets have another depth than at the file's full scale, none is tested.
    """
    if not has_claims(table, sweeps) or is_of_other_depth(table, index, sweeps):
        return []
    return [
        *_with_holm(_compared(table, index, sweeps)),
        *(
            RegisteredFinding(claim, _sides(claim, f"{sweep}/{claim.hash}", table, table.columns[index]))
            for sweep, claim in _registered(table, sweeps)
        ),
    ]


def has_claims(table: Table, sweeps: Path) -> bool:
    """Say whether runs of the table can test a claim of its sweep file, or a registered one of another file."""
    return bool(_claims(table, sweeps) or _registered(table, sweeps))


def _claims(table: Table, sweeps: Path) -> list[Claim]:
    return [claim for sweep, claim in all_claims(sweeps) if sweep == table.name and isinstance(claim, Claim)]


def _registered(table: Table, sweeps: Path) -> list[tuple[str, Registered]]:
    return [(sweep, claim) for sweep, claim in registered_on_file(sweeps) if (claim.elsewhere or sweep) == table.name]


def drawn_findings(sweep: str, claims: Sequence[Registered], place: Path) -> list[RegisteredFinding]:
    """Test the claims about nets that an analysis draws itself, on its results in place/analysis/NAME/seed*.

    The analysis gives one number for each seed, and notes the claims on file as a run does.
    """
    return [
        RegisteredFinding(claim, tuple(_drawn(row, test.of, f"{sweep}/{claim.hash}", place) for row in test.rows))
        for claim in claims
        for test in [claim.test]
        if test and isinstance(test.of, Analysed) and claim.elsewhere.startswith(DRAWN)
    ]


def is_of_other_depth(table: Table, index: int, sweeps: Path) -> bool:
    """Say whether the nets of a column have another depth than the paper's, as at scale=mini."""
    models = [run.config["model"] for run in table.columns[index].runs if run.config]
    return are_of_other_depth(models, sweeps / f"{table.name}.yaml")


def are_of_other_depth(models: Iterable[Mapping[str, Any]], file: Path) -> bool:
    """Say whether one of the `models` (configuration nodes) has another depth than the file's full scale."""
    full_depths = {key: value_at_scale(file, f"model.{key}", "full") for key in DEPTH_KEYS}
    return any(model.get(key) != depth for model in models for key, depth in full_depths.items() if depth)


def pairs_of(claim: Claim, rows: Sequence[str], axes: int) -> list[tuple[str, str]]:
    """Return the pairs of rows that a claim compares: for two values of an axis, all pairs that differ only in these.

    If `claim.first` has a value for each axis, of which there are `axes`, it names one row, which need not have runs.
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


def _compared(table: Table, index: int, sweeps: Path) -> list[PairFinding]:
    """Test each claim that compares two rows, or two values of an axis."""
    column, sweep = table.columns[index], sweep_of(sweeps / f"{table.name}.yaml")
    paper = min((cell.fail_above for cell in table.column(index).values()), default=math.inf)
    is_papers = column.is_published_protocol and not math.isinf(paper)
    margin = margins_of(sweep).get(column.scale)
    rows = [row for row in table.rows if row not in table.removed_rows]
    findings = []
    for claim in _claims(table, sweeps):
        name = f"{table.name}/{claim.hash}"
        other, _, second = claim.second.rpartition("/")
        second_rows = _sibling(column, other) if other else column.rows
        pairs = [(claim.first, second)] if other else pairs_of(claim, rows, len(axes_of(sweep)) or 1)
        for one, two in pairs:
            claimed_bound = claim.above if column.is_published_protocol else None
            bound = claimed_bound or (paper if is_papers else _fails_here(column, one))
            sides = tuple(
                _side(
                    row,
                    runs,
                    [_error(run, claim.error, table.published.best_epochs) for run in runs],
                    [_knows(run, claim, name) for run in runs],
                )
                for row, runs in ((one, column.rows.get(one, [])), (two, second_rows.get(two, [])))
            )
            learns = is_papers or claim.relation is not Relation.fails or _learns(table, index)
            findings.append(PairFinding(claim, sides, bound, margin, learns))
    return findings


def arithmetics_of(column: Column) -> set[str]:
    """Return each arithmetic in which the column's runs were trained, as far as it is known."""
    return {arithmetic_of(run) for run in column.runs} - {""}


def _fails_here(column: Column, row: str) -> float:
    """Return the error in percent above which a row fails here: its plain net's mean minus `FAIL_MARGIN`.

    Its plain net are the plain nets of the column that have its depth. If there is none, or if the row is plain itself,
    the error of guessing takes the place of the mean. The bound is not below `FAIL_ABOVE`.
    """
    own = [run for run in column.rows.get(row, []) if run.config]
    alike = [run for run in column.runs if own and run.config and _depth(run) == _depth(own[0]) and is_plain(run)]
    errors = [min(run.error, WORST_ERROR) for run in alike if run.error is not None]
    return max(FAIL_ABOVE, (fmean(errors) if errors and not is_plain(own[0]) else column.guessing) - FAIL_MARGIN)


def _depth(run: Run) -> list[Any]:
    return [run.settings.get(f"model.{key}") for key in DEPTH_KEYS]


def _learns(table: Table, index: int) -> bool:
    """Say whether all rows that learn in the paper also learn here: their mean errors are at most `_fails_here`."""
    learning = {
        row: fmean(min(error, WORST_ERROR) for error in cell.errors)
        for row, cell in table.column(index).items()
        if isinstance(error := cell.published.test_error, float | int) and error <= FAIL_ABOVE and cell.errors
    }
    return all(mean <= _fails_here(table.columns[index], row) for row, mean in learning.items())


def _with_holm(findings: Sequence[PairFinding]) -> list[PairFinding]:
    """Set `p_holm` of each finding; equal tests of the same experiments under different names count once."""
    by_test = {_test(finding): finding.p for finding in findings if finding.p is not None}
    corrected = dict(zip(by_test, holm(list(by_test.values())), strict=True))
    return [replace(finding, p_holm=corrected.get(_test(finding))) for finding in findings]


def _test(finding: PairFinding) -> tuple[Measured, frozenset[frozenset[str]], str | None]:
    """Return what two findings of the same test share: the error, the experiments and, but for rounding, p."""
    pair = frozenset(side.identities for side in finding.sides)
    return finding.claim.error, pair, None if finding.p is None else f"{finding.p:.6g}"


def _sibling(column: Column, other: str) -> dict[str, list[Run]]:
    """Read the rows of the sweep `other` from the folder beside the column's; empty if their arithmetic differs."""
    folders: list[Path] = []
    for grid in sorted({run.grid for run in column.runs}):
        folder = grid.parent / "+".join([other, *grid.name.split("+")[1:]])
        folders += [folder] * folder.is_dir() + in_other_arithmetic([folder])
    columns = columns_of(frame_of(read_runs(list(dict.fromkeys(folders)))))
    alike = [each for each in columns if arithmetics_of(each) == arithmetics_of(column)]
    return alike[0].rows if len(alike) == 1 else {}


def _sides(claim: Registered, name: str, table: Table, column: Column) -> tuple[Side, ...]:
    """Gather each row of a registered claim's test, with the numbers that the test takes from its runs."""
    assert claim.test
    test, rows = claim.test, []
    for each in claim.test.rows:
        other, _, row = each.rpartition("/")
        by_row = column.rows if other in ("", table.name) else _sibling(column, other)
        if test.best:
            rows.append([example(runs, final_loss) for trial, runs in by_row.items() if net_of(trial, runs[0]) == row])
        else:
            rows.append(by_row.get(row, []))
    if test.is_share:
        pairs = [(one, other) for one in rows[0] for other in rows[1] if one.seed == other.seed]
        shares = [share_above(*pair, test) for pair in pairs]
        known = [all(_knows(run, claim, name) for run in pair) for pair in pairs]
        return tuple(_side(row, [pair[i] for pair in pairs], shares, known) for i, row in enumerate(test.rows))
    best_epochs = table.published.best_epochs
    return tuple(
        _side(
            row,
            runs,
            [number_of(run, test, best_epochs) for run in runs],
            [_knows(run, claim, name) for run in runs],
            test,
        )
        for row, runs in zip(test.rows, rows, strict=True)
    )


def _drawn(row: str, of: Analysed, name: str, place: Path) -> Side:
    """Gather the numbers of an analysis that draws nets itself, by seed; seeds without a number are `waiting`."""
    draws = place / "analysis" / of.analysis
    ended: dict[int, tuple[float, bool]] = {}
    for folder in sorted(draws.glob("seed*")):
        noted, number = noted_by(folder, of.analysis), analysed_number(folder, of, free=("seed",))
        seed = noted.get("options", {}).get("seed")
        if number is not None and folder.name == f"seed{seed}":  # a copy under another name does not count
            ended[seed] = (number, name in noted.get("claims", []))
    command = f"{program('analyze')} {of.analysis}{of.words}"
    waiting = [
        Waiting(seed, True, f"{command} --seed {seed} --output {RunFolder(draws)}/seed{seed}")
        for seed in range(len(ended) + MOST)
        if seed not in ended
    ]
    numbers, known = tuple(number for number, _ in ended.values()), tuple(knows for _, knows in ended.values())
    return Side(row, numbers, known, tuple(ended), waiting=tuple(waiting))


def _knows(run: Run, claim: Claim | Registered, name: str) -> bool:
    """Say whether the claim was written down before the run began."""
    # Runs of earlier versions noted the bare hashes of their own sweep's claims, without the sweep's name.
    return bool({name, claim.hash} & {*run.result.get("claims", [])})


def _side(
    row: str,
    runs: Sequence[Run],
    numbers: Sequence[float | None],
    known: Sequence[bool],
    test: ClaimTest | None = None,
) -> Side:
    """Gather the runs of a row that have a number; if the user's code changed between its runs, none of them counts."""
    measured = [] if mixes_code(runs) else [*zip(runs, numbers, known, strict=True)]
    ended = [(run, number, knows) for run, number, knows in measured if number is not None]
    by = TRIAL if test and test.best else "seed"
    waiting = []
    if test and isinstance(of := test.of, Analysed):
        waiting = [
            Waiting(
                run.config["seed"],
                knows and run.folder.has_weights,  # the test does not wait for a run that has no weights to analyse
                f"{program('analyze')} {of.analysis} {shlex.quote(str(run.folder))}{of.words}{_trusting(run.config)}",
            )
            for run, number, knows in measured
            if number is None and run.has_ended
        ]
    return Side(
        row,
        errors=tuple(number for _, number, _ in ended),
        known=tuple(knows for _, _, knows in ended),
        seeds=tuple(-1 if (seed := run.config.get(by)) is None else seed for run, _, _ in ended),
        wrong=tuple(run.test_wrong if number == run.error else None for run, number, _ in ended),
        identities=frozenset(run.experiment for run, _, _ in ended),
        waiting=tuple(waiting),
    )


def _trusting(config: Mapping[str, Any]) -> str:
    """Return the words that let an analysis import the user's own classes in a run's network and data."""
    own = own_targets([config.get("model"), config.get("dataset")])
    return "".join(f" --trust {shlex.quote(name)}" for name in sorted({*map(to_trust, own)}))


def _error(run: Run, measured: Measured, best_epochs: int | None) -> float | None:
    """Return the error that a claim compares; a diverged run counts as `WORST_ERROR`."""
    if run.error is None or math.isinf(run.error) or measured is Measured.test:
        error = compared_error(run, best_epochs)
    else:
        error = run.result.get("train_error")
    return None if error is None else min(error, WORST_ERROR)
