"""The system below a command and a run: how a command begins, files, lines on the console, ranges of numbers."""

import os
import signal
import sys
from types import FrameType

STOPPED = b"Stopped. Nothing was begun.\n"


def begin() -> None:
    """Prepare the process of a command: each command calls this before it imports anything that takes time.

    From here on Ctrl-C ends the command with one line. A standard stream that is closed is opened on /dev/null;
    otherwise the next file would get its number, and a library could print into that file. A working directory that
    is gone ends the command.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise a shell made this process ignore it
        signal.signal(signal.SIGINT, _stop)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # takes the lowest number, its own
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.exit("error: the working directory is gone; change to one that is there")


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at once: an import that is broken off may turn the interruption into another error."""
    try:
        os.write(2, STOPPED)
    finally:
        os._exit(128 + number)
