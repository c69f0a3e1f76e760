"""The launcher `slurm`: a job array with a task for each run; SLURM alone schedules, requeues and cancels the tasks.

Below the launcher: SLURM's queue, with the runs that are still to be submitted, and the script of an array.
"""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import filelock
from annotated_types import Ge, Le

from deepnets.config.project import program
from deepnets.config.schema import Config
from deepnets.config.trust import trusted
from deepnets.errors import UserError, printable
from deepnets.launch.grid import OUTPUT, Tally, lines_by_reason
from deepnets.runs.contents import FAILED, Job
from deepnets.runs.execute import LOCKED
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.status import RUNNING, follow, read_state
from deepnets.system.files import make_own_folder
from deepnets.system.ranges import Count, Name, Size

POLL_SECONDS = 5  # between two looks at the queue, which all users of a cluster share
EARLY_SECONDS = 60  # SLURM signals up to this much earlier than asked
ROWS = "rows.txt"  # beside the script of an array: the folder of task i is in line i
Retry = Literal["failed"]  # which runs that have ended without a result are submitted again


@dataclass(frozen=True)
class Slurm:
    """`sbatch` with these options: a task for each run that is neither complete nor in the queue; see conf/launcher/.

    A run that is warned of its time limit saves, is queued again and resumes; so does a preempted one.
    """

    in_process: ClassVar[bool] = False

    partition: Name | None
    account: Name | None
    time: Count | Name | None
    nodes: Size
    gpus: Annotated[int, Ge(0), Le(1024)] | None
    cpus: Size | None
    at_once: Size | None
    warning: Annotated[int, Ge(1), Le(65_535)]  # as sbatch takes it
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
        if not shutil.which("sbatch"):
            raise UserError(
                "launcher=slurm: no sbatch on this machine; submit from one that has it, or use launcher=pool or local"
            )

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Submit the runs that are to be trained and return at once, or with `wait` when none is in the queue any more.

        Returns 1 when a run has failed and is not submitted again, 130 on Ctrl-C while waiting: the jobs continue.

        Raises:
            UserError: SLURM refuses the job, or does not answer.
        """
        # Of two commands at once, the second finds the runs of the first in the queue.
        with filelock.FileLock(Path(config.output_root) / ".slurm.lock"):
            left = _sort_out(folders, self.retry)
            arrays = [self._submit(alike, config) for alike in self._alike(left.new)]
        arrays += sorted({task.split("_")[0] for task in left.queued.values()}, key=int)
        complete = sum(folder.is_complete for folder in folders)
        print(
            f"{len(left.new)} of {len(folders)} runs submitted; {len(left.queued)} in the queue before, "
            f"{len(left.elsewhere)} running elsewhere, {len(left.failed)} failed before, {complete} complete"
        )
        if left.failed:
            lines = ["launcher.retry=failed submits again what failed:", *lines_by_reason(left.failed)]
            print(printable("\n".join(lines)), file=sys.stderr)
        if arrays:
            print(f"cancel  scancel {' '.join(arrays)}")
        sweep = RunFolder(folders[0].path.parents[1])
        print(printable(f"status  {program('report')} {shlex.quote(str(sweep))} --status"), flush=True)
        if not self.wait:
            return 1 if left.failed else 0
        try:
            follow(folders, lambda: not _is_queued(folders), POLL_SECONDS)
        except KeyboardInterrupt:
            print(f"\nThe jobs continue; to cancel them: scancel {' '.join(arrays)}", file=sys.stderr)
            return 130
        states = {folder: read_state(folder) for folder in folders if folder not in left.elsewhere}
        reasons = {
            folder: state.reason or f"{state.name}, and no longer in the queue"
            for folder, state in states.items()
            if not folder.is_complete
        }
        return Tally(folders, reasons, set(left.elsewhere)).print()

    def directives(self, directory: Path, rows: int, config: Config) -> list[str]:
        """The options of sbatch for an array of `rows` runs like this one, whose files are in `directory`."""
        processes = self._processes(config) // self.nodes
        tasks = processes if self.nodes > 1 else 1  # on one node the run starts its processes itself
        gpus = (0 if config.device == "cpu" else processes) if self.gpus is None else self.gpus
        given = {
            "job-name": f"deepnets:{directory.parents[1].name}",
            "array": f"0-{rows - 1}" + (f"%{self.at_once}" if self.at_once else ""),
            "output": str(directory / "%a.out"),
            "open-mode": "append",
            "requeue": True,
            "signal": f"B:USR1@{self.warning}",
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "nodes": self.nodes,
            "ntasks-per-node": tasks,
            "cpus-per-task": self.cpus and self.cpus * processes // tasks,
            "gpus-per-node": gpus or None,
            **(self.options or {}),
        }
        if self.gpus is None and {"gres", "gpus", "gpus-per-task", "gpus-per-node"} & (self.options or {}).keys():
            given["gpus-per-node"] = (self.options or {}).get("gpus-per-node")  # another option asks for them
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]

    def _processes(self, config: Config) -> int:
        """The processes of a run on all nodes; devices=auto is one per GPU that is asked for, at least one per node."""
        return (self.gpus or 1) * self.nodes if config.devices == "auto" else config.devices

    def _alike(self, folders: Collection[RunFolder]) -> list[list[RunFolder]]:
        """The runs in groups that need the same; each group becomes an array, and mostly there is one."""
        processes = {folder: self._processes(folder.config) for folder in folders}
        groups = groupby(sorted(folders, key=processes.__getitem__), key=processes.__getitem__)
        return [list(group) for _, group in groups]

    def _submit(self, folders: list[RunFolder], config: Config) -> str:
        """Submit runs that need the same as one array; returns its number."""
        directory = _new_directory(folders[0].path.parents[1] / ".slurm")
        (directory / ROWS).write_text("".join(f"{_key_of(folder)}\n" for folder in folders))
        script = _batch_script(
            self.directives(directory, len(folders), folders[0].config),
            directory / ROWS,
            several_nodes=self.nodes > 1,
            fail_fast=config.fail_fast,
        )
        (directory / "rows.sh").write_text(script)
        for folder in folders:
            with suppress(Locked), folder.hold():  # another process may have begun to execute it a moment ago
                folder.retry()
        submitted = datetime.now(UTC)  # before, as a task may start at once
        array = _slurm_answer("sbatch", "--parsable", str(directory / "rows.sh")).strip().split(";")[0]
        for task, folder in enumerate(folders):
            Job(job=f"{array}_{task}", submitted=submitted).write(folder.path)
        print(f"job     {array}: {len(folders)} runs", flush=True)
        return array


def _new_directory(parent: Path) -> Path:
    """Create the directory of an array: its name is the next free number."""
    make_own_folder(parent)
    for number in count(1):
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)
    raise AssertionError


def _is_queued(folders: list[RunFolder]) -> bool:
    """Whether SLURM holds any of the runs, executing or to be executed."""
    try:
        return not _runs_of(_tasks()).keys().isdisjoint(_key_of(folder) for folder in folders)
    except UserError:  # the controller is busy for a moment
        return True


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


@dataclass(frozen=True)
class _Unfinished:
    """The runs that are not complete: `queued` with their tasks, running `elsewhere`, `failed` and why, and `new`."""

    queued: dict[RunFolder, str]
    elsewhere: list[RunFolder]
    failed: dict[RunFolder, str]
    new: list[RunFolder]


def _sort_out(folders: list[RunFolder], retry: Retry | None) -> _Unfinished:
    """Sort the runs that are not complete by what is to be done; a failed run is new only if `retry` says so."""
    tasks, left = _tasks(), _Unfinished({}, [], {}, [])
    queue = _runs_of(tasks)
    for folder in folders:
        state = read_state(folder)
        if folder.is_complete:
            continue
        if task := queue.get(_key_of(folder)):
            left.queued[folder] = task
        elif state.name == RUNNING and (not state.job or state.job in tasks):  # if its job is gone, it was killed
            left.elsewhere.append(folder)
        elif state.name == FAILED and retry != FAILED:
            left.failed[folder] = state.reason or ""
        else:
            left.new.append(folder)
    return left


def _tasks() -> dict[str, Path]:
    """The script of each job of this user: `123_4` is a task of an array, `123` a job without tasks."""
    lines = _slurm_answer("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F %K %o").splitlines()
    words = [line.split(" ", 2) for line in lines]
    return {job if task == "N/A" else f"{job}_{task}": Path(script.strip()) for job, task, script in words}


def _runs_of(tasks: dict[str, Path]) -> dict[str, str]:
    """The runs of these tasks by `_key_of`, each with its task.

    They are read beside the scripts, not in the runs' folders: a parent may be killed before it notes a task there.
    """
    runs = {}
    for name, script in tasks.items():
        file = script.parent / ROWS
        if script.parent.parent.name == ".slurm" and file.is_file():
            runs[file.read_text().splitlines()[int(name.split("_")[1])]] = name
    return runs


def _key_of(folder: RunFolder) -> str:
    """The run's name in `ROWS`: its folder, whatever the working directory."""
    return str(folder.path.resolve())


def _slurm_answer(*command: str) -> str:
    """What a command of SLURM prints.

    Raises:
        UserError: the command fails; says how.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout


# SLURM sends its warning to this shell alone (--signal=B:); the SIGTERM that ends a job it sends to this shell and, on
# some clusters, to all processes below. The shell passes both on, and a wait that a signal broke off starts again. Exit
# code 138 is 128 + SIGUSR1: the run is saved and its time limit is near. A command that could not even start writes no
# result, so the shell does. A run that was killed has not failed and is submitted again; nor has a run failed that
# ended with {locked}, because another process executes its folder.
BODY = """
mapfile -t rows <{rows}
row=${{rows[SLURM_ARRAY_TASK_ID]}}
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
echo "$(date -Iseconds) $task on $(hostname): $row"
signal= child=
pass_on() {{
    signal=$1
    [ -z "$child" ] || {kill} 2>/dev/null
}}
for file in {output} result.json; do  # a link would be followed
    [ ! -L "$row/$file" ] || rm "$row/$file"
done
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then
    export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM
{run} >>"$row"/{output} 2>&1 &
child=$!
[ -z "$signal" ] || pass_on "$signal"
while signal=; wait "$child"; code=$?; [ -n "$signal" ]; do :; done
child=
echo "$(date -Iseconds) $task: exit code $code"
if [ "$code" -eq 138 ]; then
    scontrol requeue "$task" && exit 0
elif [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && [ "$code" -ne {locked} ] && [ ! -e "$row/result.json" ]; then
    flock --nonblock "$row/.lock" bash -c 'echo "$2" >"$1/result.json"' note "$row" \\
        '{{"status": "failed", "job": "'"$task"'", "reason": "exit code '"$code"'; see {output}"}}'
fi
{on_failure}exit "$code"
"""
FAIL_FAST = """if [ "$code" -ge 1 ] && [ "$code" -lt 128 ] && [ "$code" -ne {locked} ]; then
    scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
fi
"""
KILL = 'kill "-$1" "$child"'
# srun, the first step of the job, passes SIGUSR1 on, but on SIGTERM it kills what it has started.
KILL_RANKS = '{ [ "$1" = TERM ] && scancel --signal=TERM "$SLURM_JOB_ID.0" || kill "-$1" "$child"; }'
# One process per device, as torchrun starts them, but each is a task of SLURM, so that signals reach it directly. When
# one has ended, the others have a minute to end by themselves: one of them may be saving.
RANKS = """export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
rank='export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
srun --kill-on-bad-exit=0 --wait=60 bash -c "$rank" rank """


def _batch_script(directives: Sequence[str], rows: Path, *, several_nodes: bool, fail_fast: bool) -> str:
    """The script of an array whose task i executes the folder in line i of the file `rows`.

    A run that saved because its time limit is near is queued again; any other exit code becomes the task's.

    Raises:
        UserError: a directive holds a line break, and what is behind it would be a command of the script.
    """
    if broken := [word for word in (*directives, str(rows)) if "\n" in word]:
        raise UserError(f"launcher=slurm: {broken[0]!r}: a line break cannot be part of it")
    trust = [f"--trust={name}" for name in trusted()]
    run = " ".join([shlex.join([sys.executable, "-m", "deepnets.run"]), '"$row"', *map(shlex.quote, trust)])
    body = BODY.format(
        rows=shlex.quote(str(rows)),
        run=RANKS + run if several_nodes else run,
        kill=KILL_RANKS if several_nodes else KILL,
        output=OUTPUT,
        locked=LOCKED,
        on_failure=FAIL_FAST.format(locked=LOCKED) if fail_fast else "",
    )
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {shlex.quote(directive)}" for directive in directives), body])
