"""The cells of a table: a row's numbers and verdict in one column, or the numbers of one net of a random search."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, stdev
from typing import Any

from deepnets.results.columns import mixes_code
from deepnets.results.published import FAIL, PublishedRow, printed_of, true_difference, verdict_of
from deepnets.results.read import Run, example
from deepnets.results.statistics import median_interval
from deepnets.runs.contents import DIVERGED, FINISHED
from deepnets.system.printing import NOTHING, percent, setting_text, signed

FAIL_ABOVE = 20.0  # percent; He et al. 2016, Table 1
TRIAL = "setting"  # the key and axis that hold the number of a trial
MIXED_CODE = "seeds by different code"
SHARE = 10  # the best tenth of the trials is averaged: 10 of 100, as in the paper
LOSS = "train_loss"
SEARCH_NOTE = "Training loss of the last epoch, by which the best trial is chosen; test error in percent."
SEARCH_SEEDS_NOTE = " If a trial has several seeds, its run of median loss counts, the worse of two."


@dataclass(frozen=True)
class Cell:
    """A row in one column. `errors` are the final test errors of ended runs in percent, infinite if a run diverged."""

    runs: tuple[Run, ...]
    published: PublishedRow
    is_published_protocol: bool
    fail_above: float  # percent; infinite if only a non-finite error is a fail

    @cached_property
    def errors(self) -> list[float]:
        return [run.error for run in self.runs if run.error is not None]

    @cached_property
    def compared(self) -> list[float]:
        """The errors to compare with the paper's: `errors`, or the mean of each run's `best_epochs` lowest errors."""
        if not self.published.best_epochs:
            return self.errors
        errors = [compared_error(run, self.published.best_epochs) for run in self.runs]
        return [error for error in errors if error is not None]

    @property
    def example(self) -> Run | None:
        """The run that stands for the row in figures; None if no configuration can be read."""
        runs = [run for run in self.runs if run.config]
        return example(runs) if runs else None

    @property
    def median(self) -> float | None:
        """The median error; infinite if at least half of the runs diverged."""
        return middle(self.errors)

    @property
    def compared_median(self) -> float | None:
        return middle(self.compared)

    @property
    def mean(self) -> float | None:
        """The mean error; None if a run diverged."""
        return fmean(self.errors) if self.errors and all(map(math.isfinite, self.errors)) else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the errors, with divisor n - 1."""
        return stdev(self.errors) if len(self.errors) > 1 and self.mean is not None else None

    @property
    def best(self) -> float | None:
        """The lowest error; None if no run has one."""
        return min(filter(math.isfinite, self.errors), default=None)

    @property
    def train_median(self) -> float | None:
        """The median training error of the last epoch, in percent, over the finished runs."""
        ended = [run.result.get("train_error") for run in self.runs if run.state.name == FINISHED]
        return middle([error for error in ended if error is not None])

    @property
    def top5_median(self) -> float | None:
        """The median top-5 error, in percent, over the finished runs that note it."""
        noted = [run.result.get("test_top5_error") for run in self.runs if run.state.name == FINISHED]
        return middle([error for error in noted if error is not None])

    def hours(self, device: str) -> float:
        """Sum the hours of ended runs: core-hours on a "cpu" (a thread is a core), GPU-hours on "cuda"."""
        ended = [run.result for run in self.runs if run.result.get("device_type") == device]
        return sum(_units(result) * hours_of(result) for result in ended)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        return median_interval(self.compared) if any(map(math.isfinite, self.compared)) else None

    @property
    def is_fail(self) -> bool:
        return self.median is not None and (math.isinf(self.median) or self.median > self.fail_above)

    @property
    def difference(self) -> float | None:
        """The median of `compared` minus the published value; None unless both are numbers."""
        published, median = self.published.test_error, self.compared_median
        if not isinstance(published, int | float) or median is None or math.isinf(median):
            return None
        return median - published

    @property
    def verdict(self) -> str:
        """The verdict by `verdict_of`; empty if the protocol is not the paper's."""
        return verdict_of(self.compared, self.published, self.is_fail) if self.is_published_protocol else ""

    @property
    def true_difference(self) -> tuple[float, float] | None:
        """The interval of our expected error minus the paper's, in percent points; None if they are not comparable."""
        printed = printed_of(self.published) if self.is_published_protocol and not self.is_fail else None
        return true_difference(self.compared, printed) if printed else None

    @property
    def remarks(self) -> str:
        """Says how many runs diverged, are still running or failed, and why they failed; or that there are none."""
        if not self.runs:
            return "literature" if self.published.is_literature else "missing"
        states = Counter(run.state.name for run in self.runs)
        remarks = [f"{states[DIVERGED]} of {len(self.errors)} diverged"] if DIVERGED in states else []
        remarks += [MIXED_CODE] * mixes_code(self.runs)
        remarks += [f"{count} {state}" for state, count in states.items() if state not in (FINISHED, DIVERGED)]
        running = [run.state.progress for run in self.runs if run.state.name == "running" and run.state.progress]
        remarks += [f"at epoch {progress.epoch} of {progress.epochs}" for progress in running[:1]]
        reasons = dict.fromkeys(run.state.reason for run in self.runs if run.state.reason)
        return ", ".join(remarks) + "".join(f"; {reason}" for reason in reasons)

    @property
    def headline(self) -> str:
        """The row's text in a sheet that compares columns, such as `18.59 (n = 2)`."""
        return f"{self._median_text} (n = {len(self.errors)})" if self.errors else self.remarks

    def facts(self) -> dict[str, str]:
        """Return the row's texts by column of the sheet. The verdict is first, so that a narrow window shows it too."""
        return {
            "verdict": self.verdict,
            "median": self._median_text,
            "published": self.published.text,
            "difference": signed(self.difference) if self.is_published_protocol else "",
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


@dataclass(frozen=True)
class Net(Cell):
    """A row for one net of a random search (Srivastava et al. 2015, 3.1 and Fig. 1).

    `trials` holds one run for each trial that ended, the run with the trial's median loss; the lowest loss comes first.
    """

    trials: tuple[Run, ...] = ()

    @property
    def errors(self) -> list[float]:
        """This list is empty, because the trials of a net do not come from one distribution."""
        return []

    @property
    def losses(self) -> list[float]:
        """The final training losses, lowest first."""
        return [final_loss(run) for run in self.trials]

    @property
    def best_tenth(self) -> float:
        return fmean(self.losses[: max(1, len(self.losses) // SHARE)])

    @property
    def example(self) -> Run | None:
        """The run of the best trial, whose sweep no longer has the trial's number as an axis; None if all diverged."""
        if not self.trials or math.isinf(self.losses[0]):
            return None
        best = self.trials[0]
        axes = [axis for axis in best.sweep["axes"] if axis != TRIAL]
        return replace(best, config={**best.config, "sweep": {**best.sweep, "axes": axes}})

    @property
    def remarks(self) -> str:
        states = Counter(run.state.name for run in self.runs if run.state.name != FINISHED)
        return ", ".join(f"{count} {name}" for name, count in states.items()) if self.runs else "missing"

    @property
    def headline(self) -> str:
        return f"{_loss(self.losses[0])} ({len(self.trials)} trials)" if self.trials else self.remarks

    def facts(self) -> dict[str, str]:
        best = self.example
        return {
            "trials": str(len(self.trials)),
            "best loss": _loss(self.losses[0]) if self.trials else NOTHING,
            "its trial": str(best.config[TRIAL]) if best else NOTHING,
            "its test error": percent(best.error) if best else NOTHING,
            "mean of best tenth": _loss(self.best_tenth) if self.trials else NOTHING,
            "median of all": _loss(median(self.losses)) if self.trials else NOTHING,
            "settings of the best": self._drawn(best) if best else NOTHING,
            "state": self.remarks,
        }

    @property
    def drawn(self) -> list[str]:
        """The keys of the settings in which the trials differ."""
        keys = dict.fromkeys(key for run in self.trials for key in run.settings if key not in (TRIAL, "seed"))
        return [key for key in keys if len({str(run.settings.get(key)) for run in self.trials}) > 1]

    def _drawn(self, best: Run) -> str:
        """List the settings in which the trials differ, with the values of the best trial."""
        values = {key: best.settings[key] for key in self.drawn if key in best.settings}
        rounded = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
        return ", ".join(f"{key}={setting_text(value)}" for key, value in rounded.items()) or NOTHING


def compared_error(run: Run, best_epochs: int | None) -> float | None:
    """Return the run's error, or the mean of its `best_epochs` lowest errors if the paper counts these."""
    if run.error is None or math.isinf(run.error) or not best_epochs:
        return run.error
    errors = sorted(epoch["test_error"] for epoch in run.history if epoch.get("test_error") is not None)
    return fmean(errors[:best_epochs]) if errors else None


def middle(errors: Sequence[float]) -> float | None:
    """Return the median, or None if there are no errors."""
    return median(errors) if errors else None


def is_search(runs: Iterable[Run]) -> bool:
    """Say whether the rows of a table are trials of a search: then the trial's number is an axis of the sweep."""
    return any(TRIAL in run.sweep.get("axes", []) for run in runs)


def nets_of(trials: Mapping[str, Cell]) -> dict[str, Net]:
    """Group the trials of a column by their net."""
    grouped: dict[str, list[Cell]] = defaultdict(list)
    for row, cell in trials.items():
        if cell.runs:
            grouped[net_of(row, cell.runs[0])].append(cell)
    return {
        net: Net(
            tuple(run for cell in cells for run in cell.runs),
            cells[0].published,
            cells[0].is_published_protocol,
            cells[0].fail_above,
            _ended(cells),
        )
        for net, cells in grouped.items()
    }


def net_of(row: str, run: Run) -> str:
    """Return the name of a search's row without the number of its trial."""
    axes, parts = run.sweep.get("axes", []), row.split(",")
    if TRIAL in axes and len(parts) == len(axes):
        parts.pop(axes.index(TRIAL))
    return ",".join(parts) or "all trials"


def search_note(trials: Iterable[Cell]) -> str:
    """Return the note on the number by which trials are compared."""
    return SEARCH_NOTE + SEARCH_SEEDS_NOTE * any(len(cell.runs) > 1 for cell in trials)


def final_loss(run: Run) -> float:
    """Return the mean training loss of the last epoch; infinite if the run has not ended, diverged or has no epoch."""
    if run.error is None or math.isinf(run.error):
        return math.inf
    loss = run.history[-1].get(LOSS, math.inf) if run.history else math.inf
    return loss if math.isfinite(loss) else math.inf


def hours_of(result: Mapping[str, Any]) -> float:
    """Return the hours that a run has trained; runs that trained at once, in a stack, share the time equally."""
    return (result.get("own_seconds") or result.get("seconds") or 0.0) / 3600


def _units(result: dict[str, Any]) -> int:
    """Return how many threads, or GPUs, trained the run when it ended."""
    processes = list(result.get("processes", {"0": 1}).values())[-1]
    return processes * (result.get("threads", 1) if result["device_type"] == "cpu" else 1)


def _between(low: float, high: float) -> str:
    return f"{signed(low)} to {signed(high)}"


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours else ""


def _ended(cells: Iterable[Cell]) -> tuple[Run, ...]:
    runs = [example(cell.runs, final_loss) for cell in cells]
    return tuple(sorted((run for run in runs if run.error is not None), key=final_loss))


def _loss(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"
