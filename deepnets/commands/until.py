"""`until=decided`: trains the rows that claims are about, tests the claims, and trains more seeds for undecided claims.

Only the runs that have ended decide which seeds of which rows are trained next.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deepnets.config.build import build
from deepnets.config.claim import Claim, Registered, decidable_of
from deepnets.config.schema import Config, Row, axes_of
from deepnets.config.sweep import sweep_of
from deepnets.errors import UserError, listed
from deepnets.launch.grid import check_tables, launch
from deepnets.launch.plan import compute_of, show_plan
from deepnets.launch.reuse import file_of_sweep
from deepnets.launch.slurm import Slurm
from deepnets.results.cell import hours_of
from deepnets.results.claims import OTHER_DEPTH, are_of_other_depth, findings_of, pairs_of
from deepnets.results.claims_page import claim_answers
from deepnets.results.finding import LOOKS, MOST, Finding, Outcome
from deepnets.results.read import Run, read_runs
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import run_folders
from deepnets.runs.naming import folder_of, folders_of
from deepnets.system.printing import print_line

MOST_ANSWERS = 100

Asked = tuple[str, int]  # a run, by its row and its seed


def train_until_decided(rows: Sequence[Row]) -> int:
    """Train round after round until every claim is decided, ten seeds are trained or the hours complete no look.

    The next round depends only on the results in the sweep's folder, so the same command may continue on any machine.
    With `plan=true` it only prints the plan of the next round. Returns the exit code: 1 if a run failed.

    Raises:
        UserError: the rows are trials of a search, of several grids or of another depth; their sweep has no claims; the
            runs of the next round have ended, but count for no claim; or the hours are not enough for one run.
    """
    grid, printed = _Grid.of(rows), set[str]()
    while True:
        runs = grid.runs()
        planned = next_round([*grid.rows], runs, grid.file)
        for text in {*planned.left_out} - printed:
            print_line(f"not decided here, as its rows are not among these: {text}")
        printed |= {*planned.left_out}
        chosen = grid.affordable(planned, runs)
        if not chosen:
            return 0
        if grid.first.plan:
            return show_plan(chosen)
        if all(folder.is_complete for folder in folders_of(chosen)):
            names = listed(folder.path.parent.name for folder in folders_of(chosen))
            raise UserError(f"{names}: their runs have ended, but count for no claim; the report says why")
        if code := launch(chosen):
            return code
        if not all(folder.is_complete for folder in folders_of(chosen)):
            launcher = build("launcher", grid.first.launcher)
            if isinstance(launcher, Slurm):
                print_line(launcher.submit_next(folders_of(chosen), sys.argv[1:]))
            else:
                print_line("the round trains elsewhere; the same command goes on when it has ended")
            return 0


@dataclass(frozen=True)
class Round:
    """The seeds to train next, by row, and why; no seeds if more runs would decide no claim.

    `looks` are the runs that each undecided claim lacks for its next look, which needs all of them.
    `findings` are the claims about these rows, tested on the runs so far; `left_out` are the claims about other rows.
    """

    why: str
    seeds: Mapping[str, list[int]] = field(default_factory=dict)
    looks: Sequence[frozenset[Asked]] = ()
    findings: Sequence[Finding] = ()
    left_out: Sequence[str] = ()


def next_round(names: Sequence[str], runs: Sequence[Run], file: Path) -> Round:
    """Choose what to train after `runs`, which are all runs of the grid so far.

    The first round trains one seed of every row that a claim of the sweep's `file` is about. Each later round trains
    the seeds that undecided claims lack for their next look, first for the claims whose next look needs fewest seeds.
    """
    sweep = sweep_of(file)
    asked = _asked(sweep, names)
    about_these = [(claim, rows) for claim, rows, _ in asked if {*rows} <= {*names}]
    left_out = [text for _, rows, text in asked if not {*rows} <= {*names}]
    if not about_these:
        return Round("no claim is about these rows alone", left_out=left_out)
    ended = {run.row for run in runs if run.has_ended}
    claimed = [row for row in names if any(row in rows for _, rows in about_these)]
    if new := [row for row in dict.fromkeys(claimed) if row not in ended]:
        return Round(f"a first seed of {_rows(len(new))}", {row: [0] for row in new}, left_out=left_out)
    findings = [
        finding
        for finding in _findings(runs, file)
        if (finding.claim, tuple(side.row for side in finding.sides)) in about_these
    ]
    open_ones = [finding for finding in findings if any(finding.lacking or ())]
    if not open_ones:
        undecided = sum(finding.outcome is Outcome.undecided for finding in findings)
        outcome = f"{undecided} undecided, which no further look decides" if undecided else "all are decided"
        if analyses := [command for finding in findings for command in finding.analyses]:
            outcome += f"; an analysis is lacking: {analyses[0]}" + f" and {len(analyses) - 1} more" * (
                len(analyses) > 1
            )
        return Round(f"claims tested: {len(findings)}; {outcome}", findings=findings, left_out=left_out)
    look = min(finding.next_look or MOST for finding in open_ones)
    asking = [finding for finding in open_ones if finding.next_look == look]
    looks = [
        frozenset(
            (side.row, seed) for side, seeds in zip(each.sides, each.lacking or (), strict=True) for seed in seeds
        )
        for each in asking
    ]
    seeds: dict[str, list[int]] = {}
    for row, seed in sorted(frozenset[Asked]().union(*looks)):
        seeds.setdefault(row, []).append(seed)
    number = [*LOOKS].index(look) + 1
    why = f"look {number} of {len(LOOKS)}, at {look} seeds, for {len(asking)} undecided claim{'s' * (len(asking) > 1)}"
    return Round(why, seeds, looks, findings, left_out)


def within(
    hours: float,
    asked: Sequence[Asked],
    looks: Iterable[frozenset[Asked]],
    cost: Callable[[Iterable[Asked]], float],
    begun: Collection[Asked] = (),
) -> list[Asked]:
    """Choose the runs for which the hours are enough, in the order in which they are asked for.

    If there are `looks`, as in `Round`, only complete ones are chosen, because a look that lacks runs answers nothing:
    first the look whose further runs, which have not `begun`, cost least. Otherwise each run that still fits is chosen.
    """
    if cost(asked) <= hours:
        return list(asked)
    chosen, left = frozenset[Asked](), [*looks] or [frozenset({run}) for run in asked]
    while left := [look for look in left if not look <= chosen and cost(chosen | look) <= hours]:
        chosen |= min(left, key=lambda look: cost(look - chosen - {*begun})) if looks else left[0]
    return [run for run in asked if run in chosen]


@dataclass(frozen=True)
class _Grid:
    """The command's rows by name, each with one of its seeds, the `folder` of their runs, and the sweep's `file`."""

    rows: Mapping[str, Row]
    folder: Path
    file: Path

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Grid":
        config = rows[0].config
        if config.setting is not None:
            raise UserError("until=decided: a random search has trials, not seeds of rows that claims are about")
        if not config.sweep or not decidable_of(config.sweep):
            raise UserError("until=decided: needs a sweep with claims (docs/claims.md), as sweep=he2016_table1")
        folders = folders_of(list(rows))
        check_tables(rows, folders)
        grids = {folder.path.parents[1] for folder in folders}
        if len(grids) > 1:
            raise UserError(
                f"until=decided: one grid at a time, not {len(grids)}: {', '.join(map(str, sorted(grids)))}"
            )
        file = file_of_sweep(rows[0])
        if are_of_other_depth((row.config.model for row in rows), file):
            raise UserError(f"until=decided: {OTHER_DEPTH}, on which its claims are not tested")
        named = {folder.path.parent.name: row for row, folder in reversed(list(zip(rows, folders, strict=True)))}
        order = dict.fromkeys(folder.path.parent.name for folder in folders)
        return cls({name: named[name] for name in order}, grids.pop(), file)

    @property
    def first(self) -> Config:
        return next(iter(self.rows.values())).config

    def runs(self) -> list[Run]:
        """Read the runs of these rows that the folder holds now."""
        has_runs = self.folder.is_dir() and run_folders(self.folder)
        return [run for run in read_runs([self.folder]) if run.row in self.rows] if has_runs else []

    def affordable(self, planned: Round, runs: Sequence[Run]) -> list[Row]:
        """Choose the runs of the round as `within` does, lowest seed first, then least compute first.

        Print why; if no run is chosen, also print the claims' answers. A run's cost is its compute at the pace of the
        runs that have ended; until one has ended, the cost is the estimate of `plan=true`.

        Raises:
            UserError: the hours are not enough for any run, and none has ended.
        """
        compute = dict(zip(self.rows, compute_of([*self.rows.values()]), strict=True))
        asked = [(row, seed) for row, seeds in planned.seeds.items() for seed in seeds]
        asked.sort(key=lambda run: (run[1], compute[run[0]].flops))
        ended = [run for run in runs if run.has_ended]
        used, trained = sum(_used(run) for run in ended), sum(compute[run.row].flops for run in ended)

        def cost(those: Iterable[Asked]) -> float:
            each = [compute[row] for row, _ in those]
            # Sets have another order in each process, on which `sum` would depend.
            return math.fsum(run.flops * used / trained if trained else run.seconds / 3600 for run in each)

        hours = math.inf if self.first.hours is None else self.first.hours
        begun = {run for run in asked if folder_of(self._with_seed(*run)).has_begun}
        chosen = within(hours - used, asked, planned.looks, cost, begun)
        if asked and not chosen and not ended:
            cheapest = min(asked, key=lambda run: cost([run]))
            least = f"{cheapest[0]} takes about {cost([cheapest]):.2g} hours"
            raise UserError(f"hours={hours:g}: too few for one run; {least}")
        spent = f"{used:.3g} hours used" + (f" of {hours:g}, by all runs of these rows" if hours < math.inf else "")
        if chosen:
            less = f", the hours are enough for {len(chosen)}" if len(chosen) < len(asked) else ""
            if less and planned.looks:
                less += f", which are all for {sum(look <= {*chosen} for look in planned.looks)} of these claims"
            print_line(f"{planned.why}: {len(asked)} run{'s' * (len(asked) > 1)}{less} ({spent})")
        else:
            what = "the cheapest of these looks" if planned.looks else "the next run"
            least = f"{what} takes about {min(map(cost, planned.looks), default=cost(asked[:1])):.3g} hours"
            print_line(f"{f'the hours are not enough for {planned.why}; {least}' if asked else planned.why} ({spent})")
            for table in tables_of(runs, self.file.parent) if runs else []:
                for line in claim_answers(table, MOST_ANSWERS):
                    print_line(line)
        return [self._with_seed(row, seed) for row, seed in chosen]

    def _with_seed(self, name: str, seed: int) -> Row:
        row = self.rows[name]
        others = [word for word in row.overrides if not word.startswith("seed=")]
        return replace(row, config=replace(row.config, seed=seed), overrides=(*others, f"seed={seed}"))


def _used(run: Run) -> float:
    """Return the hours that a run has trained, times its number of processes."""
    processes = list(run.result.get("processes", {"0": 1}).values())[-1]
    return processes * hours_of(run.result)


def _asked(sweep: Any, names: Sequence[str]) -> list[tuple[Claim | Registered, tuple[str, ...], str]]:
    """List each claim that runs can decide, with its rows and its text; a claim about an axis appears for each pair."""
    axes = len(axes_of(sweep)) or 1
    asked: list[tuple[Claim | Registered, tuple[str, ...], str]] = []
    for claim in decidable_of(sweep):
        if isinstance(claim, Claim):
            pairs = pairs_of(claim, names, axes)
            asked += [(claim, pair, f"{pair[0]} {claim.relation} {pair[1]}") for pair in pairs]
        elif claim.test:
            asked.append((claim, claim.test.rows, claim.sentence))
    return asked


def _findings(runs: Sequence[Run], file: Path) -> list[Finding]:
    """Test the claims on the column that has the most ended runs; each arithmetic has its own column."""
    (table,) = tables_of(runs, file.parent)
    index = max(range(len(table.columns)), key=lambda index: _ended(table, index))
    return findings_of(table, index, file.parent)


def _ended(table: Table, index: int) -> int:
    return sum(run.has_ended for run in table.columns[index].runs)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"
