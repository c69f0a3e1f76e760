"""The launcher `slurm`: a job array whose tasks execute the runs; SLURM alone schedules, requeues and cancels them."""

import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Annotated, ClassVar

import filelock
from annotated_types import Ge, Le

from deepnets.config.project import program
from deepnets.config.schema import Config
from deepnets.errors import UserError, printable
from deepnets.launch.grid import Retry, Tally, print_failed_before
from deepnets.launch.slurm_queue import FILES, is_queued, key_of, limits, slurm_answer, sort_out
from deepnets.launch.snapshot import snapshot
from deepnets.launch.task import ARRAYS, ROWS, batch_script
from deepnets.runs.contents import FAILED, Job, Result
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.jobs import LOGS, forget
from deepnets.runs.status import State, follow, read_states
from deepnets.system.files import make_own_folder, write_atomically
from deepnets.system.ranges import Count, Name, Size

POLL_SECONDS = 5  # between two looks at the queue, which all users of a cluster share
EARLY_SECONDS = 60  # SLURM signals up to this much earlier than asked
SCRIPT = ".sh"


@dataclass(frozen=True)
class Slurm:
    """`sbatch` with these options, for the runs that are neither complete nor in the queue; see conf/launcher/.

    A run that is warned of its time limit saves, is queued again and resumes; so does a preempted one.
    """

    in_process: ClassVar[bool] = False

    partition: Name | None
    account: Name | None
    time: Count | Name | None
    nodes: Size
    gpus: Annotated[int, Ge(0), Le(1024)] | None
    cpus: Size | None
    runs_per_task: Size | None
    at_once: Size | None
    warning: Annotated[int, Ge(1), Le(65_535)]  # as sbatch takes it
    setup: list[Name] | None
    options: dict[str, bool | int | str] | None
    wait: bool
    retry: Retry | None

    def check(self, config: Config) -> None:
        """Check that runs like this one can be submitted from this machine.

        Raises:
            UserError: options do not go together, or this machine has no SLURM.
        """
        processes = self._processes(config)
        if processes % self.nodes:
            raise UserError(f"devices={config.devices}: cannot be divided among launcher.nodes={self.nodes}")
        if self.gpus and self.gpus * self.nodes < processes:
            raise UserError(
                f"launcher.gpus={self.gpus}: devices={config.devices} needs {processes // self.nodes} on each "
                "node, or 0 to train on CPUs"
            )
        if self.time is not None and _seconds(self.time) < self.warning + EARLY_SECONDS:
            raise UserError(
                f"launcher.time={self.time}: leaves no time to train; a run saves and is queued again "
                f"{self.warning} to {self.warning + EARLY_SECONDS} seconds before its limit. Give more, or a shorter "
                "launcher.warning"
            )
        if broken := [f"{name}={value}" for name, value in (self.options or {}).items() if "\n" in f"{name}{value}"]:
            raise UserError(f"launcher.options: {broken[0]!r}: a line break cannot be part of it")
        if not shutil.which("sbatch"):
            raise UserError(
                "launcher=slurm: no sbatch on this machine; submit from one that has it, or use launcher=pool or local"
            )

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Check that SLURM takes as many jobs as these runs need.

        Raises:
            UserError: says how many it takes, and how many runs a task must execute; or SLURM does not answer.
        """
        again = [folder for folder, config in runs.items() if config.overwrite and folder.is_complete]
        new = {folder: runs[folder] for folder in [*sort_out(list(runs), self.retry).new, *again]}
        self._per_task(self._alike(new))

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Submit the runs that are to be trained and return at once, or with `wait` when none is in the queue any more.

        Returns 1 when a run has failed and is not submitted again, 130 on Ctrl-C while waiting: the jobs continue.

        Raises:
            UserError: SLURM refuses the job, or does not answer.
        """
        folders = list(runs)
        # Of two commands at once, the second finds the runs of the first in the queue.
        with filelock.FileLock(Path(runs[folders[0]].output_root) / ".slurm.lock"):
            left = sort_out(folders, self.retry)
            arrays = self._submit({folder: runs[folder] for folder in left.new})
        arrays += sorted({task.split("_")[0] for task in left.queued.values()}, key=int)
        complete = sum(folder.is_complete for folder in folders)
        print(
            f"{len(left.new)} of {len(folders)} runs submitted; {len(left.queued)} in the queue before, "
            f"{len(left.elsewhere)} running elsewhere, {len(left.failed)} failed before, {complete} complete"
        )
        print_failed_before(left.failed)
        if arrays:
            print(f"cancel  scancel {' '.join(arrays)}")
        sweep = RunFolder(folders[0].path.parents[1])
        print(printable(f"status  {program('report')} {shlex.quote(str(sweep))} --status"), flush=True)
        if not self.wait:
            return 1 if left.failed else 0
        try:
            follow(folders, lambda: not is_queued(folders), POLL_SECONDS)
        except KeyboardInterrupt:
            print(f"\nThe jobs continue; to cancel them: scancel {' '.join(arrays)}", file=sys.stderr)
            return 130
        forget()  # what SLURM said while they were in its queue
        states = read_states([folder for folder in folders if folder not in left.elsewhere])
        reasons = {folder: _why(state) for folder, state in states.items() if not folder.is_complete}
        return Tally(folders, reasons, set(left.elsewhere)).print()

    def directives(self, directory: Path, tasks: int, config: Config, after: str | None = None) -> list[str]:
        """The options of sbatch for an array of `tasks` tasks with runs like this one, whose files are in `directory`.

        It begins when the array `after` has ended.
        """
        processes = self._processes(config) // self.nodes
        ranks = processes if self.nodes > 1 else 1  # on one node the run starts its processes itself
        gpus = (0 if config.device == "cpu" else processes) if self.gpus is None else self.gpus
        options = self.options or {}
        given = {
            "job-name": f"{directory.parents[1].name}:deepnets",
            "array": f"0-{tasks - 1}" + (f"%{self.at_once}" if self.at_once else ""),
            "output": str(directory / "%A_%a.out"),
            "open-mode": "append",
            "requeue": True,
            "signal": f"B:USR1@{self.warning}",
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "nodes": self.nodes,
            "ntasks-per-node": ranks,
            "cpus-per-task": self.cpus and self.cpus * processes // ranks,
            "gpus-per-node": gpus or None,
            **options,
        }
        if after:
            others = [str(options["dependency"])] if "dependency" in options else []
            given["dependency"] = ",".join([f"afterany:{after}", *others])
        if self.gpus is None and {"gres", "gpus", "gpus-per-task", "gpus-per-node"} & options.keys():
            given["gpus-per-node"] = options.get("gpus-per-node")  # another option asks for them
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]

    def _processes(self, config: Config) -> int:
        """The processes of a run on all nodes; devices=auto is one per GPU that is asked for, at least one per node."""
        return (self.gpus or 1) * self.nodes if config.devices == "auto" else config.devices

    def _alike(self, runs: Mapping[RunFolder, Config]) -> list[list[RunFolder]]:
        """The runs in groups that need the same; each group becomes an array, and mostly there is one."""
        processes = {folder: self._processes(config) for folder, config in runs.items()}
        groups = groupby(sorted(runs, key=processes.__getitem__), key=processes.__getitem__)
        return [list(group) for _, group in groups]

    def _per_task(self, groups: Sequence[Sequence[RunFolder]]) -> int:
        """How many runs a task executes: as few as SLURM's limits demand, or `runs_per_task`.

        Raises:
            UserError: so many tasks would be too many; or SLURM does not answer.
        """
        if not groups:
            return 1
        (in_array, array_limit), (in_queue, queue_limit) = limits(self.account)

        def is_possible(runs: int) -> bool:
            tasks = [math.ceil(len(group) / runs) for group in groups]
            return max(tasks) <= in_array and sum(tasks) <= in_queue

        wanted = f"{sum(map(len, groups))} runs"
        taken = f"SLURM takes {in_array} tasks in an array ({array_limit}) and {in_queue} more jobs now ({queue_limit})"
        least = next(filter(is_possible, range(1, max(map(len, groups)) + 1)), None)
        if least is None:
            raise UserError(f"launcher=slurm: {wanted} cannot be submitted: {taken}; try again later")
        if self.runs_per_task and self.runs_per_task < least:
            given = f"launcher.runs_per_task={self.runs_per_task}"
            raise UserError(f"{given}: too few for {wanted}: {taken}; give {least} or more, or null")
        return self.runs_per_task or least

    def _submit(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Submit runs, an array for all that need the same; returns the numbers of the arrays."""
        groups = self._alike(runs)
        if not groups:
            return []
        arrays: list[str] = []
        per_task, sweep = self._per_task(groups), groups[0][0].path.parents[1]
        directory, copy = _new_directory(sweep / FILES), snapshot(sweep)
        for number, folders in enumerate(groups):
            name, before = directory / str(number), arrays[-1] if arrays and self.at_once else None
            tasks = {folder: place // per_task for place, folder in enumerate(folders)}
            config = runs[folders[0]]
            script = batch_script(
                self.directives(directory, max(tasks.values()) + 1, config, before),
                directory,
                name.name,
                copy=copy,
                setup=self.setup or (),
                several_nodes=self.nodes > 1,
                several_runs=per_task > 1,
                fail_fast=config.fail_fast,
            )
            name.with_suffix(ROWS).write_text("".join(f"{task} {key_of(each)}\n" for each, task in tasks.items()))
            name.with_suffix(SCRIPT).write_text(script)
            arrays.append(self._submit_array(name.with_suffix(SCRIPT), tasks))
            write_atomically(directory / ARRAYS, " ".join(arrays))
            print(f"job     {arrays[-1]}: {_counted(tasks)}; logs in {_link(sweep, arrays[-1], directory)}", flush=True)
        return arrays

    def _submit_array(self, script: Path, tasks: Mapping[RunFolder, int]) -> str:
        """Submit the script, note its tasks in the runs' folders, and return its number."""
        results = {}  # of earlier attempts
        for folder in tasks:
            if (file := folder.path / Result.FILE).is_file():
                with suppress(Locked), folder.hold():  # another process may have begun to execute it a moment ago
                    results[file] = file.read_bytes()
                    folder.retry()
        submitted = datetime.now(UTC)  # before, as a task may start at once
        try:
            array = slurm_answer("sbatch", "--parsable", str(script)).strip().split(";")[0]
        except UserError:
            for file, content in results.items():
                write_atomically(file, content)
            _remove(script)
            raise
        for folder, task in tasks.items():
            Job(job=f"{array}_{task}", submitted=submitted).write(folder.path)
        return array


def _why(state: State) -> str:
    """Why a run has no result that is no longer in the queue."""
    if state.name == FAILED and state.reason:
        return state.reason
    return f"{state.name}: {state.reason}" if state.reason else f"{state.name}, and no longer in the queue"


def _counted(tasks: Mapping[RunFolder, int]) -> str:
    """`3 runs`, or `3 runs in 2 tasks`."""
    count = len(set(tasks.values()))
    return f"{len(tasks)} run{'s' * (len(tasks) > 1)}" + (f" in {count} tasks" if count < len(tasks) else "")


def _link(sweep: Path, array: str, directory: Path) -> str:
    """Let the array's files be found by its number, and return where; a link of an earlier SLURM is replaced."""
    make_own_folder(sweep / LOGS)
    link, new = sweep / LOGS / array, sweep / LOGS / f"{array}.new"
    new.unlink(missing_ok=True)
    new.symlink_to(Path("..", directory.relative_to(sweep)))
    new.replace(link)
    return f"{RunFolder(sweep)}/{LOGS}/{array}"


def _remove(script: Path) -> None:
    """Remove the files of an array that was refused, and the folders of a submission that has no other."""
    script.unlink()
    script.with_suffix(ROWS).unlink()
    with suppress(OSError):  # there is another
        script.parent.rmdir()
        script.parent.parent.rmdir()


def _new_directory(parent: Path) -> Path:
    """Create the directory of a submission: its name is the next free number."""
    make_own_folder(parent)
    for number in count(1):
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)
    raise AssertionError


def _seconds(limit: int | str) -> float:
    """The seconds of SLURM's minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]].

    Anything else, such as UNLIMITED, is no limit.
    """
    days, _, clock = str(limit).rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [days or "0", *parts]) or len(parts) > 3:
        return math.inf
    units = [3600, 60, 1] if days else {1: [60], 2: [60, 1], 3: [3600, 60, 1]}[len(parts)]
    return 86400 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))
