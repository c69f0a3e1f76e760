"""The base of every command: how its process begins, files, printed lines and legal ranges of numbers."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType

STOPPED = b"Stopped. Nothing was begun.\n"
SPINS = "1000"  # of a waiting thread before it sleeps: some 30 microseconds


def begin() -> None:
    """Prepare the process of a command: each command calls this before it imports anything that takes time.

    From here on Ctrl-C ends the command with one line. A closed standard stream is opened on /dev/null; otherwise the
    next file would get its number, and a library could print into that file. If the working directory is gone, the
    command ends. Threads of PyTorch that wait for each other sleep soon, unless the environment says how they wait.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless a shell made this process ignore it
        signal.signal(signal.SIGINT, stop_at_once)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            # The file gets the lowest free number, which is the stream's.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("error: the working directory is gone; change to one that is there")
    # libgomp's threads would spin 300,000 times before they sleep. Beside another busy process, a thread that spins
    # takes the time of the one that it waits for. libgomp reads this when torch is imported; `bench.py waiting`.
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    # Imports create hundreds of thousands of objects that stay. Python would look for garbage among them after every
    # 700 new ones, and once more when it ends; both together take more processor time than importing torch.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)


def usable_cores() -> int:
    """Return the number of this machine's cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stop_at_once(number: int, frame: FrameType | None) -> None:
    """Handle a signal by ending the process: an exception that interrupts an import may turn into another error."""
    try:
        os.write(2, STOPPED)
    finally:
        os._exit(128 + number)
