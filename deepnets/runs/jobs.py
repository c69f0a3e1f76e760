"""Asks SLURM about the tasks that train runs, and reads in a task's log how the task ended."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deepnets.distributed.signals import SIGNALS
from deepnets.distributed.spawn import how_it_ended
from deepnets.runs.contents import Job
from deepnets.runs.folder import RunFolder
from deepnets.system.files import end_of

LOGS = "slurm"  # in the sweep's folder: for each array, a link (named by the array's number) to the folder of its files
ANSWER_SECONDS = 10.0  # the longest wait for an answer, and the time between questions, as all users share SLURM
TASK = re.compile(r"[1-9]\d*(_\d+)?", re.ASCII)

CANCELLED = "CANCELLED"
PENDING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# SLURM's state of a task that did not end by itself, and our message about it.
CAUSES = {
    CANCELLED: "cancelled",
    "OUT_OF_MEMORY": "out of memory: give more by launcher.options={mem:...}",
    "TIMEOUT": "time limit reached before it had saved: give a longer launcher.warning",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "node failed",
    "DEADLINE": "deadline reached",
    "PREEMPTED": "preempted, and not queued again",
}
ENDED = ("COMPLETED", "FAILED", *CAUSES)
# slurmstepd writes such a line into the log of a task that it stops. After scancel the line has no DUE TO.
STOPPED = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
STOPPED_BY = {
    "": CANCELLED,
    "TIME LIMIT": "TIMEOUT",
    "NODE FAILURE": "NODE_FAIL",
    "PREEMPTION": "PREEMPTED",
    "JOB REQUEUE": "",
}
OUT_OF_MEMORY = re.compile(r"oom.kill|OOM Killed|exceeded (?:job|step) memory limit", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """A task's `state` as SLURM names it, empty if unknown; `reason` says why it is pending, or who cancelled it."""

    state: str
    reason: str = ""

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Answer:
    """SLURM's answer: the tasks that it knew at the time `asked` (seconds since 1970)."""

    tasks: dict[str, Task]
    asked: float


def ask(jobs: Collection[str]) -> Answer | None:
    """Ask SLURM about these tasks, e.g. 123_4: first its queue, then its accounting for tasks that the queue lacks.

    Returns None if there is no SLURM, or if it does not answer.
    """
    period = int(time.monotonic() / ANSWER_SECONDS)
    if (queue := _queue(period)) is None:
        return None
    arrays = {job.partition("_")[0] for job in jobs if job not in queue.tasks and TASK.fullmatch(job)}
    accounts = _accounts(",".join(sorted(arrays)), period) if arrays else {}
    return Answer(accounts | queue.tasks, queue.asked)


def forget_answers() -> None:
    """Forget the recent answers of SLURM, so that `ask` asks it again."""
    _queue.cache_clear()
    _accounts.cache_clear()


def read_log(folder: RunFolder, job: str) -> tuple[Task, str | None]:
    """Return how a task ended according to its log, and the signal that killed the folder's run, as text or None."""
    if not TASK.fullmatch(job):
        return Task(""), None
    file = _log(folder, job)
    try:
        text = end_of(file)
    except (OSError, ValueError):  # the task never began, or its log was removed
        return Task(""), None
    text = text[max(0, text.rfind(f" {job} on ")) :]  # since the task last began
    ends = re.findall(rf" {job}: exit code (\d+): (.+)", text)
    codes = [int(code) for code, path in ends if path.split("/")[-3:] == [*folder.path.resolve().parts[-3:]]]
    number = codes[-1] - 128 if codes else 0
    killed = how_it_ended(-number) if number in {*signal.Signals} - {*SIGNALS} else None  # on SIGNALS a run saves
    stops = [STOPPED_BY.get((due or "").partition(",")[0].strip(), CANCELLED) for due in STOPPED.findall(text)]
    state = "OUT_OF_MEMORY" if OUT_OF_MEMORY.search(text) else stops[-1] if stops else ""
    return Task(state), killed


def never_began(folder: RunFolder, job: str) -> bool:
    """Return whether a task that SLURM has forgotten never began: its folder of logs exists, but has no log of it."""
    file = _log(folder, job) if TASK.fullmatch(job) else None
    return file is not None and file.parent.is_dir() and not os.path.lexists(file)


def was_submitted_after(asked: float, folder: RunFolder) -> bool:
    """Return whether the folder's run was submitted after SLURM was asked, so that the answer lacks its task."""
    return (folder.path / Job.FILE).stat().st_mtime >= asked


def _log(folder: RunFolder, job: str) -> Path:
    return folder.grid / LOGS / job.partition("_")[0] / f"{job}.out"


@lru_cache(maxsize=1)
def _queue(_period: int) -> Answer | None:
    """Return all tasks in SLURM's queue and all that ended a few minutes ago at most (SLURM's MinJobAge)."""
    asked = time.time()
    lines = _output_lines("squeue", "--noheader", "--array", "--states=all", "--format=%F_%K|%T|%r")
    if lines is None:
        return None
    rows = [line.strip().split("|", 2) for line in lines]
    queued = {job.removesuffix("_N/A"): Task(state, reason) for job, state, reason in rows}
    pending = {job: task for job, task in queued.items() if task.is_pending and task.reason != "None"}
    return Answer({job: Task(task.state) for job, task in queued.items()} | pending, asked)


@lru_cache(maxsize=16)
def _accounts(arrays: str, _period: int) -> dict[str, Task]:
    """Return all tasks of these arrays that the accounting knows; empty if there is no accounting or no answer."""
    options = ["--noheader", "--parsable2", "--allocations", f"--jobs={arrays}", "--format=JobID,State"]
    pairs = [line.split("|", 1) for line in _output_lines("sacct", *options) or () if "|" in line]
    states = {job: state.split() for job, state in pairs}
    return {job: Task(state[0], " ".join(state[1:])) for job, state in states.items() if state}


def _output_lines(*command: str) -> list[str] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.splitlines()
