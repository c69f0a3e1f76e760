"""SLURM's queue: which runs are in it, which are still to be submitted, and how many more jobs it takes."""

import os
import pwd
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deepnets.errors import UserError
from deepnets.launch.grid import Retry
from deepnets.launch.task import LEFT, ROWS
from deepnets.runs.contents import FAILED
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import RUNNING, read_state

FILES = ".slurm"  # in the sweep's folder: a folder for each submission, with its scripts, logs and lists of runs


@dataclass(frozen=True)
class Unfinished:
    """The runs that are not complete: `queued` with their tasks, running `elsewhere`, `failed` and why, and `new`."""

    queued: dict[RunFolder, str]
    elsewhere: list[RunFolder]
    failed: dict[RunFolder, str]
    new: list[RunFolder]


def sort_out(folders: list[RunFolder], retry: Retry | None) -> Unfinished:
    """Sort the runs that are not complete by what is to be done; a failed run is new only if `retry` says so."""
    tasks, left = _tasks(), Unfinished({}, [], {}, [])
    queue = _runs_of(tasks)
    for folder in folders:
        state = read_state(folder)
        if folder.is_complete:
            continue
        if task := queue.get(key_of(folder)):
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
    lines = slurm_answer("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F %K %o").splitlines()
    words = [line.split(" ", 2) for line in lines]
    return {job if task == "N/A" else f"{job}_{task}": Path(script.strip()) for job, task, script in words}


def _runs_of(tasks: dict[str, Path]) -> dict[str, str]:
    """The runs of these tasks that have not ended, by `key_of`, each with its task.

    They are read beside the scripts, not in the runs' folders: a parent may be killed before it notes a task there.
    """
    by_script: dict[Path, dict[str, str]] = {}
    for name, script in tasks.items():
        by_script.setdefault(script, {})[name.partition("_")[2]] = name
    runs = {}
    for script, names in by_script.items():
        rows = script.with_suffix(ROWS)
        if script.parent.parent.name != FILES or not rows.is_file():
            continue
        begun = {file.name.removesuffix(LEFT): file for file in script.parent.glob(f"*{LEFT}")}
        for line in rows.read_text().splitlines():
            task, _, row = line.partition(" ")
            if task in names and names[task] not in begun:
                runs[row] = names[task]
        for begun_task in begun.keys() & names.values():
            with suppress(FileNotFoundError):  # it has just ended
                runs |= dict.fromkeys(begun[begun_task].read_text().splitlines(), begun_task)
    return runs


def is_queued(folders: list[RunFolder]) -> bool:
    """Whether SLURM holds any of the runs, executing or to be executed."""
    try:
        return not _runs_of(_tasks()).keys().isdisjoint(key_of(folder) for folder in folders)
    except UserError:  # the controller is busy for a moment
        return True


def key_of(folder: RunFolder) -> str:
    """The run's name in `ROWS`: its folder, whatever the working directory."""
    return str(folder.path.resolve())


def slurm_answer(*command: str) -> str:
    """What a command of SLURM prints.

    Raises:
        UserError: the command fails; says how.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout


def limits(account: str | None) -> tuple[tuple[int, str], tuple[int, str]]:
    """How many tasks SLURM takes in an array, and how many more jobs of this user now; each with the limit's name.

    Each task of an array counts as a job. Only what SLURM answers limits them: it may also have rules of which it tells
    nothing, and refuse the array.

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
            mine = [f"{_user()} {charged} {state}" for state in ("PENDING", "RUNNING")]
            in_queue["MaxSubmitJobs"] = most - sum(job in mine for job in jobs)
    (tasks, array_limit), (free, queue_limit) = (
        min((number, name) for name, number in each.items()) for each in (in_array, in_queue)
    )
    return (tasks, array_limit), (max(0, free), queue_limit)


def _most_submitted(account: str | None, cluster: str) -> list[tuple[str, int]]:
    """The account, None is the user's usual one, with MaxSubmitJobs there; nothing where no limit is known."""
    words = [f"name={_user()}", f"cluster={cluster}", "withassoc", "format=DefaultAccount,Account,MaxSubmitJobs"]
    try:
        lines = slurm_answer("sacctmgr", "--noheader", "--parsable2", "show", "user", *words).splitlines()
    except UserError:  # its database does not answer; then sbatch says what is too much
        return []
    found = [line.split("|") for line in lines]
    return [(each, int(most)) for usual, each, most in found if each == (account or usual) and most]


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name
