"""Decides from the ended runs alone which seeds of which rows `until=decided` trains next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepnets.config.claim import Claim, Registered, decidable_of
from deepnets.config.schema import axes_of
from deepnets.config.sweep import sweep_of
from deepnets.results.claims import AnyFinding, findings_of, pairs_of
from deepnets.results.finding import LOOKS, MOST, Outcome
from deepnets.results.read import Run
from deepnets.results.table import Table, tables_of


@dataclass(frozen=True)
class Round:
    """The seeds to train next, by row, and why; none if each claim is decided or cannot be decided.

    `findings` are the claims about these rows, tested on the runs so far; `left_out` are claims about other rows.
    """

    why: str
    seeds: Mapping[str, list[int]] = field(default_factory=dict)
    findings: Sequence[AnyFinding] = ()
    left_out: Sequence[str] = ()


def next_round(names: Sequence[str], runs: Sequence[Run], file: Path) -> Round:
    """Choose what to train after `runs`, which are all runs of the grid so far.

    The first round trains one seed of every row that a claim of the sweep's `file` is about. Each later round trains
    the seeds that undecided claims lack for their next look, starting with the claims of the fewest looks.
    """
    sweep = sweep_of(file)
    asked = _asked(sweep, names)
    here = [(claim, rows) for claim, rows, _ in asked if {*rows} <= {*names}]
    left_out = [text for _, rows, text in asked if not {*rows} <= {*names}]
    if not here:
        return Round("no claim is about these rows alone", left_out=left_out)
    ended = {run.row for run in runs if run.has_ended}
    named = dict.fromkeys(row for row in names if any(row in rows for _, rows in here))
    if new := [row for row in named if row not in ended]:
        return Round(f"a first seed of {_rows(len(new))}", {row: [0] for row in new}, left_out=left_out)
    findings = [
        finding
        for finding in _findings(runs, file)
        if (finding.claim, tuple(side.row for side in finding.sides)) in here
    ]
    open_ones = [finding for finding in findings if any(finding.lacking or ())]
    if not open_ones:
        undecided = sum(finding.outcome is Outcome.undecided for finding in findings)
        outcome = f"{undecided} undecided, which no further look decides" if undecided else "all are decided"
        if analyses := [command for finding in findings for command in finding.analyses]:
            outcome += f"; an analysis is lacking: {analyses[0]}" + f" and {len(analyses) - 1} more" * (
                len(analyses) > 1
            )
        return Round(f"claims tested: {len(findings)}; {outcome}", {}, findings, left_out)
    look = min(finding.next_look or MOST for finding in open_ones)
    seeds: dict[str, set[int]] = {}
    asking = [finding for finding in open_ones if finding.next_look == look]
    for finding in asking:
        for side, lacking in zip(finding.sides, finding.lacking or (), strict=True):
            seeds.setdefault(side.row, set()).update(lacking)
    number = [*LOOKS].index(look) + 1
    why = f"look {number} of {len(LOOKS)}, at {look} seeds, for {len(asking)} undecided claim{'s' * (len(asking) > 1)}"
    return Round(why, {row: sorted(lacking) for row, lacking in seeds.items() if lacking}, findings, left_out)


def _asked(sweep: Any, names: Sequence[str]) -> list[tuple[Claim | Registered, tuple[str, ...], str]]:
    """List each claim that runs can decide, its rows and its text; a claim about an axis is listed for each pair."""
    axes = len(axes_of(sweep)) or 1
    asked: list[tuple[Claim | Registered, tuple[str, ...], str]] = []
    for claim in decidable_of(sweep):
        if isinstance(claim, Claim):
            pairs = pairs_of(claim, names, axes)
            asked += [(claim, pair, f"{pair[0]} {claim.relation} {pair[1]}") for pair in pairs]
        elif claim.test:
            asked.append((claim, claim.test.rows, claim.sentence))
    return asked


def _findings(runs: Sequence[Run], file: Path) -> list[AnyFinding]:
    """Test the claims on the column that has the most ended runs; each arithmetic has its own column."""
    (table,) = tables_of(runs, file.parent)
    index = max(range(len(table.columns)), key=lambda index: _ended(table, index))
    return findings_of(table, index, file.parent)


def _ended(table: Table, index: int) -> int:
    return sum(run.has_ended for run in table.columns[index].runs)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"
