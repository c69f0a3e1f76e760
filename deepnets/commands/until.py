"""`until=decided`: train the rows that claims are about, test the claims, and train more for undecided ones."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deepnets.config.build import build
from deepnets.config.claim import decidable_of
from deepnets.config.schema import Config, Row
from deepnets.errors import UserError
from deepnets.launch.grid import check_tables, file_of_sweep, launch
from deepnets.launch.plan import compute_of, show_plan
from deepnets.launch.slurm import Slurm
from deepnets.results.claims import OTHER_DEPTH, are_of_other_depth
from deepnets.results.claims_page import claim_answers
from deepnets.results.decide import Round, next_round
from deepnets.results.read import Run, read_runs
from deepnets.results.table import tables_of
from deepnets.runs.folder import folder_of, folders_of, run_folders
from deepnets.system.printing import print_line

MOST_ANSWERS = 100


def train_until_decided(rows: Sequence[Row]) -> int:
    """Train round after round until every claim is decided, ten seeds are trained or the hours are used.

    The next round depends only on the results in the sweep's folder, so the same command may continue anywhere. With
    `plan=true` it only plans the next round. Returns the exit code: 1 if a run failed.

    Raises:
        UserError: there are no claims about these rows, or the hours do not pay for one run.
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
            names = ", ".join(dict.fromkeys(folder.path.parent.name for folder in folders_of(chosen)))
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
class _Grid:
    """The command's rows by name, each with one of its seeds; `folder` holds them all, and `file` is the sweep's."""

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
        """Read the runs of these rows that are in the folder now."""
        has_runs = self.folder.is_dir() and run_folders(self.folder)
        return [run for run in read_runs([self.folder]) if run.row in self.rows] if has_runs else []

    def affordable(self, planned: Round, runs: Sequence[Run]) -> list[Row]:
        """Choose as many runs of the round as the hours pay, by seed and then compute; print why, or print the answers.

        A run's price is its compute at the pace of the ended runs; before one has ended, it is `plan=true`'s estimate.

        Raises:
            UserError: the hours do not even pay for the first run.
        """
        asked = [self._with_seed(row, seed) for row, seeds in planned.seeds.items() for seed in seeds]
        compute = compute_of([*self.rows.values()])
        by_row = dict(zip(self.rows, compute, strict=True))
        asked.sort(key=lambda row: (row.config.seed, by_row[_name(row)].flops))
        ended = [run for run in runs if run.has_ended]
        used = sum(hours_of(run) for run in ended)
        hours = self.first.hours
        trained = sum(by_row[run.row].flops for run in ended)
        chosen: list[Row] = []
        price = used
        for row in asked:
            cost = by_row[_name(row)]
            needs = cost.flops * used / trained if trained else cost.seconds / 3600
            if hours is not None and price + needs > hours:
                if not ended and not chosen:
                    raise UserError(
                        f"hours={hours:g}: do not pay one run; that of {_name(row)} takes about {needs:.2g} hours"
                    )
                break
            price += needs
            chosen.append(row)
        spent = f"{used:.3g} hours used" + (f" of {hours:g}" if hours is not None else "")
        if chosen:
            less = f", of which the hours pay {len(chosen)}" if len(chosen) < len(asked) else ""
            print_line(f"{planned.why}: {len(asked)} run{'s' * (len(asked) > 1)}{less} ({spent})")
        else:
            why = f"the hours do not pay the next run of {planned.why}" if asked else planned.why
            print_line(f"{why} ({spent})")
            for table in tables_of(runs, self.file.parent) if runs else []:
                for line in claim_answers(table, MOST_ANSWERS):
                    print_line(line)
        return chosen

    def _with_seed(self, name: str, seed: int) -> Row:
        row = self.rows[name]
        others = [word for word in row.overrides if not word.startswith("seed=")]
        return replace(row, config=replace(row.config, seed=seed), overrides=(*others, f"seed={seed}"))


def hours_of(run: Run) -> float:
    """Return the hours that a run trained, times its number of processes."""
    processes = list(run.result.get("processes", {"0": 1}).values())[-1]
    return processes * (run.result.get("seconds") or 0.0) / 3600


def _name(row: Row) -> str:
    return folder_of(row).path.parent.name
