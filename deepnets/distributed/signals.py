"""Signals that ask a run to stop: they are noted, and the run stops between two iterations."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

# Ctrl-C; the end of a job; SLURM's warning before the end, if the job asks for it; the end of the terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
CTRL_C: list[int] = []  # the command notes Ctrl-C here, because an import that it interrupts may swallow it


def how_to_resume() -> str:
    """Say what a user types to resume what this command trains; overwrite=true would delete it."""
    has_overwrite = any(re.fullmatch(r"\+*overwrite=['\"]?(true|yes|on|1)['\"]?", word.lower()) for word in sys.argv)
    return f"Run the same command again{', without overwrite=true,' * has_overwrite} to resume"


class Interrupted(BaseException):
    """The run was asked to stop, and has saved its state if it had begun to train.

    This is not an `Exception`, because it ends a whole sweep, not one run.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class Interruption:
    """Notes the first signal in `received`, where the training loop looks for it.

    While `at_once` is true, there is nothing to save, so the handler also raises `Interrupted`. After the first signal,
    Ctrl-C acts as usual, and other signals change nothing, because SLURM sends several. If a parent looks after this
    process (`has_parent`), no repeated signal changes anything, even after this context has ended. If Ctrl-C came
    before, but did not end the command, entering this context raises `KeyboardInterrupt`.
    """

    def __init__(self, *, at_once: bool = False, has_parent: bool = False) -> None:
        self.received: int | None = None
        self.at_once, self.has_parent = at_once, has_parent

    def __enter__(self) -> Self:
        if CTRL_C:
            raise KeyboardInterrupt
        # nohup makes a process ignore the end of the terminal.
        caught = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in caught}
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        except Interrupted:  # raised by a signal that was blocked
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_parent:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        if not self.has_parent:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])
        if self.at_once:
            self.at_once = False
            raise Interrupted(number)


def block_signals() -> None:
    """Let signals to this process wait until an `Interruption` can note them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals, also in the processes that this context starts, until their own `Interruption` can note them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
