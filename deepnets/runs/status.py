"""What a run is doing: status.json as the training process writes it, and the state of a folder read from its files."""

import csv
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self

import yaml

from deepnets.distributed.signals import Interrupted
from deepnets.distributed.world import slurm_task
from deepnets.runs.contents import PROGRESS, Progress
from deepnets.runs.folder import DIVERGED, FAILED, FINISHED, RunFolder, Unreadable

BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0  # without a beat: six were missed
QUEUE_SECONDS = 10.0  # between two looks at SLURM's queue, which all users of a cluster share
STALLED_SECONDS = 600.0  # without an iteration: a beat is a thread's, which NCCL or a kernel that hangs does not stop

WAITING, QUEUED, RUNNING, PREEMPTED, DEAD = "waiting", "queued", "running", "preempted", "dead"
# In the order of a run's life.
STATES = (WAITING, QUEUED, RUNNING, PREEMPTED, DEAD, FAILED, DIVERGED, FINISHED)


# What a file that is cut off, or that another program wrote, may lead to.
UNREADABLE = (yaml.YAMLError, csv.Error, KeyError, AttributeError, ValueError, TypeError, OSError)


@dataclass(frozen=True)
class State:
    """What a run is doing: `name` is one of `STATES`.

    `progress` is the last that was written, None while a run starts. `silent` are the seconds since the last heartbeat,
    `job` SLURM's name of the task that runs, ran or will run it, `reason` why it failed, or that it stalls, in a line.
    """

    name: str
    progress: Progress | None = None
    silent: float | None = None
    host: str | None = None
    job: str | None = None
    reason: str | None = None


def state_of(folder: RunFolder, dead_after: float = DEAD_SECONDS) -> State:
    """The state of the folder's run, from its files alone; running without a beat for `dead_after` seconds is dead.

    queued is a run with a job.json, `{"job": "123_4", "submitted": ISO time}`, that is newer than its last execution.
    """
    result, status, job = folder.result, folder.read_json("status.json"), folder.read_json("job.json")
    written = status.get("progress")
    progress = PROGRESS.validate_python(written) if written else None
    beat = datetime.fromisoformat(status["heartbeat"]) if status else None
    silent = (datetime.now(UTC) - beat).total_seconds() if beat else None
    known = partial(State, progress=progress, silent=silent, host=status.get("host"), job=status.get("job"))
    if result and result["status"] in (FINISHED, DIVERGED):
        return known(result["status"])
    executed = {status.get("job"), (result or {}).get("job")}  # a run may fail before its first heartbeat
    if job and job["job"] not in executed and (not beat or datetime.fromisoformat(job["submitted"]) > beat):
        return State(QUEUED, progress, job=job["job"])
    if result:
        return known(FAILED, reason=" ".join(result.get("reason", "").split()))
    if silent is None:
        return State(WAITING)
    if status["state"] == PREEMPTED:
        return known(PREEMPTED)
    if silent > dead_after:
        return known(DEAD)
    idle = progress.seconds_idle + silent if progress else 0
    return known(RUNNING, reason=f"stalled: no iteration for {idle / 60:.0f} min" if idle > STALLED_SECONDS else None)


def read_state(folder: RunFolder) -> State:
    """`state_of` the folder; failed, with the reason, where one of the files it is read from is broken."""
    try:
        return state_of(folder)
    except Unreadable as error:
        return State(FAILED, reason=f"cannot be read: {error.args[0].name}: {error.reason}")


def read_states(folders: Sequence[RunFolder]) -> dict[RunFolder, State]:
    """`read_state` of each; a queued run whose task SLURM no longer has, as it was cancelled, waits."""
    states = {folder: read_state(folder) for folder in folders}
    queued = {folder: state for folder, state in states.items() if state.name == QUEUED}
    if not queued or (there := _tasks_in_queue(int(time.monotonic() / QUEUE_SECONDS))) is None:
        return states
    gone = {folder: state for folder, state in queued.items() if state.job not in there}
    return states | {
        folder: replace(state, name=WAITING, job=None, reason=f"job {state.job} is no longer in the queue")
        for folder, state in gone.items()
    }


@lru_cache(maxsize=1)
def _tasks_in_queue(_period: int) -> set[str] | None:
    """All tasks that SLURM has, as `123_4`; None where there is no SLURM, or it does not answer. Once in a period."""
    command = ["squeue", "--noheader", "--array", "--format=%F_%K"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=QUEUE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else {line.strip().removesuffix("_N/A") for line in done.stdout.splitlines()}


def in_a_line(error: Exception) -> str:
    return error.reason if isinstance(error, Unreadable) else " ".join(f"{error}".split()) or type(error).__name__


class Heartbeat:
    """Writes status.json while a run lives: at once when its state changes, and by a thread every `BEAT_SECONDS`.

    A thread, because reading data, compiling or one long evaluation must not look like death, and because so it costs
    the training loop nothing. It reads what the loop counts, never a device.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._progress: Callable[[], Progress] | None = None
        self._ended, self._writing = Event(), Lock()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)
        self._who = {"pid": os.getpid(), "host": socket.gethostname(), "job": slurm_task()}

    def __enter__(self) -> Self:
        self._write("starting")
        self._thread.start()
        return self

    def follow(self, progress: Callable[[], Progress]) -> None:
        """Training begins; `progress` is asked at every beat, from another thread."""
        self._progress = progress
        self._write(RUNNING)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._write(PREEMPTED if kind and issubclass(kind, Interrupted | KeyboardInterrupt) else "ended")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._write(RUNNING if self._progress else "starting")

    def _write(self, state: str) -> None:
        content: dict[str, Any] = {"state": state, "heartbeat": datetime.now(UTC).isoformat(timespec="milliseconds")}
        content |= self._who | {"progress": asdict(self._progress()) if self._progress else None}
        with self._writing, suppress(OSError):  # a full disk must not end a run for the sake of its status
            self._folder.write_json("status.json", content)
