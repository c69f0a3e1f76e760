"""The launcher `slurm`: submits a job array whose tasks execute runs; SLURM schedules, requeues and cancels them."""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, ClassVar

import filelock
from annotated_types import Ge, Le

from deepnets.config.project import program
from deepnets.config.schema import Config
from deepnets.errors import UserError, listed, printable
from deepnets.launch.grid import Retry, Tally, print_failed_before
from deepnets.launch.slurm_queue import (
    FILES,
    REPORT,
    Submission,
    Unfinished,
    arrays_of,
    changed_options,
    is_queued,
    limits,
    queued_code,
    seconds_of,
    slurm_answer,
    sort_out,
    submit_after,
)
from deepnets.launch.task import batch_script, snapshot
from deepnets.runs.contents import DIVERGED, FAILED, Job
from deepnets.runs.folder import RunFolder
from deepnets.runs.jobs import LOGS, forget_answers
from deepnets.runs.status import State, follow, read_states
from deepnets.system.settings import Count, Name, Size

POLL_SECONDS = 5  # between two questions to SLURM, which all users of a cluster share
EARLY_SECONDS = 60  # SLURM signals up to this much earlier than asked
# The options that also apply to the jobs that write the report or decide the next round; these jobs need no GPU.
OF_EVERY_JOB = ("partition", "account", "time", "qos", "mem", "mem-per-cpu", "reservation", "constraint", "clusters")


@dataclass(frozen=True)
class Slurm:
    """Submits the runs that are neither complete nor queued, by `sbatch` with these options; see conf/launcher/.

    When SLURM warns a run of its time limit, the run saves, is queued again and resumes; so does a preempted run.
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
    warning: Annotated[int, Ge(1), Le(65_535)]  # the range of sbatch
    setup: list[Name] | None
    options: dict[str, bool | int | str] | None
    wait: bool
    retry: Retry | None
    report: bool

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
        if self.time is not None and seconds_of(self.time) < self.warning + EARLY_SECONDS:
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
            UserError: SLURM takes fewer jobs, so that each task must execute more runs; or SLURM does not answer.
        """
        self._per_task(self._groups(self._to_submit(runs)))

    def queued(self, folders: Sequence[RunFolder]) -> set[RunFolder]:
        """Return the runs that are not complete and are in SLURM's queue or train elsewhere.

        Raises:
            UserError: SLURM does not answer.
        """
        if not shutil.which("squeue"):  # `check` says so if something is left to train
            return set()
        left = sort_out(list(folders), self.retry)
        return {*left.queued, *left.elsewhere}

    def describe(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Say which arrays `execute` would submit, with the options that sbatch would get."""
        groups = self._groups(to_submit := self._to_submit(runs))
        per_task, lines = self._per_task(groups), []
        earlier = self._earlier_arrays(to_submit) if groups else []
        for place, folders in enumerate(groups):
            tasks = math.ceil(len(folders) / per_task)
            directory = folders[0].path.parents[1] / FILES / "N"
            options = self.directives(directory, tasks, runs[folders[0]], [] if place else earlier)
            shown = [option for option in options if not option.startswith(("--output", "--open-mode"))]
            each = f" of up to {per_task} runs" if per_task > 1 else ", one for each run"
            lines.append(f"sbatch     {tasks} task{'s' * (tasks > 1)}{each}: {shlex.join(shown)}")
        return lines or ["sbatch     nothing to submit: the runs are in the queue, run elsewhere or failed before"]

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Submit the runs to train; return at once or, with `wait`, when none of them is in the queue any more.

        The exit code is 1 if a run has failed and is not submitted again. It is 130 after Ctrl-C once something is
        submitted; then the jobs continue.

        Raises:
            UserError: SLURM refuses the job, or does not answer.
        """
        folders, jobs = list(runs), list[str]()
        try:
            left = self._submit_all(runs, jobs)
            if not self.wait:
                return 1 if left.failed else 0
            follow(folders, lambda: not is_queued(folders), POLL_SECONDS)
        except KeyboardInterrupt:
            if not jobs:  # nothing has been submitted yet
                raise
            print(f"\nThe jobs continue; to cancel them: scancel {' '.join(jobs)}", file=sys.stderr)
            return 130
        forget_answers()  # SLURM gave them before the runs left the queue
        states = read_states([folder for folder in folders if folder not in left.elsewhere])
        reasons = {folder: _why(state) for folder, state in states.items() if not folder.is_complete}
        return Tally(folders, reasons, set(left.elsewhere)).print()

    def _submit_all(self, runs: Mapping[RunFolder, Config], jobs: list[str]) -> Unfinished:
        """Submit the runs that are neither complete nor queued, and print what was done with each of the others.

        The numbers of the jobs that the runs wait for are added to `jobs`, even if Ctrl-C interrupts the submission.
        """
        folders = list(runs)
        # If two commands submit at once, the second sees the runs of the first in the queue.
        with filelock.FileLock(Path(runs[folders[0]].output_root) / ".slurm.lock"):
            left = sort_out(folders, self.retry)
            self._submit({folder: runs[folder] for folder in left.new}, jobs)
        jobs += sorted({task.split("_")[0] for task in left.queued.values()}, key=int)
        for folder, task in left.queued.items():
            if not folder.job:  # overwrite=true deleted the note, or a command died before it wrote it
                Job(job=task, submitted=datetime.now(UTC)).write(folder.path)
        results = [result for folder in folders if (result := folder.completed)]
        diverged = sum(result.status == DIVERGED for result in results)
        complete = f"{len(results)} complete" + (f" ({diverged} diverged)" if diverged else "")
        print(
            f"{len(left.new)} of {len(folders)} runs submitted; {len(left.queued)} already in the queue, "
            f"{len(left.elsewhere)} running elsewhere, {len(left.failed)} failed before, {complete}"
        )
        for array, queued_task in left.pending.items():
            config = next(runs[folder] for folder, task in left.queued.items() if task.partition("_")[0] == array)
            options = changed_options(array, queued_task, self.directives(queued_task.script.parent, 1, config))
            for line in filter(None, (options, queued_code(array, queued_task))):
                print(printable(line))
        print_failed_before(left.failed)
        if jobs:
            print(f"cancel  scancel {' '.join(jobs)}" + "  (all jobs with these runs)" * (len(jobs) > 1))
        sweep = RunFolder(folders[0].path.parents[1])
        print(printable(f"status  {program('report')} {shlex.quote(str(sweep))} --status"), flush=True)
        return left

    def submit_next(self, folders: Sequence[RunFolder], words: Sequence[str]) -> str:
        """Submit a job that executes the command `words` again when the runs in `folders` have ended.

        Returns a line to print about the job. If such a job already waits, no second one is submitted.

        Raises:
            UserError: SLURM refuses it, or does not answer.
        """
        left = [folder.job for folder in folders if folder.job and not folder.is_complete]
        if not (arrays := sorted({job.job.split("_")[0] for job in left}, key=int)):
            return "the round trains elsewhere; when it has ended, give the same command to continue"
        sweep = folders[0].path.parents[1]
        name, this = f"{sweep.name}:train", os.environ.get("SLURM_JOB_ID")
        waiting = slurm_answer("squeue", "--noheader", f"--user={os.getuid()}", f"--name={name}", "--format=%A").split()
        if earlier := [number for number in waiting if number != this]:
            return f"next    {earlier[0]}: takes the next decision when the round has ended"
        directory = (sweep / LOGS / arrays[-1]).resolve()
        directives = self._cpu_directives(directory, "train")
        log = sweep.resolve() / LOGS / "decisions.out"  # of all rounds, so that its end says how they ended
        number = submit_after(arrays, directory, "train", words, directives, self.setup or (), snapshot(sweep), log)
        cancel = f"to cancel both: scancel {' '.join([*arrays, number])}"
        return f"next    {number}: takes the next decision when the round has ended; {cancel}; log in {RunFolder(log)}"

    def directives(self, directory: Path, tasks: int, config: Config, after: Sequence[str] = ()) -> list[str]:
        """Return sbatch's options for an array of `tasks` tasks that execute runs like this one.

        The array's files are in `directory`. The array begins when the arrays `after` have ended.
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
            given["dependency"] = ",".join([f"afterany:{':'.join(after)}", *others])
        if self.gpus is None and {"gres", "gpus", "gpus-per-task", "gpus-per-node"} & options.keys():
            given["gpus-per-node"] = options.get("gpus-per-node")  # another option asks for GPUs
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]

    def _to_submit(self, runs: Mapping[RunFolder, Config]) -> dict[RunFolder, Config]:
        """Return the runs that are not queued and have not ended, unless they are trained again."""
        left = sort_out(list(runs), self.retry)
        ended = [folder for folder in runs if folder.is_complete or folder in left.failed]
        return {folder: runs[folder] for folder in [*left.new, *(each for each in ended if runs[each].overwrite)]}

    def _processes(self, config: Config) -> int:
        """Count a run's processes on all nodes; devices=auto means one for each requested GPU, or one for each node."""
        return (self.gpus or 1) * self.nodes if config.devices == "auto" else config.devices

    def _groups(self, runs: Mapping[RunFolder, Config]) -> list[list[RunFolder]]:
        """Group runs by their number of processes; each group becomes an array, and usually there is only one."""
        processes = {folder: self._processes(config) for folder, config in runs.items()}
        groups = groupby(sorted(runs, key=processes.__getitem__), key=processes.__getitem__)
        return [list(group) for _, group in groups]

    def _per_task(self, groups: Sequence[Sequence[RunFolder]]) -> int:
        """Return how many runs a task executes: `runs_per_task`, or as few as SLURM's limits allow.

        Raises:
            UserError: SLURM takes fewer tasks, or does not answer.
        """
        if not groups:
            return 1
        (in_array, array_limit), (in_queue, queue_limit) = limits(self.account)

        def is_possible(runs: int) -> bool:
            tasks = [math.ceil(len(group) / runs) for group in groups]
            return max(tasks) <= in_array and sum(tasks) + self.report <= in_queue

        wanted = f"{sum(map(len, groups))} runs"
        taken = f"SLURM takes {in_array} tasks in an array ({array_limit}) and {in_queue} more jobs now ({queue_limit})"
        least = next(filter(is_possible, range(1, max(map(len, groups)) + 1)), None)
        if least is None:
            raise UserError(f"launcher=slurm: {wanted} cannot be submitted: {taken}; try again later")
        if self.runs_per_task and self.runs_per_task < least:
            given = f"launcher.runs_per_task={self.runs_per_task}"
            raise UserError(f"{given}: too few for {wanted}: {taken}; give {least} or more, or null")
        return self.runs_per_task or least

    def _submit(self, runs: Mapping[RunFolder, Config], jobs: list[str]) -> None:
        """Submit an array for each group of `_groups`, and the job of the report; add their numbers to `jobs`."""
        groups = self._groups(runs)
        if not groups:
            return
        per_task = self._per_task(groups)
        earlier = self._earlier_arrays(runs)
        submission, lines = Submission(groups[0][0].path.parents[1]), []
        directory, arrays = submission.directory, submission.arrays
        try:
            for number, folders in enumerate(groups):
                before = (arrays[-1:] or earlier) if self.at_once else []
                tasks = {folder: place // per_task for place, folder in enumerate(folders)}
                config = runs[folders[0]]
                script = batch_script(
                    self.directives(directory, max(tasks.values()) + 1, config, before),
                    directory,
                    str(number),
                    copy=submission.copy,
                    setup=self.setup or (),
                    several_nodes=self.nodes > 1,
                    several_runs=per_task > 1,
                    fail_fast=config.fail_fast,
                )
                after = f"; begins after {listed(before)} (launcher.at_once={self.at_once})" if before else ""
                lines.append(submission.submit(str(number), script, tasks) + after)
            if self.report:
                lines.append(submission.submit_report(self._cpu_directives(directory, REPORT), self.setup or ()))
        except UserError as error:
            raise UserError(f"{error}{submission.undo()}") from error
        finally:  # also after Ctrl-C
            jobs += [*arrays, *filter(None, [submission.report])]
        print("\n".join(lines), flush=True)

    def _earlier_arrays(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Return the arrays of earlier commands for the same sweep, after which `at_once` lets a new one begin."""
        folder, config = next(iter(runs.items()))
        is_sweep = config.sweep is not None or config.name is not None  # other runs share a folder by chance
        return arrays_of(folder.path.parents[1]) if self.at_once and is_sweep else []

    def _cpu_directives(self, directory: Path, verb: str) -> list[str]:
        """Return sbatch's options for a job that trains nothing: only those that a cluster may demand of every job."""
        given = {"job-name": f"{directory.parents[1].name}:{verb}", "nodes": 1, "ntasks": 1}
        options = {"partition": self.partition, "account": self.account, "time": self.time, **(self.options or {})}
        given |= {name: value for name, value in options.items() if name in OF_EVERY_JOB and value is not None}
        return [f"--{name}={value}" for name, value in given.items()]


def _why(state: State) -> str:
    """Return why a run that has left the queue has no result."""
    if state.name == FAILED and state.reason:
        return state.reason
    return f"{state.name}: {state.reason}" if state.reason else f"{state.name}, and no longer in the queue"
