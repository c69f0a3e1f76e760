"""Reads SLURM's queue, asks how many more jobs it takes, and submits the arrays of a sweep, all or none."""

import math
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from deepnets.errors import UserError, listed
from deepnets.launch.grid import Retry
from deepnets.launch.task import ARRAYS, LEFT, ROWS, changed_since, snapshot, verifying_lines
from deepnets.runs.code import FOLDER
from deepnets.runs.contents import FAILED, Job, Result
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.jobs import ENDED, LOGS
from deepnets.runs.status import RUNNING, read_state
from deepnets.system.files import make_own_folder, write_atomically

SCRIPT = ".sh"
STAMP = 'echo "== job $SLURM_JOB_ID, $(date -Iseconds)"'  # at the head of a log to which several jobs may append
REPORT = "report"  # the name of the job that writes the report, of its script and of its log
FILES = ".slurm"  # in the sweep's folder: a folder for each submission, with its scripts, logs and lists of runs
# Options that differ between any two submissions.
OF_SUBMISSION = ("array", "output", "dependency", "job-name", "hold")
# Options that scontrol can change in the queue, with its names for them.
UPDATES = {"time": "TimeLimit", "partition": "Partition", "account": "Account", "qos": "QOS"}


@dataclass(frozen=True)
class QueuedTask:
    """A task in SLURM's queue: its script, whether it is pending, and the options that squeue shows."""

    script: Path
    is_pending: bool
    options: dict[str, str]


@dataclass(frozen=True)
class Unfinished:
    """The runs that are not complete: `queued` with their tasks, running `elsewhere`, `failed` with reasons, and `new`.

    `pending` has, for each array, one task that has not begun and will execute one of these runs.
    """

    queued: dict[RunFolder, str]
    elsewhere: list[RunFolder]
    failed: dict[RunFolder, str]
    new: list[RunFolder]
    pending: dict[str, QueuedTask]


def sort_out(folders: list[RunFolder], retry: Retry | None) -> Unfinished:
    """Sort the runs that are not complete by their state; a failed run counts as new only if `retry` is "failed"."""
    tasks, left = _tasks(), Unfinished({}, [], {}, [], {})
    queue = _runs_of(tasks)
    for folder in folders:
        state = read_state(folder)
        if folder.is_complete:
            continue
        if task := queue.get(row_name(folder)):
            left.queued[folder] = task
            if tasks[task].is_pending:
                left.pending[task.partition("_")[0]] = tasks[task]
        elif state.name == RUNNING and (not state.job or state.job in tasks):  # without its job, it was killed
            left.elsewhere.append(folder)
        elif state.name == FAILED and retry != FAILED:
            left.failed[folder] = state.reason or ""
        else:
            left.new.append(folder)
    return left


def changed_options(array: str, task: QueuedTask, wanted: Sequence[str]) -> str | None:
    """Return a line that says which options of a pending task differ from `wanted`, and which command changes them.

    None if no option differs, or if the user has changed them in the queue already.
    """
    directives = [pair[1] for line in task.script.read_text().splitlines() if (pair := _directive(line))]
    then, now = _by_name(directives), _by_name(wanted)
    changed = {
        name: (then.get(name), now.get(name))
        for name in then | now
        if then.get(name) != now.get(name) and not _is_same(now.get(name), task.options.get(name), name)
    }
    if not changed:
        return None
    differences = "; ".join(f"{name} {was or 'none'}, now {given or 'none'}" for name, (was, given) in changed.items())
    updates = [f"{UPDATES[name]}={given}" for name, (_, given) in changed.items() if name in UPDATES and given]
    again = f"scancel --state=PENDING {array} and this command again"
    apply = f"scontrol update jobid={array} {' '.join(updates)}, or {again}" if len(updates) == len(changed) else again
    return f"queued  {array}: keeps the options it was submitted with ({differences}); to apply them: {apply}"


def queued_code(array: str, task: QueuedTask) -> str | None:
    """Return a line that says which files of deepnets a pending array executes as they were; None if none changed."""
    if not (files := changed_since(task.script)):
        return None
    return (
        f"queued  {array}: will execute deepnets as it was submitted ({listed(files)} changed since); for today's: "
        f"scancel --state=PENDING {array} and this command again"
    )


def _is_same(given: str | None, queued: str | None, name: str) -> bool:
    if not given or not queued:
        return False
    return seconds_of(given) == seconds_of(queued) if name == "time" else given == queued


def _directive(line: str) -> list[str]:
    """Split a line `#SBATCH --name=value` into its two words; returns [] for any other line."""
    return shlex.split(line.removeprefix("#"), posix=True) if line.startswith("#SBATCH ") else []


def _by_name(directives: Sequence[str]) -> dict[str, str]:
    """Return sbatch's options by name, without those in `OF_SUBMISSION`."""
    pairs = (word.removeprefix("--").partition("=") for word in directives)
    return {name: value or "given" for name, _, value in pairs if name not in OF_SUBMISSION}


def seconds_of(limit: int | str) -> float:
    """Convert SLURM's minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]] to seconds.

    Anything else, such as UNLIMITED, means no limit: infinity.
    """
    days, _, clock = str(limit).rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [days or "0", *parts]) or len(parts) > 3:
        return math.inf
    units = [3600, 60, 1] if days else {1: [60], 2: [60, 1], 3: [3600, 60, 1]}[len(parts)]
    return 86400 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))


def _tasks() -> dict[str, QueuedTask]:
    """Return this user's tasks by name: `123_4` is a task of an array, `123` a job without an array."""
    form = "--format=%F %K %T %l %P %a %q %o"
    lines = slurm_answer("squeue", "--noheader", "--array", f"--user={os.getuid()}", form).splitlines()
    tasks = {}
    for line in lines:
        job, task, state, time, partition, account, qos, script = line.split(" ", 7)
        options = {"time": time, "partition": partition, "account": account, "qos": qos}
        name = job if task == "N/A" else f"{job}_{task}"
        tasks[name] = QueuedTask(Path(script.strip()), state == "PENDING", options)
    return tasks


def arrays_of(sweep: Path) -> list[str]:
    """Return the numbers of the arrays in the queue that execute runs of the sweep in this folder."""
    own = (sweep / FILES).resolve()
    names = (name for name, task in _tasks().items() if "_" in name and task.script.resolve().is_relative_to(own))
    return sorted({name.partition("_")[0] for name in names}, key=int)


def _runs_of(tasks: dict[str, QueuedTask]) -> dict[str, str]:
    """Return the name of the task that executes or will execute each run, by the run's `row_name`.

    This reads the lists beside the scripts, not the runs' folders: a command may die before it notes a task in them.
    """
    by_script: dict[Path, dict[str, str]] = {}
    for name, task in tasks.items():
        by_script.setdefault(task.script, {})[name.partition("_")[2]] = name
    runs = {}
    for script, names in by_script.items():
        rows = script.with_suffix(ROWS)
        if script.parent.parent.name != FILES or not rows.is_file():
            continue
        begun = {file.name.removesuffix(LEFT): file for file in script.parent.glob(f"*{LEFT}")}
        for line in rows.read_text().splitlines():
            place, _, row = line.partition(" ")
            if place in names and names[place] not in begun:
                runs[row] = names[place]
        for begun_task in begun.keys() & names.values():
            with suppress(FileNotFoundError):  # the task has just ended
                runs |= dict.fromkeys(begun[begun_task].read_text().splitlines(), begun_task)
    return runs


def is_queued(folders: list[RunFolder]) -> bool:
    """Return whether a task in SLURM's queue executes or will execute any of the runs.

    Returns True also if SLURM does not answer.
    """
    try:
        return not _runs_of(_tasks()).keys().isdisjoint(row_name(folder) for folder in folders)
    except UserError:  # the controller is busy for a moment
        return True


def row_name(folder: RunFolder) -> str:
    """Return the run's name in `ROWS`: the absolute path of its folder."""
    return str(folder.path.resolve())


def slurm_answer(*command: str) -> str:
    """Execute a command of SLURM and return its output.

    Raises:
        UserError: the command fails; the message is its error output, or only what it calls fatal.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.removeprefix(f"{command[0]}: ") for line in done.stderr.split("\n") if line.strip()]
        if fatal := [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]:
            asked = "does this machine belong to a cluster?"
            lines = [*fatal, *[asked] * any("configuration source" in each for each in fatal)]
        raise UserError(f"SLURM's {command[0]} fails: {'; '.join(lines) or f'exit code {done.returncode}'}")
    return done.stdout


def limits(account: str | None) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return how many tasks an array may have and how many more jobs this user may submit, each with the limit's name.

    Each task of an array counts as a job. SLURM may refuse the array all the same, by rules that it does not show.

    Raises:
        UserError: SLURM does not answer.
    """
    settings = dict(re.findall(r"^(\w+) *= (.*)$", slurm_answer("scontrol", "show", "config"), re.MULTILINE))
    in_array = {"MaxArraySize": int(settings["MaxArraySize"])}
    if match := re.search(r"max_array_tasks=(\d+)", settings["SchedulerParameters"]):
        in_array["max_array_tasks"] = int(match[1])
    jobs = slurm_answer("squeue", "--noheader", "--array", "--states=all", "--format=%u %a %T").splitlines()
    in_queue = {"MaxJobCount": int(settings["MaxJobCount"]) - 1 - len(jobs)}
    if {"limits", "safe"} & set(settings["AccountingStorageEnforce"].split(",")):
        for charged, most in _most_submitted(account, settings["ClusterName"]):
            ended = [f"{_user()} {charged} {state}" for state in ENDED]
            mine = [job for job in jobs if job.startswith(f"{_user()} {charged} ") and job not in ended]
            in_queue["MaxSubmitJobs"] = most - len(mine)
    (tasks, array_limit), (free, queue_limit) = (
        min((number, name) for name, number in each.items()) for each in (in_array, in_queue)
    )
    return (tasks, array_limit), (max(0, free), queue_limit)


def _most_submitted(account: str | None, cluster: str) -> list[tuple[str, int]]:
    """Return the account and its MaxSubmitJobs; empty if no limit is known.

    None stands for the user's default account.
    """
    query = [f"name={_user()}", f"cluster={cluster}", "withassoc", "format=DefaultAccount,Account,MaxSubmitJobs"]
    try:
        lines = slurm_answer("sacctmgr", "--noheader", "--parsable2", "show", "user", *query).splitlines()
    except UserError:  # SLURM's database does not answer; sbatch itself refuses too many jobs
        return []
    associations = [line.split("|") for line in lines]
    return [(each, int(most)) for usual, each, most in associations if each == (account or usual) and most]


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


class Submission:
    """The jobs that one command submits for a sweep: `directory` holds their files, `copy` the code that they execute.

    `arrays` are the numbers of the arrays, and `report` is the number of the job that writes the report.
    """

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.directory = sweep, _new_directory(sweep / FILES)
        earlier = {*(sweep / FOLDER).glob("*")}
        self.copy = snapshot(sweep)
        self.arrays: list[str] = []
        self.report: str | None = None
        self._has_new_copy = self.copy is not None and self.copy not in earlier
        self._before: dict[Path, bytes | None] = {}  # earlier contents of runs' files; None: no file

    def submit(self, name: str, script: str, tasks: Mapping[RunFolder, int]) -> str:
        """Submit an array with this script, note its tasks in the runs' folders, and return a line to print about it.

        Raises:
            UserError: SLURM refuses it.
        """
        file = (self.directory / name).with_suffix(SCRIPT)
        file.with_suffix(ROWS).write_text("".join(f"{task} {row_name(each)}\n" for each, task in tasks.items()))
        for folder in tasks:
            if (result := folder.path / Result.FILE).is_file():  # an earlier attempt failed
                with suppress(Locked), folder.hold():  # another process may have begun to execute the run just now
                    self._before[result] = result.read_bytes()
                    folder.discard_failure()
        submitted = datetime.now(UTC)  # the time before sbatch, as a task may start at once
        array = _number(file, script)
        self.arrays.append(array)
        write_atomically(self.directory / ARRAYS, " ".join(self.arrays))
        for folder, task in tasks.items():
            noted = folder.path / Job.FILE
            self._before[noted] = noted.read_bytes() if noted.is_file() else None
            Job(job=f"{array}_{task}", submitted=submitted).write(folder.path)
        return f"job     {array}: {_counted(tasks)}; logs in {self._link(array)}"

    def submit_report(self, directives: Sequence[str], setup: Sequence[str]) -> str:
        """Submit a job that writes the report of the sweep when all arrays have ended; returns a line to print.

        Raises:
            UserError: SLURM refuses it.
        """
        output, words = self.directory / f"{REPORT}.out", [str(self.sweep)]
        self.report = submit_after(self.arrays, self.directory, REPORT, words, directives, setup, self.copy, output)
        log = f"{RunFolder(self.sweep)}/{LOGS}/{self.arrays[-1]}/{output.name}"
        return f"report  {self.report}: goes to {RunFolder(self.sweep)}/report when these runs have ended; log in {log}"

    def undo(self) -> str:
        """Cancel the submitted arrays; returns text that says so, for the end of an error message.

        If no task has begun, this also removes the submission's files, and the runs' files get their earlier contents.

        Raises:
            UserError: SLURM does not cancel the arrays; the message says how to cancel them.
        """
        if self.arrays:
            try:
                slurm_answer("scancel", *self.arrays)
            except UserError as error:
                raise UserError(f"{error}; still in the queue: cancel it by scancel {' '.join(self.arrays)}") from error
        ending = f"; cancelled what was submitted before: {', '.join(self.arrays)}" if self.arrays else ""
        if any(self.directory.glob("*.out")):  # a task has begun; it saves now and needs its files
            return ending
        for file, content in self._before.items():
            if content is not None:
                write_atomically(file, content)
            else:
                file.unlink(missing_ok=True)
        for array in self.arrays:
            (self.sweep / LOGS / array).unlink(missing_ok=True)
        shutil.rmtree(self.directory)
        if self.copy and self._has_new_copy:
            shutil.rmtree(self.copy)
        for folder in (FILES, LOGS, FOLDER):
            with suppress(OSError):  # the folder has files of another submission, or does not exist
                (self.sweep / folder).rmdir()
        return ending

    def _link(self, array: str) -> str:
        """Link the array's number to the submission's files, in place of an older link; returns the link's name."""
        make_own_folder(self.sweep / LOGS)
        link, new = self.sweep / LOGS / array, self.sweep / LOGS / f"{array}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(Path("..", self.directory.relative_to(self.sweep)))
        new.replace(link)
        return f"{RunFolder(self.sweep)}/{LOGS}/{array}"


def submit_after(
    arrays: Sequence[str],
    directory: Path,
    verb: str,
    words: Sequence[str],
    directives: Sequence[str],
    setup: Sequence[str],
    copy: Path | None,
    log: Path,
) -> str:
    """Submit a job that executes `deepnets VERB WORDS` when the arrays have ended; returns its number.

    Its script is in `directory`, named after the verb; it appends to the file `log`.

    Raises:
        UserError: SLURM refuses it.
    """
    lines = [f'eval {shlex.quote(line)} || exit "$?"' for line in setup]
    command = shlex.join([sys.executable, "-m", "deepnets", verb, *words])
    after = f"--dependency=afterany:{':'.join(arrays)}"
    head = [f"#SBATCH {shlex.quote(word)}" for word in (*directives, after, f"--output={log}", "--open-mode=append")]
    # `verifying_lines` would fail the runs in `left`, but this job executes no runs.
    script = "\n".join(["#!/bin/bash", *head, "left=()", STAMP, verifying_lines(copy), *lines, command, ""])
    return _number(directory / f"{verb}{SCRIPT}", script)


def _number(file: Path, script: str) -> str:
    """Submit a script and return the number of its job."""
    file.write_text(script)
    return slurm_answer("sbatch", "--parsable", str(file)).strip().split(";")[0]


def _counted(tasks: Mapping[RunFolder, int]) -> str:
    """Count the runs and tasks in words: `3 runs`, or `3 runs in 2 tasks`."""
    number = len(set(tasks.values()))
    return f"{len(tasks)} run{'s' * (len(tasks) > 1)}" + (
        f" in {number} task{'s' * (number > 1)}" if number < len(tasks) else ""
    )


def _new_directory(parent: Path) -> Path:
    """Create the directory of a submission, named by the next free number."""
    make_own_folder(parent)
    for number in count(1):
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)
    raise AssertionError
