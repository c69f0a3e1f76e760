"""A row in a column: its numbers, and the verdict on them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, stdev

from deepnets.results.read import Run
from deepnets.results.statistics import FEWEST_SEEDS, median_interval
from deepnets.runs.status import DIVERGED, FINISHED

FAIL_ABOVE = 20.0  # percent; He et al. 2016, Table 1
FAIL = "fail"
AGREES, DIFFERS, TOO_FEW = "agrees", "differs", f"n < {FEWEST_SEEDS}"


@dataclass(frozen=True)
class Published:
    """What the paper prints about a row, in percent; `test_error` may be "fail", or None where it is only drawn."""

    test_error: float | str | None = None
    mean: float | None = None
    std: float | None = None
    best: float | None = None


@dataclass(frozen=True)
class Cell:
    """A row in a column: final test errors in percent of the runs that ended, a diverged one infinite."""

    runs: tuple[Run, ...]
    published: Published
    is_published_protocol: bool
    fail_above: float  # infinite where only a non-finite error is a fail

    @cached_property
    def errors(self) -> list[float]:
        return [run.error for run in self.runs if run.error is not None]

    @property
    def median(self) -> float | None:
        """Infinite where half of the runs diverged or more."""
        return middle(self.errors)

    @property
    def mean(self) -> float | None:
        """None where a run diverged, for then there is none."""
        return fmean(self.errors) if self.errors and all(map(math.isfinite, self.errors)) else None

    @property
    def std(self) -> float | None:
        """Of the sample: over n - 1."""
        return stdev(self.errors) if len(self.errors) > 1 and self.mean is not None else None

    @property
    def best(self) -> float | None:
        return min(self.errors, default=None)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        return median_interval(self.errors)

    @property
    def is_fail(self) -> bool:
        return self.median is not None and (math.isinf(self.median) or self.median > self.fail_above)

    @property
    def difference(self) -> float | None:
        """Our median minus the published value, where both are numbers."""
        theirs = self.published.test_error
        if theirs in (None, FAIL) or self.median is None or math.isinf(self.median):
            return None
        return self.median - theirs

    @property
    def verdict(self) -> str:
        """By `RULE` of table.py; in brackets where the protocol is not the paper's; empty where it prints nothing."""
        if self.published.test_error is None or not self.errors:
            return ""
        word = self._verdict()
        return word if self.is_published_protocol or word == TOO_FEW else f"({word})"

    def _verdict(self) -> str:
        if len(self.errors) < FEWEST_SEEDS:
            return TOO_FEW
        if self.is_fail or self.published.test_error == FAIL:
            return AGREES if self.is_fail and self.published.test_error == FAIL else DIFFERS
        low, high = self.interval
        return AGREES if low <= self.published.test_error <= high else DIFFERS

    @property
    def states(self) -> dict[str, int]:
        """How many runs have not simply finished, by state."""
        return dict(Counter(run.state.name for run in self.runs if run.state.name != FINISHED))

    @property
    def remarks(self) -> str:
        """What is missing, running or failed, with the reason of a failure."""
        if not self.runs:
            return "missing"
        words = [f"{count} {state}" for state, count in self.states.items() if state != DIVERGED]
        if diverged := self.states.get(DIVERGED):
            words.insert(0, f"{diverged} of {len(self.errors)} diverged")
        running = [run.state.progress for run in self.runs if run.state.name == "running" and run.state.progress]
        words += [f"at epoch {progress.epoch} of {progress.epochs}" for progress in running[:1]]
        return ", ".join(words) + "".join(f"; {reason}" for reason in dict.fromkeys(self.reasons))

    @property
    def reasons(self) -> list[str]:
        return [run.state.reason for run in self.runs if run.state.reason]


def middle(errors: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(errors) if errors else None
