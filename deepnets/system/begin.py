"""The first thing a command does, before it imports anything that takes time."""

import os
import signal
import sys
from types import FrameType

STOPPED = b"Stopped. Nothing was begun.\n"


def begin() -> None:
    """Let Ctrl-C end the command in a line, open what it lacks of its three streams, and see that it is somewhere.

    A closed stream's number would be that of the next file, into which a library could then print.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, _stop)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # takes the lowest number, its own
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("error: the working directory is gone; change to one that is there")


def _stop(number: int, frame: FrameType | None) -> None:
    """At once: an import that is broken off may turn the interruption into another error."""
    try:
        os.write(2, STOPPED)
    finally:
        os._exit(128 + number)
