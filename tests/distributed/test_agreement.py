"""How soon several processes notice a signal, by a clock that the test moves."""

import signal

import pytest

from deepnets.distributed import agreement as decisions
from deepnets.distributed.agreement import DECISION_SECONDS, LONGEST_INTERVAL, Decisions
from deepnets.distributed.signals import Interruption
from deepnets.distributed.world import World


class Agreeing(World):
    """Two processes that have measured and received the same."""

    def all_reduce_max(self, values: list[float]) -> list[float]:
        return values


class Loop:
    """Calls `Decisions` as an epoch does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(decisions.time, "monotonic", lambda: self.now)
        self.interruption = Interruption()
        self.decide = Decisions(Agreeing(size=2), self.interruption, checkpoint_seconds=1e9)

    def goes(self, yields: int, seconds: float, *, trains: bool) -> float | None:
        """Until that many yields are over, or after how many seconds it stops."""
        begun = self.now
        for _ in range(yields):
            self.now += seconds
            if self.decide(trains=trains)[0]:
                return self.now - begun
        return None


@pytest.mark.parametrize("evaluated", [1, 2, 20, 1000])
def test_slow_iterations_after_a_fast_evaluation_are_each_asked(
    evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        assert loop.goes(6, 4.0, trains=True) is None
        assert loop.goes(evaluated, 0.001, trains=False) is None
    assert loop.goes(1, 4.0, trains=True) is None
    loop.interruption.received = signal.SIGUSR1
    assert loop.goes(6, 4.0, trains=True) == pytest.approx(4.0)


def test_fast_iterations_are_asked_about_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        loop.goes(333, 0.01, trains=True)
        loop.goes(3, 0.3, trains=False)
    asked: list[float] = []
    monkeypatch.setattr(Agreeing, "all_reduce_max", lambda _, values: asked.append(loop.now) or values)
    loop.goes(501, 0.01, trains=True)
    assert asked[-1] - asked[0] == pytest.approx(5, abs=DECISION_SECONDS)
    assert 9 <= len(asked) <= 12
    loop.goes(1000, 1e-5, trains=True)
    before = len(asked)
    loop.goes(10 * LONGEST_INTERVAL, 1e-5, trains=True)
    assert len(asked) - before == 10
