"""A row in a column: its numbers, and the verdict on them."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median, stdev
from typing import Any

from deepnets.results.published import FAIL, PublishedRow
from deepnets.results.read import Run, example
from deepnets.results.sheet import NOTHING, percent, signed
from deepnets.results.statistics import median_interval
from deepnets.results.verdict import printed_of, true_difference, verdict_of
from deepnets.runs.contents import FINISHED
from deepnets.runs.status import DIVERGED

FAIL_ABOVE = 20.0  # percent; He et al. 2016, Table 1


@dataclass(frozen=True)
class Cell:
    """A row in a column: final test errors in percent of the runs that ended, a diverged one infinite."""

    runs: tuple[Run, ...]
    published: PublishedRow
    is_published_protocol: bool
    fail_above: float  # infinite where only a non-finite error is a fail

    @cached_property
    def errors(self) -> list[float]:
        return [run.error for run in self.runs if run.error is not None]

    @cached_property
    def compared(self) -> list[float]:
        """`errors`, or by the paper's rule the mean of each run's `best_epochs` lowest."""
        if not self.published.best_epochs:
            return self.errors
        errors = [compared_error(run, self.published.best_epochs) for run in self.runs]
        return [error for error in errors if error is not None]

    @property
    def example(self) -> Run | None:
        """The run that stands for the row in figures; None where no configuration can be read."""
        runs = [run for run in self.runs if run.config]
        return example(runs) if runs else None

    @property
    def median(self) -> float | None:
        """Infinite where half of the runs diverged or more."""
        return middle(self.errors)

    @property
    def compared_median(self) -> float | None:
        return middle(self.compared)

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

    @property
    def train_median(self) -> float | None:
        """The median training error of the last epoch, in percent, of the runs that finished."""
        ended = [run.result.get("train_error") for run in self.runs if run.state.name == FINISHED]
        return middle([error for error in ended if error is not None])

    @property
    def top5_median(self) -> float | None:
        """As `median`, of the five best guesses, of the runs that note them."""
        noted = [run.result.get("test_top5_error") for run in self.runs if run.state.name == FINISHED]
        return middle([error for error in noted if error is not None])

    def hours(self, device: str) -> float:
        """Of all runs that ended on a "cpu", in core-hours (threads of all processes), or on "cuda", in GPU-hours."""
        ended = [run.result for run in self.runs if run.result.get("device_type") == device]
        return sum(_units(result) * result["seconds"] / 3600 for result in ended)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        return median_interval(self.compared)

    @property
    def is_fail(self) -> bool:
        return self.median is not None and (math.isinf(self.median) or self.median > self.fail_above)

    @property
    def difference(self) -> float | None:
        """The median of `compared` minus the published value, where both are numbers."""
        published, found = self.published.test_error, self.compared_median
        if not isinstance(published, int | float) or found is None or math.isinf(found):
            return None
        return found - published

    @property
    def verdict(self) -> str:
        """`verdict_of` the row; empty also where the protocol is not the paper's."""
        return verdict_of(self.compared, self.published, self.is_fail) if self.is_published_protocol else ""

    @property
    def true_difference(self) -> tuple[float, float] | None:
        """Between what our expected error minus the paper's lies, in percent points, where there is a verdict on it."""
        printed = printed_of(self.published) if self.is_published_protocol and not self.is_fail else None
        return true_difference(self.compared, printed) if printed else None

    @property
    def remarks(self) -> str:
        """What is missing, running or failed, with the reason of a failure."""
        if not self.runs:
            return "literature" if self.published.is_literature else "missing"
        states = Counter(run.state.name for run in self.runs)
        words = [f"{states[DIVERGED]} of {len(self.errors)} diverged"] if DIVERGED in states else []
        words += [f"{count} {state}" for state, count in states.items() if state not in (FINISHED, DIVERGED)]
        running = [run.state.progress for run in self.runs if run.state.name == "running" and run.state.progress]
        words += [f"at epoch {progress.epoch} of {progress.epochs}" for progress in running[:1]]
        reasons = dict.fromkeys(run.state.reason for run in self.runs if run.state.reason)
        return ", ".join(words) + "".join(f"; {reason}" for reason in reasons)

    @property
    def headline(self) -> str:
        """The number that stands for the row beside other columns: `18.59 (n = 2)`."""
        return f"{self._median_text} (n = {len(self.errors)})" if self.errors else self.remarks

    def facts(self) -> dict[str, str]:
        """The row's line, by the name of the column; the verdict first, where a narrow window shows it too."""
        difference = signed(self.difference)
        if self.difference is not None and not self.is_published_protocol:
            difference = f"({difference})"
        return {
            "verdict": self.verdict,
            "median": self._median_text,
            "published": self.published.text,
            "difference": difference,
            "true difference": _between(*self.true_difference) if self.true_difference else "",
            "n": str(len(self.errors)),
            "mean ± std": percent(self.mean) + (f" ± {percent(self.std)}" if self.std is not None else ""),
            "95% interval": f"{percent(self.interval[0])} to {percent(self.interval[1])}" if self.interval else NOTHING,
            "best": percent(self.best),
            "best epochs": percent(self.compared_median) if self.published.best_epochs else "",
            "training": percent(self.train_median),
            "top-5": percent(self.top5_median),
            "published top-5": percent(self.published.top5_error),
            "published view": self.published.view,
            "also published": self.published.others,
            "core-hours": _hours(self.hours("cpu")),
            "GPU-hours": _hours(self.hours("cuda")),
            "state": self.remarks,
        }

    @property
    def _median_text(self) -> str:
        if self.median is None or not self.is_fail:
            return percent(self.median)
        return FAIL if math.isinf(self.median) else f"{FAIL} ({percent(self.median)})"


def _units(result: dict[str, Any]) -> int:
    """Threads, or GPUs, that it was trained by in the end."""
    processes = list(result.get("processes", {"0": 1}).values())[-1]
    return processes * (result.get("threads", 1) if result["device_type"] == "cpu" else 1)


def _between(low: float, high: float) -> str:
    return f"{signed(low)} to {signed(high)}"


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours else ""


def compared_error(run: Run, best_epochs: int | None) -> float | None:
    """The run's error, or where the paper counts its `best_epochs` lowest the mean of these."""
    if run.error is None or math.isinf(run.error) or not best_epochs:
        return run.error
    errors = sorted(epoch["test_error"] for epoch in run.history if epoch.get("test_error") is not None)
    return fmean(errors[:best_epochs]) if errors else None


def middle(errors: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(errors) if errors else None
