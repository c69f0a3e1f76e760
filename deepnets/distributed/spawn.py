"""Starts processes on this machine that end when their parent ends: a single process, or all processes of a `World`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepnets.distributed.signals import SIGNALS, Interruption, signals_blocked
from deepnets.distributed.world import STORE
from deepnets.errors import UserError
from deepnets.system.files import opened_to_append

LOOPBACK = "lo"
WATCH_SECONDS = 0.1
GRACE_SECONDS = 30.0  # after one process has failed, the others get this long to end: one of them may be saving
# A process runs this before it becomes its command. It asks the kernel (Linux's prctl, option 1) for a signal when its
# parent dies, however it dies; if the parent is dead already, the process ends.
BOUND = (
    "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, int(sys.argv[2])); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[3], sys.argv[3:])"
)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    at_parents_death: signal.Signals,
    output: Path | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a process that gets the signal `at_parents_death`; its output is appended to `output`.

    The process inherits the open `descriptors`. Signals to it wait until its own `Interruption` can note them. Call
    this from the main thread: for the kernel, the parent dies when the thread that forked ends.
    """
    bound = [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid()), str(int(at_parents_death)), *command]
    with signals_blocked():
        if output is None:
            return subprocess.Popen(bound, stdin=subprocess.DEVNULL, env=environment, pass_fds=descriptors)
        with opened_to_append(output) as file:
            # In a group of its own the process gets Ctrl-C once, from its parent, and not from the terminal too.
            return subprocess.Popen(
                bound, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, process_group=0
            )


def how_it_ended(code: int) -> str:
    """Say in words how a process with this exit code ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    killed = f"killed by {signal.Signals(-code).name}"
    return f"{killed}, as the system does when memory runs out" if -code == signal.SIGKILL else killed


class Processes:
    """Several processes, by rank, to which this process passes on the first signal that it gets."""

    def __init__(self, interruption: Interruption) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self._interruption, self._is_passed_on = interruption, False

    def first_failure(self) -> tuple[int, int] | None:
        """Wait for the first process that fails, and return its rank and exit code; None if all end well."""
        while True:
            codes = self._codes()
            if failed := [(code, rank) for rank, code in enumerate(codes) if code]:
                code, rank = min(failed)  # killed processes first, then those that lost contact with them
                return rank, code
            if None not in codes:
                return None
            time.sleep(WATCH_SECONDS)

    def stopped_by(self, failure: tuple[int, int] | None) -> int | None:
        """Return the signal that reached this process, or that made one of the others end as `Interrupted`."""
        if failure and failure[1] - 128 in SIGNALS:
            return failure[1] - 128
        return self._interruption.received

    def wait(self) -> None:
        """Wait until all processes have ended, but at most `GRACE_SECONDS`."""
        end = time.monotonic() + GRACE_SECONDS
        while None in self._codes() and time.monotonic() < end:
            time.sleep(WATCH_SECONDS)

    def kill(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()

    def _codes(self) -> list[int | None]:
        if self._interruption.received and not self._is_passed_on:
            self._is_passed_on = True
            for process in self.started:
                process.send_signal(self._interruption.received)
        return [process.poll() for process in self.started]


@contextmanager
def processes(command: Sequence[str], count: int, threads: int) -> Iterator[Processes]:
    """Start `command` in `count` processes of one `World`; when the context ends, they have ended.

    A second Ctrl-C kills them. `threads` sets OMP_NUM_THREADS in each.

    Raises:
        UserError: the system is not Linux.
    """
    if sys.platform != "linux":
        raise UserError(f"devices={count}: several processes need Linux; start them with torchrun")
    # The processes connect through a file without a name: no other user can open it, and it ends with the last process.
    store = os.memfd_create("deepnets")
    common = {
        **os.environ,
        STORE: f"/proc/self/fd/{store}",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": str(threads),
    }
    with Interruption() as interruption:
        group = Processes(interruption)
        try:
            for rank in map(str, range(count)):
                # SIGKILL, because a process that hangs notices nothing else.
                environment = {**common, "RANK": rank, "LOCAL_RANK": rank}
                group.started.append(start(command, environment, signal.SIGKILL, descriptors=[store]))
            yield group
            group.wait()
        finally:
            os.close(store)
            group.kill()
