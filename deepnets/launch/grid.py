"""Turns a command's rows into runs: checks them, freezes each into its folder, and lets a launcher execute them.

The launchers are in `local.py`, `pool.py` and `slurm.py`; the code that they share is here too.
"""

import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from rich.table import Column, Table

from deepnets.config.build import build
from deepnets.config.claim import check_claims, claims_of
from deepnets.config.project import git_commit, typed_command
from deepnets.config.schema import CodeChoice, Config, Row
from deepnets.errors import UserError, listed
from deepnets.launch.reuse import (
    before_claims,
    beside_other_code,
    beside_other_settings,
    claims_below,
    claims_known,
    copy_sweep,
    copy_twins,
    file_of_sweep,
    kept_by_queue,
    print_twins,
    trained_before_change,
    twins_of,
    use_chosen_code,
)
from deepnets.runs.code import changed_files, code_of, code_to_execute, noted_code, store
from deepnets.runs.contents import FAILED, Code, Origin, Result, Unreadable
from deepnets.runs.execute import inspect
from deepnets.runs.folder import BESIDE, Locked, OtherSettings, RunFolder, lines_by_reason, remedies_of
from deepnets.runs.initial_weights import check_start
from deepnets.runs.naming import folders_of
from deepnets.runs.record import change_of_images, describe_result, duration
from deepnets.runs.status import read_state, read_states
from deepnets.system.printing import as_text, print_error, print_line, print_rich, with_progress
from deepnets.training.checks import check

Retry = Literal["failed"]  # "failed" executes failed runs again; None skips them
WARM_SECONDS = 60  # a first run that took longer tells how long the others take, though it warmed the process up
OUTPUT = "output.txt"  # in a run's folder: the output of the run's own process, if it has one

Runs = Sequence[RunFolder]
Pairs = Sequence[tuple[Row, RunFolder]]
Chosen = Mapping[RunFolder, Code | UserError]  # as `use_chosen_code` returns it


def launch(rows: list[Row]) -> int:
    """Train every unfinished run with the launcher that the rows choose; returns the exit code, 1 if a run failed.

    All runs are checked before the first is frozen, and all are frozen before the first trains.

    Raises:
        UserError: a run cannot start; the message names every such run. Or as `check_tables` and `Launcher.check_all`.
    """
    folders, first = folders_of(rows), rows[0].config
    check_tables(rows, folders)
    launcher: Launcher = build("launcher", first.launcher)
    begun, queued = begun_runs(launcher, first, folders)
    chosen = use_chosen_code(rows, folders, begun)
    claims_below.cache_clear()
    pairs = list(zip(rows, folders, strict=True))
    _check_all(pairs, launcher, chosen, begun, queued)
    fresh = [pair for pair in pairs if first.overwrite or not (pair[1].has_begun or pair[1].is_complete)]
    if first.reuse and not first.overwrite:
        copy_twins(rows, folders)
    elif fresh and not first.overwrite:
        print_twins(
            twins_of(*map(list, zip(*fresh, strict=True))), "; reuse=true would copy what this command now trains"
        )
    if told := beside_other_settings([pair for pair in fresh if first.overwrite or not pair[1].is_complete]):
        print_line(told)
    to_execute = _freeze_all(pairs, chosen, begun, queued)
    if seen := before_claims(pairs, {folder for _, folder in fresh}):
        print_line(seen)
    for grid in dict.fromkeys(folder.path.parents[1] for folder in folders):
        copy_sweep(rows[0], grid)
    # Order the runs by seed, so that all rows of the table can be compared after the first round.
    to_execute = dict(sorted(to_execute.items(), key=lambda item: item[1].seed))
    return launcher.execute(to_execute) if to_execute else 0


def _check_all(pairs: Pairs, launcher: "Launcher", chosen: Chosen, begun: set[RunFolder], queued: Runs) -> None:
    """Check every run before the first is frozen; raises what `launch` says."""
    errors = {}
    for row, folder in with_progress(pairs, "runs checked"):
        try:
            if isinstance(refused := chosen.get(folder), UserError):
                raise refused
            _check(row, folder, launcher, folder in begun, folder in queued)
        except UserError as error:
            errors[folder] = error
    if len(pairs) == 1 and errors:
        raise next(iter(errors.values()))
    if errors:
        reasons = lines_by_reason({folder: error.summary for folder, error in errors.items()})
        lines = [f"{len(errors)} of {len(pairs)} runs cannot start; none was started", *reasons]
        raise UserError("\n".join([*lines, *remedies_of(errors.values(), [row.config for row, _ in pairs])]))
    launcher.check_all({folder: row.config for row, folder in pairs})


def _freeze_all(pairs: Pairs, chosen: Chosen, begun: set[RunFolder], queued: Runs) -> dict[RunFolder, Config]:
    """Freeze each run that is not complete, say what of the others differs today, and return the runs to execute."""
    first = pairs[0][0].config
    to_execute, new_code, other_data = {}, dict[RunFolder, Code](), Counter[str]()
    of_own_code, switched = list[RunFolder](), list[RunFolder]()
    for row, folder in with_progress(pairs, "runs frozen"):
        code, kept = code_of(row.config), chosen.get(folder)
        if isinstance(kept, Code) and code and not changed_files(folder, kept, code):
            code = kept  # as it was noted when it was copied
        try:
            if row.config.overwrite or not folder.is_complete:
                was = noted_code(folder) if first.code == CodeChoice.current and not first.overwrite else None
                folder.freeze(row.config, _origin(row, folder, code), folder in begun)
                if was and code and was.hash != code.hash:
                    switched.append(folder)
                if code and folder not in queued:
                    store(folder, row.config, code)
                    new_code[folder] = code
            else:
                for line in inspect(folder):
                    print_line(line)
                of_own_code += [folder] * bool(code)
                if (result := folder.completed) and (change := change_of_images(row.config, result)):
                    other_data[f"now in {row.config.dataset['root']} ({change})"] += 1
        except Locked as error:  # another process trains this run; below, the launcher skips it
            if row.config.overwrite:  # skip it here: `_check` has not compared its settings with the folder's
                print_line(f"{error}; skipped")
                continue
        to_execute[folder] = row.config
    lines = trained_before_change(of_own_code, {folder: row.overrides for row, folder in pairs})
    lines += kept_by_queue(queued)
    told = beside_other_code(new_code, queued, is_told=bool(lines))
    if switched:
        count, where = len(switched), listed(each.path.parent.name for each in switched)
        lines += [f"code=current: {count} run{'s' * (count > 1)} that noted other code will use today's; rows {where}"]
    lines += [told] if told else []
    for change, count in other_data.items():
        lines += [f"{_finished(count)} on other images than those {change}; to train in another folder, add {BESIDE}"]
    for line in lines:
        print_line(line)
    return to_execute


def begun_runs(
    launcher: "Launcher", first: Config, folders: Sequence[RunFolder]
) -> tuple[set[RunFolder], list[RunFolder]]:
    """Return the runs that have begun, and those that this command leaves to jobs in the launcher's queue.

    A run has begun if it has a checkpoint, or a job that may execute it. A queued run keeps the code that it notes,
    unless the command chooses a version.

    Raises:
        UserError: the queue cannot be read.
    """
    queued = launcher.queued(folders)
    waiting = queued or set()
    begun = {each for each in folders if each.has_checkpoint or (each.has_begun if queued is None else each in waiting)}
    is_chosen = first.overwrite or first.code
    return begun, [] if is_chosen else [each for each in folders if each in waiting]


def check_tables(rows: Sequence[Row], folders: Sequence[RunFolder]) -> None:
    """Check that the first run in each table's folder is of this sweep, and that the sweep's claims name its rows.

    Raises:
        UserError: the first run in a folder belongs to another sweep, or as `check_claims`.
    """
    tables = {folder.path.parents[1]: row for row, folder in zip(rows, folders, strict=True)}
    for place, row in tables.items():
        if row.config.sweep and (sweep_file := file_of_sweep(row)).is_file():
            check_claims(sweep_file, row.search)
        file = next(place.glob(f"*/*/{Origin.FILE}"), None)
        with suppress(Unreadable):  # if a command needs this run's origin, it reports the error
            origin = Origin.read(file.parent) if file else None
            if origin and origin.choices and (sweep := origin.choices.get("sweep")) != row.choices.get("sweep"):
                runs = f"runs of sweep={sweep}" if sweep else "runs without a sweep"
                raise UserError(f"{RunFolder(place)}: holds {runs}; choose another name=NAME")


class Launcher(Protocol):
    """The launcher that `launcher=` chooses: it executes run folders in this process or in others, maybe elsewhere.

    If `in_process`, the runs execute in this process and can use the data that their checks have read.
    """

    in_process: ClassVar[bool]

    def check(self, config: Config) -> None:
        """Check that this launcher can execute a run; called for each run to train, before the first is frozen.

        Raises:
            UserError: it cannot, for example because there are too few devices.
        """

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Check that this launcher can execute these runs together; this is called once before the first is frozen.

        Raises:
            UserError: it cannot.
        """

    def queued(self, folders: Sequence[RunFolder]) -> set[RunFolder] | None:
        """Return the runs that wait in a queue or train elsewhere, where `execute` leaves them; None without a queue.

        Raises:
            UserError: the queue cannot be read.
        """

    def describe(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Say, for `plan=true`, how this launcher would execute these runs, if that does not follow from its settings.

        Raises:
            UserError: it cannot.
        """

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Execute the frozen folders, some of which may be finished; returns the exit code.

        Settings for the launcher, such as `fail_fast`, are the same in all runs.
        """


def launchable(config: Config, launcher: Launcher) -> Config:
    """Check that the launcher can execute the run, and return the configuration for all further checks in this process.

    Its device is the CPU if another process will execute the run.

    Raises:
        UserError: the launcher cannot execute the run.
    """
    launcher.check(config)
    return config if launcher.in_process else replace(config, device="cpu")


@dataclass
class Tally:
    """Counts the runs of a sweep: `failed` are the runs that failed, and why; `elsewhere` are those of other processes.

    The command has `to_train` runs to train, and `ended` of them have ended. It skips the runs in `before`, which
    failed in an earlier command and are not among these. `shown` are the tracebacks that it has printed. `warm` is when
    the first `first` of the runs ended, and so the process was warm.
    """

    folders: list[RunFolder]
    failed: dict[RunFolder, str] = field(default_factory=dict)
    elsewhere: set[RunFolder] = field(default_factory=set)
    ended: int = 0
    to_train: int = 0
    begun: float = 0.0
    first: int = 0
    warm: float = 0.0
    before: dict[RunFolder, str] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Print how many runs were complete before this command, and start the clock."""
        complete = [result for folder in self.folders if (result := folder.completed)]
        if complete and len(self.folders) == 1:
            print_line(f"{self.folders[0]}: already {describe_result(complete[0])}; nothing to train")
        elif complete:
            print_line(f"{len(complete)} of {len(self.folders)} runs already finished; nothing to train in them")
        print_failed_before(self.before)
        self.to_train, self.begun = len(self.folders) - len(complete) - len(self.before), time.monotonic()

    def end(self, count: int = 1) -> None:
        """Count `count` more runs that have ended in this command."""
        self.ended += count
        if not self.first:
            self.first, self.warm = count, time.monotonic()

    def heading(self, folder: RunFolder) -> str:
        """Return the run's folder and, if there are several runs, its number and the time left for all of them."""
        if len(self.folders) == 1:
            return str(folder)
        is_warm = self.ended > self.first
        begun, ended = (self.warm, self.ended - self.first) if is_warm else (self.begun, self.ended)
        took, time_left = time.monotonic() - begun, ""
        if is_warm or (ended and took > WARM_SECONDS):
            time_left = f"  ({duration(took / ended * (self.to_train - self.ended))} left for all, at this pace)"
        return f"[{self.folders.index(folder) + 1}/{len(self.folders)}] {folder}{time_left}"

    def skip(self, folder: RunFolder, error: Locked) -> None:
        """Print and note that another process has the run."""
        print_line(f"{error}; skipped")
        self.elsewhere.add(folder)

    def print(self) -> int:
        """Print the table, where the results are, and why runs failed; returns the exit code, 1 if a run failed."""
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
        """Print the runs by row. The user's code has a column if several versions of it trained a row."""
        table = Table(Column("run", overflow="fold"), "status", "test error %", "train error %", "seconds", box=None)
        states, code = read_states(self.folders), {folder: _code(folder.completed) for folder in self.folders}
        by_row: dict[Path, set[str]] = {}
        for folder, versions in code.items():
            if versions is not None:
                by_row.setdefault(folder.path.parent, set()).add(versions)
        if is_mixed := any(len(each) > 1 or ", " in next(iter(each)) for each in by_row.values()):
            table.add_column("your code")
        rows = {folder.path.parent: place for place, folder in reversed([*enumerate(self.folders)])}
        for folder in sorted(self.folders, key=lambda folder: rows[folder.path.parent]):
            result = folder.result
            status = FAILED if folder in self.failed else states[folder].name
            if folder in self.elsewhere and not folder.is_complete:
                status = "running in another process"
            cells = [result and getattr(result, name) for name in ("test_error", "train_error", "seconds")]
            texts = ["" if cell is None else f"{cell:.2f}" for cell in cells]
            name = str(folder.path.resolve().relative_to(above))
            table.add_row(as_text(name), status, *texts, *([code[folder] or ""] if is_mixed else []))
        print_rich(table)


def _code(result: Result | None) -> str | None:
    """Name the versions of the user's code that trained a run, each once; None if it has not ended."""
    return ", ".join(dict.fromkeys(code.hash for code in result.code.values())) if result else None


def failed_before(folders: Sequence[RunFolder], retry: Retry | None) -> dict[RunFolder, str]:
    """Return the runs that failed in an earlier command, and why; none if `retry` says to execute them again."""
    if retry == FAILED:
        return {}
    states = {folder: read_state(folder) for folder in folders}
    return {folder: state.reason or "" for folder, state in states.items() if state.name == FAILED}


def print_failed_before(failed: Mapping[RunFolder, str]) -> None:
    """Print which runs are skipped because they failed in an earlier command, why, and how to execute them again."""
    if failed:
        heading = "runs that failed before are skipped (launcher.retry=failed trains them again):"
        print_error("\n".join([heading, *lines_by_reason(failed)]))


def _check(row: Row, folder: RunFolder, launcher: Launcher, has_begun: bool, is_queued: bool) -> None:
    """Raise a UserError if the run cannot start."""
    try:
        kept = folder.check(row.config)
    except OtherSettings:
        _check_settings(row, launcher)  # what is wrong in an option file explains more than how it differs
        raise
    claims_of(row.config.sweep)
    if is_queued:
        launcher.check(row.config)
        return
    if has_begun and not folder.is_complete and not row.config.overwrite:
        code_to_execute(folder, row.config, "code={}")
    if row.config.overwrite or not folder.is_complete:
        _check_settings(row, launcher)
    elif kept and kept.dataset.get("root") != row.config.dataset.get("root"):
        print_line(f"{folder}: was trained on the data in {kept.dataset.get('root')}")


def _check_settings(row: Row, launcher: Launcher) -> None:
    """Raise a UserError if the run's settings are illegal or the launcher cannot execute it."""
    code = code_of(row.config)
    check(launchable(row.config, launcher), code.hash if code else None)
    check_start(row.config)


def _finished(count: int) -> str:
    return f"{count} finished runs were trained" if count > 1 else "1 finished run was trained"


def _origin(row: Row, folder: RunFolder, code: Code | None) -> Origin:
    """Describe the command that freezes the run, the versions of the code, and the claims known by now."""
    origin = Origin(
        command=typed_command(),
        overrides=list(row.overrides),
        choices=row.choices,
        commit=git_commit(),
        claims=claims_known(row, folder),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return origin.model_copy(update={"code": code}) if code else origin
