"""A random search: its trials summed up as one row for each net (Srivastava et al. 2015, 3.1 and Fig. 1)."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median

from deepnets.results.cell import Cell
from deepnets.results.read import Run, example
from deepnets.results.sheet import NOTHING, percent
from deepnets.runs.contents import FINISHED

TRIAL = "setting"  # the key, and the axis, that numbers the trials
SHARE = 10  # the mean is that of the best tenth: of 10 among 100 trials, as in the paper
LOSS = "train_loss"
NOTE = "Training loss of the last epoch, by which the best trial is chosen; test error in percent."
SEEDS_NOTE = " Of several seeds of a trial the run of median loss counts, of two the worse."


@dataclass(frozen=True)
class Net(Cell):
    """A net of a search as a row: of each trial that ended the run of median loss, the lowest loss first."""

    trials: tuple[Run, ...] = ()

    @property
    def errors(self) -> list[float]:
        """None: trials are no sample of one thing."""
        return []

    @property
    def losses(self) -> list[float]:
        """Final training losses in rising order."""
        return [final_loss(run) for run in self.trials]

    @property
    def best_tenth(self) -> float:
        return fmean(self.losses[: max(1, len(self.losses) // SHARE)])

    @property
    def example(self) -> Run | None:
        """The best trial, as a run of the net itself; None where all diverged."""
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
            "state": self.remarks,
        }


def is_search(runs: Iterable[Run]) -> bool:
    """Whether the rows of a table are trials: whether the trial is one of its axes."""
    return any(TRIAL in run.sweep.get("axes", []) for run in runs)


def nets_of(trials: Mapping[str, Cell]) -> dict[str, Net]:
    """The nets of a column, whose rows are trials."""
    grouped: dict[str, list[Cell]] = defaultdict(list)
    for row, cell in trials.items():
        if cell.runs:
            grouped[_net(row, cell.runs[0])].append(cell)
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


def search_note(trials: Iterable[Cell]) -> str:
    """By which number trials are compared."""
    return NOTE + SEEDS_NOTE * any(len(cell.runs) > 1 for cell in trials)


def final_loss(run: Run) -> float:
    """Mean training loss of the last epoch; infinite where the run diverged or has no epoch."""
    if run.error is None or math.isinf(run.error):
        return math.inf
    loss = run.history[-1].get(LOSS, math.inf) if run.history else math.inf
    return loss if math.isfinite(loss) else math.inf


def _ended(cells: Iterable[Cell]) -> tuple[Run, ...]:
    runs = [example(cell.runs, final_loss) for cell in cells]
    return tuple(sorted((run for run in runs if run.error is not None), key=final_loss))


def _net(row: str, run: Run) -> str:
    """The row's name without the number of its trial."""
    axes, parts = run.sweep.get("axes", []), row.split(",")
    if TRIAL in axes and len(parts) == len(axes):
        parts.pop(axes.index(TRIAL))
    return ",".join(parts) or "all trials"


def _loss(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"
