"""Starts processes on this machine that end when their parent ends: a single process, or all processes of a `World`.

A `ForkServer` starts processes that need not import anything.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Self

import numpy as np

from deepnets.distributed.signals import SIGNALS, Interruption, how_to_resume, signals_blocked
from deepnets.distributed.world import STORE
from deepnets.errors import UserError
from deepnets.system.files import opened_to_append

LOOPBACK = "lo"
WATCH_SECONDS = 0.1
SERVE = "--fork-server"  # the first argument of a command that is to call `serve`
READ_LATE = {"CUDA_VISIBLE_DEVICES"}  # CUDA reads it when a process first uses a GPU
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
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a process that gets the signal `at_parents_death` when this process dies.

    The process inherits the open `descriptors`. Signals to it wait until its own `Interruption` can note them. Call
    this from the main thread: for the kernel, the parent dies when the thread that forked ends.
    """
    bound = [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid()), str(int(at_parents_death)), *command]
    with signals_blocked():
        return subprocess.Popen(bound, stdin=subprocess.DEVNULL, env=environment, pass_fds=descriptors)


class ServerEnded(UserError):
    """A `ForkServer` has ended, e.g. was killed; its processes get SIGTERM, and nobody learns how they end."""


class ForkServer:
    """Starts processes that execute one command with different arguments; all of them are forks of one server.

    The server is a process that imports `modules` and what the command imports, and then only waits and forks. It has
    no threads, no data and no state of OpenMP or CUDA that a fork would break.

    multiprocessing has such a server too, but its forks import this process's main module and outlive this process, and
    for its server one cannot set the environment, where OpenMP finds its number of threads.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self._requests, served = Pipe()
        with served:
            words = [*command, SERVE, str(served.fileno()), *modules]
            # SIGKILL, because the server has nothing to save. Its processes get SIGTERM when it dies.
            self._process = start(words, environment, signal.SIGKILL, [served.fileno()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], output: Path) -> "Forked":
        """Start the command with these arguments and environment variables; its output is appended to `output`.

        In a group of its own the process gets Ctrl-C once, from this process, and not from the terminal too. It gets
        SIGTERM when this process dies. Signals to it wait until its own `Interruption` can note them.

        Raises:
            ServerEnded: the server has ended. OSError: the output cannot be written, or the system refuses to fork.
        """
        with opened_to_append(output) as file:
            pid = self.ask((list(arguments), dict(variables)), file.fileno())
        assert pid
        return Forked(self, pid)

    def ask(self, request: object, descriptor: int | None = None) -> int | None:
        """Return the server's answer to a request: see `serve`.

        Raises:
            ServerEnded: the server has ended. OSError: the system refuses to fork.
        """
        try:
            with signals_blocked():  # a second Ctrl-C must not come between a request and its answer
                self._requests.send(request)
                if descriptor is not None:
                    send_handle(self._requests, descriptor, self._process.pid)
                answer = self._requests.recv()
        except (EOFError, ConnectionError) as error:
            ended = how_it_ended(self._process.wait())
            raise ServerEnded(
                f"the process that forks the runs: {ended}; the runs in flight save. {how_to_resume()}"
            ) from error
        if isinstance(answer, OSError):
            raise answer
        return answer


class Forked:
    """A process that a `ForkServer` has started; it has `poll`, `wait` and `send_signal` of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid, self._server = pid, server
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, -n if signal n killed the process, or None while it lives."""
        if self.returncode is None:
            self.returncode = self._server.ask(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        while (code := self.poll()) is None:
            time.sleep(WATCH_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send the signal unless the process has ended."""
        if self.poll() is None:  # if it ends now, it keeps its id until the next `poll`
            os.kill(self.pid, number)


def serve(descriptor: str, *modules: str) -> list[str]:
    """Answer the requests of a `ForkServer`; returns only in the processes that it forks, with their arguments.

    A command calls this after its imports, if its first argument is `SERVE`. A request contains the arguments and the
    environment variables of a process; a handle of its output follows, and the answer is the id of the forked process,
    or the OSError if the system refuses to fork. Or the request is the id of such a process, and the answer is its exit
    code, or None while it lives.
    """
    for module in modules:
        import_module(module)
    gc.freeze()  # otherwise each fork collects garbage in all modules when it ends, which takes more than a second
    os.setpgid(0, 0)  # not even for a moment is a fork in the terminal's group
    server, requests = os.getpid(), Connection(int(descriptor))
    while True:
        try:
            request = requests.recv()
        except EOFError:
            sys.exit()
        if isinstance(request, int):
            pid, status = os.waitpid(request, os.WNOHANG)
            requests.send(os.waitstatus_to_exitcode(status) if pid else None)
            continue
        output = recv_handle(requests)
        try:
            pid = os.fork()
        except OSError as error:
            requests.send(error)
        else:
            if not pid:
                requests.close()
                return _begun(server, output, *request)
            requests.send(pid)
        os.close(output)


def _begun(server: int, output: int, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """Make this fork like a new process of the command, and return its arguments."""
    os.setpgid(0, 0)
    getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGTERM)  # as in BOUND
    if os.getppid() != server:
        os._exit(1)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    changed = {name for name, value in variables.items() if os.environ.get(name) != value}
    os.environ.update(variables)
    if changed - READ_LATE:  # libraries read the others when they are imported, as OpenMP does its number of threads
        command = sys.orig_argv[: sys.orig_argv.index(SERVE)]
        os.execv(sys.executable, [*command, *arguments])
    np.random.seed()  # otherwise all forks would draw the same numbers; Python's `random` does this by itself
    return arguments


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
        """Return the signal that reached this process or made the failed one end as `Interrupted`; None without one."""
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
