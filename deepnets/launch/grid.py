"""From the rows of a command to its runs: check all, freeze each into its folder, execute them by a launcher.

The launchers are `local.py`, `pool.py` and `slurm.py`; what they have in common is here, too.
"""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from rich.table import Column, Table

from deepnets.config.build import build
from deepnets.config.claim import claims_of, claims_on_file
from deepnets.config.identity import identity_hash
from deepnets.config.project import git_commit, home
from deepnets.config.schema import CodeChoice, Config, Row
from deepnets.config.sweep import SWEEPS
from deepnets.config.trust import choose_code
from deepnets.errors import UserError
from deepnets.launch.reuse import reuse, twins_of
from deepnets.runs.code import OtherCode, changed_files, code_of, code_to_execute, execute_copy, noted, store
from deepnets.runs.contents import FAILED, Code, Origin, Unreadable
from deepnets.runs.execute import inspect
from deepnets.runs.folder import BESIDE, Locked, OtherSettings, RunFolder, folders_of, run_folders
from deepnets.runs.record import describe_result, duration
from deepnets.runs.status import read_state, read_states
from deepnets.system.files import write_atomically
from deepnets.system.printing import as_text, print_error, print_line, print_rich, shown
from deepnets.training.checks import check

Retry = Literal["failed"]  # which runs that have ended without a result are executed again
OUTPUT = "output.txt"  # in a run's folder: what its process prints, if it has a process of its own


def launch(rows: list[Row]) -> int:
    """Train every run that is not finished, by the launcher they choose; returns the exit code: 1 when one failed.

    All runs are checked before the first is frozen, and all are frozen before the first trains.

    Raises:
        UserError: names every run that cannot start.
    """
    folders, first = folders_of(rows), rows[0].config
    check_tables(rows, folders)
    launcher: Launcher = build("launcher", first.launcher)
    choose_code(first.code)
    wrong = {}
    if first.code == CodeChoice.frozen:  # before a class is imported, as it is to be checked in that version
        for folder in folders:
            if folder.has_begun and not folder.is_complete and (code := noted(folder)):
                execute_copy(folder, code.hash)
    pairs = list(zip(rows, folders, strict=True))
    for row, folder in shown(pairs, "runs checked"):
        try:
            _check(row, folder, launcher)
        except UserError as error:
            wrong[folder] = error
    if len(rows) == 1 and wrong:
        raise next(iter(wrong.values()))
    if wrong:
        reasons = lines_by_reason({folder: error.summary for folder, error in wrong.items()})
        remedies = dict.fromkeys(
            error.remedy for error in wrong.values() if isinstance(error, OtherSettings | OtherCode)
        )
        first_lines = [f"{len(wrong)} of {len(rows)} runs cannot start; none was started"]
        raise UserError("\n".join([*first_lines, *reasons, *remedies]))
    launcher.check_all({folder: row.config for row, folder in zip(rows, folders, strict=True)})
    if first.reuse:
        _reuse(rows, folders)
    to_execute, trained_otherwise = {}, Counter[str]()
    for row, folder in shown(pairs, "runs frozen"):
        try:
            code = code_of(row.config)
            if row.config.overwrite or not folder.is_complete:
                folder.freeze(row.config, _origin(row, folder, code))
                if code:
                    store(folder, row.config, code)
            else:
                for line in inspect(folder):
                    print_line(line)
                if code and (before := noted(folder)) and (changed := changed_files(folder, before, code)):
                    trained_otherwise[", ".join(changed)] += 1
        except Locked as error:  # another process is running it, and was checked to run the same,
            if row.config.overwrite:  # or else may leave behind what is not this run's
                print_line(f"{error}; skipped")
                continue
        to_execute[folder] = row.config
    for files, count in trained_otherwise.items():
        runs = f"{count} finished runs were" if count > 1 else "1 finished run was"
        print_line(f"{runs} trained by other code of yours ({files} changed since); to train beside them, {BESIDE}")
    _copy_sweep(rows[0], folders[0])
    # One seed of every row first: a grid says something from its first round on.
    to_execute = dict(sorted(to_execute.items(), key=lambda item: item[1].seed))
    return launcher.execute(to_execute) if to_execute else 0


def check_tables(rows: Sequence[Row], folders: Sequence[RunFolder]) -> None:
    """Whether the folder of each table holds runs of the same sweep only, as far as they say of which they are.

    Raises:
        UserError: it holds another sweep's.
    """
    tables = {folder.path.parents[1]: row for row, folder in zip(rows, folders, strict=True)}
    for place, row in tables.items():
        file = next(place.glob(f"*/*/{Origin.FILE}"), None)
        with suppress(Unreadable):  # it is named where that run is read
            there = Origin.read(file.parent) if file else None
            if there and there.choices and (sweep := there.choices.get("sweep")) != row.choices.get("sweep"):
                runs = f"runs of sweep={sweep}" if sweep else "runs without a sweep"
                raise UserError(f"{RunFolder(place)}: holds {runs}; choose another name=NAME")


class Launcher(Protocol):
    """A launcher, as `launcher=` chooses it: it executes `python -m deepnets.run FOLDER`, or what that calls.

    `in_process` says that runs execute in this process, so that they use again what is read while they are checked.
    """

    in_process: ClassVar[bool]

    def check(self, config: Config) -> None:
        """Check that this launcher can execute a run; called for each run before any is frozen.

        Raises:
            UserError: it cannot, for example because there are too few devices.
        """

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Check that this launcher can execute so many runs; called once before any is frozen.

        Raises:
            UserError: it cannot.
        """

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Execute the frozen folders, of which some may be finished; returns the exit code.

        What concerns the launcher, such as `fail_fast`, is the same in all runs.
        """


def launchable(config: Config, launcher: Launcher) -> Config:
    """The configuration as far as this process can check it, for `deepnets.training.checks`.

    Raises:
        UserError: the launcher does not execute such a run.
    """
    launcher.check(config)
    # A run that executes elsewhere needs neither the devices of this process nor its data on one of them.
    return config if launcher.in_process else replace(config, device="cpu")


@dataclass
class Tally:
    """The runs of a sweep: those that `failed` just now and why, and those `elsewhere`, in another process.

    Of those that were `left` when the command began, so many have `ended` since. Those that have failed `before` it are
    left alone.
    """

    folders: list[RunFolder]
    failed: dict[RunFolder, str] = field(default_factory=dict)
    elsewhere: set[RunFolder] = field(default_factory=set)
    ended: int = 0
    left: int = 0
    begun: float = 0.0
    before: dict[RunFolder, str] = field(default_factory=dict)

    def begin(self) -> None:
        """Print how many runs have ended before this command, and begin to count the time."""
        complete = [result for folder in self.folders if (result := folder.completed)]
        if complete and len(self.folders) == 1:
            print_line(f"{self.folders[0]}: already {describe_result(complete[0])}; nothing to train")
        elif complete:
            print_line(f"{len(complete)} of {len(self.folders)} runs already finished; nothing to train in them")
        print_failed_before(self.before)
        self.left, self.begun = len(self.folders) - len(complete) - len(self.before), time.monotonic()

    def end(self, count: int = 1) -> None:
        """Count runs that this command has trained to their end."""
        self.ended += count

    def heading(self, folder: RunFolder) -> str:
        """The run's folder; if there are several runs, behind its number and before the time that all will take."""
        if len(self.folders) == 1:
            return str(folder)
        seconds = (time.monotonic() - self.begun) / max(self.ended, 1) * (self.left - self.ended)
        time_left = f"  ({duration(seconds)} left for all)" if self.ended else ""
        return f"[{self.folders.index(folder) + 1}/{len(self.folders)}] {folder}{time_left}"

    def skip(self, folder: RunFolder, error: Locked) -> None:
        """Print and note that another process has the run."""
        print_line(f"{error}; skipped")
        self.elsewhere.add(folder)

    def print(self) -> int:
        """Print the table, where the results are, and why runs failed; returns the exit code: 1 when one did."""
        self.failed |= self.before
        together = Path(os.path.commonpath([folder.path.resolve() for folder in self.folders]))
        above = together if len(self.folders) > 1 else together.parents[1]
        if len(self.folders) > 1:
            self._print_table(above)
        print_line(f"results      {RunFolder(together)}")
        print_line(f"TensorBoard  tensorboard --logdir {shlex.quote(str(RunFolder(above)))}")
        if self.failed:
            count = f"{len(self.failed)} of {len(self.folders)} runs failed"
            print_error("\n".join([count, *lines_by_reason(self.failed)]))
        return 1 if self.failed else 0

    def _print_table(self, above: Path) -> None:
        table = Table(Column("run", overflow="fold"), "status", "test error %", "train error %", "seconds", box=None)
        states = read_states(self.folders)
        rows = {folder.path.parent: place for place, folder in reversed([*enumerate(self.folders)])}
        for folder in sorted(self.folders, key=lambda folder: rows[folder.path.parent]):
            result = folder.result
            status = FAILED if folder in self.failed else states[folder].name
            if folder in self.elsewhere and not folder.is_complete:
                status = "running in another process"
            cells = [result and getattr(result, name) for name in ("test_error", "train_error", "seconds")]
            name = str(folder.path.resolve().relative_to(above))
            table.add_row(as_text(name), status, *("" if cell is None else f"{cell:.2f}" for cell in cells))
        print_rich(table)


def failed_before(folders: Sequence[RunFolder], retry: Retry | None) -> dict[RunFolder, str]:
    """The runs that failed in an earlier command, and why; none if `retry` says that they are executed again."""
    if retry == FAILED:
        return {}
    states = {folder: read_state(folder) for folder in folders}
    return {folder: state.reason or "" for folder, state in states.items() if state.name == FAILED}


def print_failed_before(failed: Mapping[RunFolder, str]) -> None:
    """Print which runs are left alone as they failed in an earlier command, why, and how they are executed again."""
    if failed:
        print_error("\n".join(["launcher.retry=failed executes again what failed before:", *lines_by_reason(failed)]))


def lines_by_reason(reasons: Mapping[RunFolder, str]) -> list[str]:
    """A line per reason; folders that share a reason share the line."""
    folders: dict[str, list[RunFolder]] = {}
    for folder, reason in reasons.items():
        folders.setdefault(reason, []).append(folder)
    others = {reason: f" and {len(same) - 1} more" if len(same) > 1 else "" for reason, same in folders.items()}
    return [f"  {same[0]}{others[reason]}: {reason}" for reason, same in folders.items()]


def _reuse(rows: list[Row], folders: list[RunFolder]) -> None:
    """Copy what other sweeps have trained already, and say from where."""
    by_folder = dict(zip(folders, rows, strict=True))
    copied = Counter[str]()
    for folder, twin in twins_of(rows, folders).items():
        if not folder.has_begun:
            with suppress(Locked):
                reuse(by_folder[folder], folder, twin)
                copied[str(RunFolder(twin.path.parent))] += 1
    for row, count in copied.items():
        print_line(f"{count} finished run{'s' * (count > 1)} copied from {row}")


def _check(row: Row, folder: RunFolder, launcher: Launcher) -> None:
    """Raise a UserError if the run cannot start."""
    kept = folder.check(row.config)
    if folder.has_begun and not folder.is_complete and not row.config.overwrite:
        code_to_execute(folder, row.config, "code={}")
    claims_of(row.config.sweep)
    if row.config.overwrite or not folder.is_complete:
        code = code_of(row.config)
        check(launchable(row.config, launcher), code.hash if code else None)
    elif kept and kept.dataset.get("root") != row.config.dataset.get("root"):
        print_line(f"{folder}: was trained on the data in {kept.dataset.get('root')}")


def _copy_sweep(row: Row, folder: RunFolder) -> None:
    """Copy the file of the user's own sweep beside its runs: it holds the numbers that they are compared with."""
    name = f"{row.choices.get('sweep')}.yaml"
    for place in row.search.places:
        file = Path(place.removeprefix("file://")) / "sweep" / name
        if row.config.sweep and file.is_file():
            write_atomically(folder.path.parents[1] / name, file.read_bytes())


def _origin(row: Row, folder: RunFolder, code: Code | None) -> Origin:
    """Where the run comes from, as its folder keeps it."""
    origin = Origin(
        command=_typed_command(),
        overrides=list(row.overrides),
        choices=row.choices,
        commit=git_commit(),
        claims=_claims_known(row, folder),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return origin.model_copy(update={"code": code}) if code else origin


def _typed_command() -> str:
    """This command as it was typed, without the path of Python."""
    program, *words = sys.argv
    verb = program.split() if program.startswith("deepnets ") else [os.path.basename(sys.executable), program]
    return shlex.join([*verb, *words])


def _claims_known(row: Row, folder: RunFolder) -> list[str]:
    """The claims, as SWEEP/HASH, that stand in a sweep file before anybody can have seen this run's result.

    The result counts for these claims only. If a run of the same identity has a result already, on record or in the
    folder that is overwritten, this run will give the same bits: it knows only the claims that the earlier run knew.
    """
    folders = [SWEEPS, *(Path(place.removeprefix("file://")) / "sweep" for place in row.search.places)]
    seen = _known_on_record(home() / "outputs" / "records").get(identity_hash(row.config), [])
    seen = [*seen, *([earlier.claims] if (earlier := folder.completed) else [])]
    on_file = [claim for sweeps in folders for claim in claims_on_file(sweeps)]
    # Runs frozen before claims were named by their sweep noted bare hashes.
    return [claim for claim in on_file if all({claim, claim.rpartition("/")[2]} & {*known} for known in seen)]


@cache
def _known_on_record(records: Path) -> dict[str, list[list[str]]]:
    """The claims that each run on record knew, by the run's identity. Reading 400 records takes 0.05 s."""
    known: dict[str, list[list[str]]] = {}
    for folder in run_folders(records):
        with suppress(Unreadable):  # a report names it
            if result := folder.result:
                known.setdefault(result.identity or "", []).append(result.claims)
    return known
