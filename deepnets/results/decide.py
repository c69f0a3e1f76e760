"""Which seeds of which rows `until=decided` trains next: it follows from the runs that have ended alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deepnets.config.claim import claims_of
from deepnets.config.schema import axes_of
from deepnets.config.sweep import sweep_of
from deepnets.results.claims import findings_of, pairs_of
from deepnets.results.finding import LOOKS, MOST, Finding, Outcome
from deepnets.results.read import Run
from deepnets.results.table import Table, tables_of


@dataclass(frozen=True)
class Round:
    """The seeds to train next, by row, and why; none where every claim is decided or no number of seeds decides it.

    `findings` are the claims about these rows on the runs so far; `left_out` the claims about rows that are not here.
    """

    why: str
    seeds: Mapping[str, list[int]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    left_out: Sequence[str] = ()


def next_round(names: Sequence[str], runs: Sequence[Run], file: Path) -> Round:
    """What to train after `runs`, which are all those of the grid.

    First one seed of every row that a claim of the sweep's file is about, and then what the undecided claims that are
    furthest behind lack for their next look.
    """
    sweep = sweep_of(file)
    claims, axes = claims_of(sweep), len(axes_of(sweep)) or 1
    pairs = [(claim, pair) for claim in claims for pair in pairs_of(claim, names, axes)]
    here = [(claim, pair) for claim, pair in pairs if {*pair} <= {*names}]
    left_out = [
        f"{first} {claim.relation} {second}" for claim, (first, second) in pairs if (claim, (first, second)) not in here
    ]
    ended = {run.row for run in runs if run.has_ended}
    named = dict.fromkeys(row for row in names if any(row in pair for _, pair in here))
    if new := [row for row in named if row not in ended]:
        return Round(f"a first seed of {_rows(len(new))}", {row: [0] for row in new}, left_out=left_out)
    findings = [
        finding
        for finding in _findings(runs, file)
        if any((finding.claim, (finding.first.row, finding.second.row)) == each for each in here)
    ]
    open_ones = [finding for finding in findings if finding.lacking]
    if not open_ones:
        undecided = sum(finding.outcome is Outcome.undecided for finding in findings)
        said = f"{undecided} undecided, which no further look decides" if undecided else "all are decided"
        return Round(f"claims tested: {len(findings)}; {said}", {}, findings, left_out)
    look = min(finding.next_look or MOST for finding in open_ones)
    seeds: dict[str, set[int]] = {}
    asking = [finding for finding in open_ones if finding.next_look == look]
    for finding in asking:
        for side, lacking in zip((finding.first, finding.second), finding.lacking or (), strict=True):
            seeds.setdefault(side.row, set()).update(lacking)
    number = [*LOOKS].index(look) + 1
    why = f"look {number} of {len(LOOKS)}, at {look} seeds, for {len(asking)} undecided claim{'s' * (len(asking) > 1)}"
    return Round(why, {row: sorted(lacking) for row, lacking in seeds.items() if lacking}, findings, left_out)


def _findings(runs: Sequence[Run], file: Path) -> list[Finding]:
    """The claims tested on the column with the most runs that have ended; runs in another arithmetic are another."""
    (table,) = tables_of(runs, file.parent)
    index = max(range(len(table.columns)), key=lambda index: _ended(table, index))
    return findings_of(table, index, file.parent)


def _ended(table: Table, index: int) -> int:
    return sum(run.has_ended for run in table.columns[index].runs)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"
