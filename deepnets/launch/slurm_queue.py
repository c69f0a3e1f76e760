"""SLURM's queue: which runs it holds, and which are left to submit."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import FAILED, RUNNING, read_state

Retry = Literal["failed"]  # which runs that have ended without a result are submitted again
ROWS = "rows.txt"  # beside the script of an array: the folder of task i in line i


def key_of(folder: RunFolder) -> str:
    """The folder's name in `ROWS` and in `queued_rows`, whatever the working directory."""
    return str(folder.path.resolve())


@dataclass(frozen=True)
class Rows:
    """The runs that are not complete: `queued` with their tasks, running `elsewhere`, `failed` and why, and `new`."""

    queued: dict[RunFolder, str]
    elsewhere: list[RunFolder]
    failed: dict[RunFolder, str]
    new: list[RunFolder]


def rows_of(folders: list[RunFolder], retry: Retry | None) -> Rows:
    """What is to be done about each run; what has failed is new only where `retry` says so."""
    tasks, rows = _tasks(), Rows({}, [], {}, [])
    queue = _rows_in(tasks)
    for folder in folders:
        state = read_state(folder)
        if folder.is_complete:
            continue
        if task := queue.get(key_of(folder)):
            rows.queued[folder] = task
        elif state.name == RUNNING and (not state.job or state.job in tasks):  # in a job that has gone it was killed
            rows.elsewhere.append(folder)
        elif state.name == FAILED and retry != FAILED:
            rows.failed[folder] = state.reason or ""
        else:
            rows.new.append(folder)
    return rows


def queued_rows() -> dict[str, str]:
    """The runs that SLURM holds for this user, running or to be run, and their tasks as in `123_4`."""
    return _rows_in(_tasks())


def _tasks() -> dict[str, Path]:
    """The script of each job of this user: `123_4` is a task of an array, `123` a job that is none."""
    lines = slurm_answer("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F %K %o").splitlines()
    words = [line.split(" ", 2) for line in lines]
    return {job if task == "N/A" else f"{job}_{task}": Path(script.strip()) for job, task, script in words}


def _rows_in(tasks: dict[str, Path]) -> dict[str, str]:
    """Known by their scripts, so that what a parent had no time to note before it was killed is found."""
    rows = {}
    for name, script in tasks.items():
        file = script.parent / ROWS
        if script.parent.parent.name == ".slurm" and file.is_file():
            rows[file.read_text().splitlines()[int(name.split("_")[1])]] = name
    return rows


def slurm_answer(*command: str) -> str:
    """What the command prints.

    Raises:
        UserError: it fails; says how.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{command[0]}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout
