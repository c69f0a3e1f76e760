"""A function in several processes of this machine, by torch.distributed.elastic."""

import ctypes
import logging
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deepnets.distributed.signals import Interrupted, Interruption, hold_back

WATCH_SECONDS = 0.1
KILL_SECONDS = 3.0
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class ProcessFailed(Exception):
    """One of several processes raised or died, which ended the others.

    `reason` is what it raised, as in "ValueError: ...", or that it was killed. Its traceback is attached as a note.
    """

    def __init__(self, process: str, reason: str, was_killed: bool) -> None:
        super().__init__(f"{process}: {reason}")
        self.reason, self.was_killed = reason, was_killed


def start(count: int, threads: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(*arguments)` in `count` new processes of one `World`; what each returns, by rank.

    The function must be importable by its name. Signals that reach this process are passed on to the others once, held
    back until they can note them; a second Ctrl-C kills them. `threads` is OMP_NUM_THREADS of each.

    Raises:
        Interrupted: a signal came, and they have ended.
        ProcessFailed: one of them raised or died; none is left.
    """
    others = set(multiprocessing.active_children())
    with (
        TemporaryDirectory() as errors,
        _quiet(),
        _environment(OMP_NUM_THREADS=str(threads)),
        Interruption() as interruption,
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            logs_specs=DefaultLogsSpecs(log_dir=errors),
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
        )
        ended: Future[dict[int, Any]] = Future()
        # In the main thread the agent would take over the signals, and signals held back there would not be noted. A
        # daemon, because the agent waits for ever for processes that are killed as they end.
        Thread(target=_launch, args=(elastic_launch(config, function), arguments, ended), daemon=True).start()
        _watch(ended, interruption, others)
        try:
            returned = ended.result()
        except ChildFailedError as failed:
            error = _told(failed, count)
            if interruption.received:  # whatever failed while it saved, what follows the run must stop
                raise Interrupted(interruption.received) from error
            raise error from None
        if interruption.received:
            raise Interrupted(interruption.received)
    return [returned[rank] for rank in range(count)]


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that dies: it may hang and notice nothing."""
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent and os.getppid() != parent.pid:  # it died while this process imported torch
        os._exit(1)


def _watch(ended: Future[Any], interruption: Interruption, others: set[Any]) -> None:
    """Pass signals on until all is over; each process hears of them once."""
    told: set[int] = set()
    try:
        while not wait([ended], WATCH_SECONDS).done:
            if interruption.received:
                _signal(others, interruption.received, told)
    except KeyboardInterrupt:
        end = time.monotonic() + KILL_SECONDS
        while not wait([ended], WATCH_SECONDS).done and time.monotonic() < end:
            _signal(others, signal.SIGKILL, set())
        raise


def _signal(others: set[Any], number: int, told: set[int]) -> None:
    for process in set(multiprocessing.active_children()) - others:
        if process.pid is not None and process.pid not in told:
            told.add(process.pid)
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process.pid, number)


def _told(failed: ChildFailedError, count: int) -> ProcessFailed:
    rank, failure = failed.get_first_failure()
    process, told = f"process {rank} of {count}", failure.error_file_data["message"]
    if failure.exitcode < 0:
        return ProcessFailed(process, f"killed by {failure.signal_name()}", was_killed=True)
    if isinstance(told, str):  # that it did not tell
        return ProcessFailed(process, f"ended with exit code {failure.exitcode}", was_killed=True)
    error = ProcessFailed(process, told["message"], was_killed=False)
    error.add_note(f"In {process}:\n{told['extraInfo']['py_callstack']}")
    return error


def _launch(elastic: elastic_launch, arguments: tuple[Any, ...], ended: Future[dict[int, Any]]) -> None:
    # Held back for the processes that this thread starts; the start of the tracker among them lets some through.
    hold_back()
    resource_tracker.ensure_running()
    hold_back()
    try:
        ended.set_result(elastic(*arguments))
    except BaseException as error:
        ended.set_exception(error)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the agent tells of its own doings, which stands between the lines of a run."""
    talkative = ("torch.distributed.elastic", "torch.multiprocessing")
    names = [name for name in logging.root.manager.loggerDict if name.startswith(talkative)]
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
