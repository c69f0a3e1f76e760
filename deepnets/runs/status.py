"""The states of runs: a training process writes its heartbeat, and commands read and show the states of folders."""

import csv
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from deepnets.distributed.signals import Interrupted
from deepnets.distributed.world import slurm_task
from deepnets.runs import jobs
from deepnets.runs.contents import DIVERGED, FAILED, FINISHED, Progress, Status, Unreadable
from deepnets.runs.folder import RunFolder, folders_in
from deepnets.system.printing import as_text, console_for

BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0  # a run without a heartbeat for so long is dead: it has missed six
STALLED_SECONDS = 600.0  # a run without an iteration for so long is stalled; its heartbeat goes on even if NCCL hangs

WAITING, QUEUED, RUNNING, STOPPED, DEAD = "waiting", "queued", "running", "stopped", "dead"
CANCELLED = "cancelled"
# In the order of a run's life.
STATES = (WAITING, QUEUED, RUNNING, STOPPED, CANCELLED, DEAD, FAILED, DIVERGED, FINISHED)
OF_SLURM = (QUEUED, RUNNING, STOPPED, DEAD)  # in these states, SLURM may know more than a run's files

OVER = (CANCELLED, DEAD, FAILED, DIVERGED, FINISHED)  # in these, nothing more happens unless somebody starts the run

QUEUED_AGAIN = "queued again"
REFRESH_SECONDS = 2.0
STYLES = {FINISHED: "green", RUNNING: "cyan", STOPPED: "yellow", DIVERGED: "yellow", FAILED: "red", DEAD: "bold red"}
STYLES |= {CANCELLED: "yellow"}
# If not all runs fit on the screen, running ones come first, then those that may need somebody.
URGENCY = (RUNNING, DEAD, FAILED, CANCELLED, STOPPED, QUEUED, WAITING, DIVERGED, FINISHED)
COLUMNS: dict[str, dict[str, Any]] = {
    "state": {"no_wrap": True},
    "epoch": {"justify": "right", "no_wrap": True},
    "error %": {"justify": "right", "no_wrap": True},
    "images/s": {"justify": "right", "no_wrap": True},
    "left": {"justify": "right", "no_wrap": True},
    "heartbeat": {"justify": "right", "no_wrap": True},
    "remark": {"overflow": "fold", "min_width": 16},
}
AROUND_TABLE = 4  # lines of the screen for the table's header, its caption and the text below it

# Reading a file that is cut off, or that another program wrote, may raise any of these errors.
UNREADABLE = (yaml.YAMLError, csv.Error, KeyError, AttributeError, ValueError, TypeError, OSError)


@dataclass(frozen=True)
class State:
    """The state of a run: `name` is one of `STATES`.

    `progress` is the last that was written, None while a run starts. `silent` counts the seconds since the last
    heartbeat, and `job` is SLURM's name of the task that runs, ran or will run it. `reason` says in a line why the run
    failed, died, waits, is queued, stopped or cancelled, or that it stalls.
    """

    name: str
    progress: Progress | None = None
    silent: float | None = None
    host: str | None = None
    job: str | None = None
    reason: str | None = None


def state_of(folder: RunFolder, dead_after: float = DEAD_SECONDS) -> State:
    """Return the state of the folder's run from its files alone; a run silent for `dead_after` seconds is dead.

    A run is queued if its job.json is newer than its last execution.

    Raises:
        Unreadable: a file of the folder is broken.
    """
    result, status, job = folder.result, folder.status, folder.job
    progress, executed = None, {result and result.job}  # a run may fail before its first heartbeat
    state = partial(State)
    if status:
        progress, silent = status.progress, (datetime.now(UTC) - status.heartbeat).total_seconds()
        state = partial(State, progress=progress, silent=silent, host=status.host, job=status.job)
        executed.add(status.job)
    if result and result.is_complete:
        return state(result.status)
    if job and job.job not in executed and (not status or job.submitted > status.heartbeat):
        return State(QUEUED, progress, job=job.job)
    if result:
        return state(FAILED, reason=" ".join(result.reason.split()))
    if not status:
        return State(WAITING)
    if status.state == STOPPED:
        return state(STOPPED)
    if silent > dead_after:
        return state(DEAD)
    idle = progress.seconds_idle + silent if progress else 0
    return state(RUNNING, reason=f"stalled: no iteration for {idle / 60:.0f} min" if idle > STALLED_SECONDS else None)


def read_state(folder: RunFolder) -> State:
    """Return `state_of` the folder, or a failed state with the reason if one of its files is broken."""
    try:
        return state_of(folder)
    except Unreadable as error:
        return State(FAILED, reason=f"cannot be read: {error.args[0].name}: {error.reason}")


def read_states(folders: Sequence[RunFolder]) -> dict[RunFolder, State]:
    """Return `read_state` of each folder, corrected by SLURM or by its logs if the run has not ended."""
    states = {folder: read_state(folder) for folder in folders}
    asked = {folder: state for folder, state in states.items() if state.job and state.name in OF_SLURM}
    if not asked:
        return states
    answer = jobs.ask({state.job for state in asked.values() if state.job})
    return states | {folder: _with_task(folder, state, answer) for folder, state in asked.items()}


def _with_task(folder: RunFolder, state: State, answer: jobs.Answer | None) -> State:
    job = state.job or ""
    task = answer.tasks.get(job) if answer else None
    if task and task.is_pending:
        why = task.reason and f": {task.reason}"
        if state.name == QUEUED:
            return replace(state, reason=f"pending{why}")
        return replace(state, name=STOPPED, reason=f"{QUEUED_AGAIN}{why}")
    is_over = task is not None and task.has_ended
    if not is_over and (state.name == RUNNING or (task and state.name == QUEUED)):
        return state
    logged, signal = jobs.read_log(folder, job)
    cause = task if task and is_over and task.state in jobs.CAUSES else logged
    reason = jobs.CAUSES.get(cause.state) or signal
    if cause.state == jobs.CANCELLED:
        return replace(state, name=CANCELLED, reason=cause.reason or None)  # SLURM's accounting says who did that
    if state.name == QUEUED:
        if not reason and (answer is None or jobs.was_submitted_after(answer.asked, folder)):
            return state
        if not reason and jobs.never_began(folder, job):
            return replace(state, name=CANCELLED, reason="before it began")
        return replace(state, name=WAITING, job=None, reason=f"job {job} {reason or 'is no longer in the queue'}")
    if state.name == STOPPED:  # the run has saved its state and lost nothing
        return replace(state, reason=(reason or "").partition(" before")[0] or None)
    return replace(state, name=DEAD, reason=reason)


def in_a_line(error: Exception) -> str:
    return error.reason if isinstance(error, Unreadable) else " ".join(f"{error}".split()) or type(error).__name__


class Heartbeat:
    """Writes status.json while a run lives: at once when its state changes, and by a thread every `BEAT_SECONDS`.

    A thread writes, so that a run that reads data, compiles or evaluates for long does not look dead, and so that the
    training loop loses no time. It reads the loop's counters, never a device.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._progress: Callable[[], Progress] | None = None
        self._ended, self._writing = Event(), Lock()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._write("starting")
        self._thread.start()
        return self

    def follow(self, progress: Callable[[], Progress]) -> None:
        """Note that training begins; from now on another thread calls `progress` at every beat."""
        self._progress = progress
        self._write(RUNNING)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._write(STOPPED if kind and issubclass(kind, Interrupted | KeyboardInterrupt) else "ended")
        self._progress = None  # it holds the training, whose memory the next run needs

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._write(RUNNING if self._progress else "starting")

    def _write(self, state: str) -> None:
        progress = self._progress() if self._progress else None
        status = Status(
            state=state,
            heartbeat=datetime.now(UTC),
            pid=os.getpid(),
            host=socket.gethostname(),
            job=slurm_task(),
            progress=progress,
        )
        with self._writing, suppress(OSError):  # a full disk must not end a run
            status.write(self._folder.path)


def show(paths: list[Path], watch: bool) -> int:
    """Print the states of all runs below `paths`; `watch` refreshes them until none can go on by itself, or Ctrl-C.

    Raises:
        UserError: a folder is missing, or has no run in it.
    """
    folders = folders_in(paths)
    if watch:
        with suppress(KeyboardInterrupt):
            follow(folders, partial(_nothing_follows, folders, []))
    console_for().print(table_of(folders))
    return 0


def _nothing_follows(folders: list[RunFolder], idle_since: list[float]) -> bool:
    """Return whether no run can go on by itself, or none has run or waited in a queue since `STALLED_SECONDS`.

    `idle_since` holds the time of the first call without such a run, or nothing.
    """
    states = read_states(folders).values()
    if any(state.name in (RUNNING, QUEUED) or (state.reason or "").startswith(QUEUED_AGAIN) for state in states):
        idle_since.clear()
    elif not idle_since:
        idle_since.append(time.monotonic())
    is_idle = bool(idle_since) and time.monotonic() - idle_since[0] > STALLED_SECONDS
    return is_idle or all(state.name in OVER for state in states)


def show_json(paths: list[Path]) -> int:
    """Print the states of all run folders below `paths` as JSON; docs/launchers.md explains each entry.

    Raises:
        UserError: a folder is missing, or has no run in it.
    """
    states = read_states(folders_in(paths))
    print(json.dumps({"runs": [_entry(folder, state) for folder, state in states.items()]}, indent=1))
    return 0


def follow(folders: list[RunFolder], is_over: Callable[[], bool], seconds: float = REFRESH_SECONDS) -> None:
    """Show runs until `is_over()`: a table on a terminal, else a line whenever the counts of states change."""
    shown, over = "", False
    with live_table(folders) as is_live:
        while not over:
            over = is_over()
            if not is_live and (now := counted(list(read_states(folders).values()))) != shown:
                print(shown := now, flush=True)
            if not over:
                time.sleep(seconds)


@contextmanager
def live_table(folders: list[RunFolder]) -> Iterator[bool]:
    """Show a table that is refreshed, below other output; yields False if there is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield False
        return
    with Live(
        get_renderable=lambda: table_of(folders, most=max(console.height - AROUND_TABLE, 1)),
        console=console,
        refresh_per_second=1 / REFRESH_SECONDS,
        transient=True,
    ):
        yield True


def table_of(folders: list[RunFolder], most: int | None = None) -> Table:
    """Make a table with a line for each run, or for only `most` runs, the urgent ones first; its caption counts all."""
    states = read_states(folders)
    shown = folders
    if most is not None and len(folders) > most:
        shown = sorted(folders, key=lambda folder: URGENCY.index(states[folder].name))[:most]
    above = os.path.commonpath([folder.path.resolve() for folder in folders])
    sweep = Path(above) if len(folders) > 1 else folders[0].grid
    cells = {folder: _cells(folder, states[folder]) for folder in shown}
    table = Table(
        box=None,
        caption=counted(list(states.values())) + (f"; {len(shown)} of them shown" if shown is not folders else ""),
        caption_justify="left",
    )
    table.add_column("run", overflow="fold", min_width=20)
    columns = [name for name in COLUMNS if any(row[name] for row in cells.values())]
    for name in columns:
        table.add_column(name, **COLUMNS[name])
    for folder, row in cells.items():
        name = str(folder.path.resolve().relative_to(sweep))
        texts = [name, *(row[column] for column in columns)]
        table.add_row(*map(as_text, texts), style=STYLES.get(states[folder].name))
    return table


def counted(states: list[State]) -> str:
    """Count the states in words, e.g. `8 runs: 3 running, 5 waiting`."""
    counts = Counter(state.name for state in states)
    parts = [f"{counts[name]} {name}" for name in STATES if counts[name]]
    return f"{len(states)} run{'s' * (len(states) > 1)}: {', '.join(parts)}"


def _entry(folder: RunFolder, state: State) -> dict[str, str | int | float | None]:
    progress, result = state.progress, folder.result if state.name in (FINISHED, DIVERGED) else None
    return {
        "run": str(folder.path),
        "state": state.name,
        "reason": state.reason,
        "iteration": progress.iteration if progress else None,
        "iterations": progress.iterations if progress else None,
        "seconds": result.seconds if result else None,
        "seconds_left": progress.seconds_left if progress and state.name == RUNNING else None,
        "host": state.host,
        "job": state.job,
    }


def _cells(folder: RunFolder, state: State) -> dict[str, str]:
    progress = state.progress
    is_running, is_silent = state.name == RUNNING, state.name == DEAD
    result = folder.result if state.name == FINISHED else None
    error = result.test_error if result else progress and progress.test_error
    remarks = [f"job {state.job}" if state.job else "", f"on {state.host}" if is_silent else "", state.reason or ""]
    return {
        "state": state.name,
        "epoch": f"{progress.epoch}/{progress.epochs}" if progress else "starting" if is_running else "",
        "error %": f"{error:.2f}" if isinstance(error, int | float) else "",
        "images/s": f"{progress.images_per_second:,.0f}" if is_running and progress else "",
        "left": str(timedelta(seconds=round(progress.seconds_left))) if is_running and progress else "",
        "heartbeat": f"{timedelta(seconds=round(state.silent or 0))} ago" if is_running or is_silent else "",
        "remark": " ".join(filter(None, remarks)),
    }
