"""SIGINT and SIGTERM as a note to stop between two iterations."""

import signal
from types import FrameType
from typing import Self


class Interrupted(BaseException):
    """The run was asked to stop and has saved its state. Not an `Exception`: it ends a whole grid, not one row."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Notes the first signal in `received`; the handler does nothing else. A second one acts as it always does."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
