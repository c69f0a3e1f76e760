"""Whether to stop or to save: the same in all processes of a run at the same yield."""

import time

from deepnets.distributed.signals import Interruption
from deepnets.distributed.world import World

DECISION_SECONDS = 0.5  # between two questions to all processes, where there are several
LONGEST_INTERVAL = 100  # yields between two, however short they are


class Decisions:
    """Which signal to stop on, if any, and whether to save: the same in all processes at the same yield.

    Several ask each other every so many yields, a number that follows from the pace of the slowest, and whenever they
    turn from training to evaluation or back: each has a pace of its own.
    """

    def __init__(self, world: World, interruption: Interruption, checkpoint_seconds: float) -> None:
        self.world, self.interruption, self.checkpoint_seconds = world, interruption, checkpoint_seconds
        self.saved_at = self.asked_at = time.monotonic()
        self.intervals = {True: 1, False: 1}
        self.trains, self.left = True, 1

    def __call__(self, *, trains: bool) -> tuple[int | None, bool]:
        """Called at every yield; `trains`: whether it ends an iteration of training."""
        has_turned, self.trains = trains != self.trains, trains
        self.left -= 1
        if self.left and not has_turned:
            return None, False
        now = time.monotonic()
        pace = (now - self.asked_at) / self.intervals[trains]
        own = [self.interruption.received or 0, now - self.saved_at >= self.checkpoint_seconds, pace]
        stop, due, pace = self.world.all_reduce_max(own)
        if self.world.size > 1 and not has_turned:
            self.intervals[trains] = max(1, min(int(DECISION_SECONDS / pace), LONGEST_INTERVAL))
        self.left, self.asked_at = self.intervals[trains], now
        return int(stop) or None, bool(due)
