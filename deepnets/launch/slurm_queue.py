"""Asks SLURM which runs are in its queue, so that only the others are submitted, and how many more jobs it takes."""

import math
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deepnets.errors import UserError
from deepnets.launch.grid import Retry
from deepnets.launch.task import LEFT, ROWS
from deepnets.runs.contents import FAILED
from deepnets.runs.folder import RunFolder
from deepnets.runs.jobs import ENDED
from deepnets.runs.status import RUNNING, read_state

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
        if task := queue.get(key_of(folder)):
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


def _runs_of(tasks: dict[str, QueuedTask]) -> dict[str, str]:
    """Return the name of the task that executes or will execute each run, by the run's `key_of`.

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
        return not _runs_of(_tasks()).keys().isdisjoint(key_of(folder) for folder in folders)
    except UserError:  # the controller is busy for a moment
        return True


def key_of(folder: RunFolder) -> str:
    """Return the run's name in `ROWS`: the absolute path of its folder."""
    return str(folder.path.resolve())


def slurm_answer(*command: str) -> str:
    """Execute a command of SLURM and return its output.

    Raises:
        UserError: the command fails; the message is its error output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
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
