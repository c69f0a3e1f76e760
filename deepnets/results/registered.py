"""Tests registered claims: each look bounds a number that several rows give, and asks if it is in the claimed region.

A run's number is in its result, or in a CSV file that `deepnets analyze` wrote.
"""

import io
import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
import scipy

from deepnets.config.claim import Registered
from deepnets.config.quantity import Analysed, ClaimTest, Conditions, Contrast, CsvColumn, RunNumber
from deepnets.errors import UserError, nearest
from deepnets.results.cell import compared_error, final_loss
from deepnets.results.finding import LOOKS, Finding, Look, Outcome
from deepnets.results.read import Run
from deepnets.results.statistics import WORST_ERROR, rank_correlation, tail_sum, weighted_sum
from deepnets.runs.folder import RunFolder
from deepnets.system.files import LONGEST, read_text
from deepnets.system.printing import MINUS
from deepnets.training.assembly import iterations_of

DRAWS = 200  # simulations of the next look, to estimate how likely it is to give an answer
COLUMNS: dict[Any, str] = {
    RunNumber.test_error: "test_error",
    RunNumber.training_error: "train_error",
    RunNumber.training_loss: "train_loss",
}
PLACES = {"subject", "root", "output", "device"}  # options of an analysis that name a place on this machine
TRIALS = 10  # 10 trials of a random search count as one seed: a look at 3 seeds takes 30 trials

REGISTERED_RULE = (
    "A registered claim has the same looks, and they divide the error in the same way. It is supported if the interval "
    "of its number lies in the claimed region, and contradicted if the interval lies outside. A claim of several "
    "numbers is supported if all their intervals lie in the region. It is contradicted if one lies outside; these "
    "intervals are wider, since the numbers divide the error among them, and are shown unless the claim is supported. "
    "The line shows the number that is worst for the claim. A number that is not finite, such as the loss of a run "
    "that diverged, allows no further look. "
    f"The mean over a search's best trials is looked at with {', '.join(str(TRIALS * seeds) for seeds in LOOKS)} "
    "trials. A number that an analysis measures waits for the analysis."
)
FUNCTIONS: dict[str, Callable[[pd.Series], pd.Series]] = {"log2": np.log2, "log10": np.log10, "abs": np.abs}
REDUCE: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "slope": lambda x, y: scipy.stats.linregress(x, y).slope,
    "tau": lambda x, y: scipy.stats.kendalltau(x, y).statistic,
    "pearson": lambda x, y: scipy.stats.pearsonr(x, y).statistic,
}


@dataclass(frozen=True)
class RegisteredFinding(Finding):
    """A registered claim and what its rows' runs say about it; `sides` has the rows in the order of its test."""

    claim: Registered

    @property
    def test(self) -> ClaimTest:
        assert self.claim.test
        return self.claim.test

    @property
    def counted(self) -> str:  # type: ignore[override]
        """What a look counts."""
        return "trial" if self.test.best else "seed"

    @property
    def sizes(self) -> dict[int, float]:
        return looks_of(self.test)

    @property
    def text(self) -> str:
        return self.claim.sentence

    @property
    def other(self) -> str:
        return "; ".join(side.row for side in self.sides[1:])

    @property
    def number(self) -> str:
        """Which number each run gives, without `at` that of the last epoch: `log10 training loss; claimed: above 2`."""
        base = {None: "", math.e: "ln "}.get(self.test.log, f"log{self.test.log:g} " if self.test.log else "")
        kind = "order, " if self.test.order else "share above, " if self.test.is_share else ""
        best = f", best {self.test.best:g} of trials" if self.test.best else ""
        after = f" at {self.test.at:g}" if 0 < self.test.at < 1 else ""
        # Adding 0 takes the sign of -0.
        low, high = (f"{bound + 0.0:g}".replace("-", MINUS) for bound in (self.test.low, self.test.high))
        one_side = f"above {low}" if math.isinf(self.test.high) else f"below {high}"
        claimed = f"{low} to {high}" if math.isfinite(self.test.high - self.test.low) else one_side
        return f"{kind}{base}{str(self.test.of).removesuffix(' error')}{after}{best}; claimed: {claimed}"

    @cached_property
    def looks(self) -> list[Look]:
        """The looks, each with the number that is worst for the claim.

        If a look does not support a claim of several numbers, it has the wider bounds that can contradict it.
        """
        looks = []
        for seeds, spent in self.sizes.items():
            chosen = [side.at(seeds) for side in self.sides]
            rows = [row for row in chosen if row is not None]
            if len(rows) == len(chosen):
                outcome, bounds = _answer(self.test, rows, spent)
                looks.append(Look(seeds, spent, *max(bounds, key=self._distance), outcome))
        return looks

    def _so_far(self) -> float:
        numbers = _numbers(self.test, [side.errors for side in self.sides])
        return max(numbers, key=lambda number: self._distance((number, number, number)))

    @cached_property
    def chance(self) -> float | None:
        """The probability that the next look answers, simulated with each row's mean and spread so far."""
        if (seeds := self.next_look) is None or min(self.seeds) < 2 or self.test.best:
            return None
        if not all(math.isfinite(value) for side in self.sides for value in side.errors):
            return None
        draw, answered = np.random.default_rng(0), 0
        for _ in range(DRAWS):
            rows = [draw.normal(fmean(side.errors), stdev(side.errors), seeds).tolist() for side in self.sides]
            answered += _answer(self.test, rows, LOOKS[seeds])[0] is not Outcome.undecided
        return answered / DRAWS

    def _is_hopeless(self, seeds: int) -> bool:
        """Whether one of the seeds gave a number that is not finite, which leaves every mean without bounds."""
        ended = [side.unseen[seed] for side in self.sides for seed in side.first(seeds) if seed in side.unseen]
        return not self.test.best and not all(map(math.isfinite, ended))

    def _distance(self, bounds: tuple[float, float, float]) -> float:
        """Return how far a number's bounds reach out of the claimed region; below 0 if they lie inside."""
        value, low, high = bounds
        if math.isnan(value):
            return math.inf
        return max(self.test.low - low, high - self.test.high)


def looks_of(test: ClaimTest) -> dict[int, float]:
    """Return the part of the error that each look spends, by its number of seeds, or of trials in a random search."""
    return {TRIALS * seeds: spent for seeds, spent in LOOKS.items()} if test.best else LOOKS


def number_of(run: Run, test: ClaimTest, best_epochs: int | None) -> float | None:
    """Return the number that a test takes from a run; None if the run has not ended or waits for its analysis.

    Errors are in percent, losses in nats. If the run diverged before `at`, an error is 100, another number not finite.
    """
    if not run.has_ended:
        return None
    if isinstance(test.of, Analysed):
        return math.nan if run.error == math.inf else analysed_number(run.folder.path / "analysis", test.of)
    if test.best:
        return final_loss(run)
    if test.at < 1 or test.of is RunNumber.training_loss:
        value = _from_history(run, test)
    elif test.of is RunNumber.test_error:
        value = compared_error(run, best_epochs)
    else:
        value = run.result.get("train_error", WORST_ERROR if run.error == math.inf else None)
    if value is None:
        return None
    if test.of is not RunNumber.training_loss:
        value = min(value, WORST_ERROR)
    if test.log is None:
        return value
    return math.log(value, test.log) if 0 < value < math.inf else math.nan


def analysed_number(folder: Path, of: Analysed, free: Collection[str] = ()) -> float | None:
    """Return the number that the analysis in `folder` measured; None if the analysis is missing or had other options.

    The options in `free` may have any value. An undefined number, such as the logarithm of a negative one, is nan.

    Raises:
        UserError: a file cannot be read, or the table has no such column or lines.
    """
    file = folder / of.file
    noted, claimed = noted_by(folder, of.analysis), {name.replace("-", "_"): value for name, value in of.options}
    options, changed = noted.get("options") or {}, noted.get("changed")
    if changed is None:  # earlier versions did not note what is not the default
        changed = ["iteration"] * bool(options.get("iteration"))
    if not file.is_file() or any(str(options.get(name)) != value for name, value in claimed.items()):
        return None
    if {*changed} - {*claimed, *free}:
        return None
    try:
        table = pd.read_csv(io.StringIO(read_text(file, LONGEST)))
    except (OSError, ValueError) as error:
        raise UserError(f"{RunFolder(file)}: cannot be read: {error}; delete it, or analyze again") from error
    if "run" in table and len(table):  # the first run is this folder's; the analysis also measured the others
        table = table[table["run"] == table["run"].iloc[0]]
    number = _number_in(table, of, of.where, file)
    if of.minus:
        number -= _number_in(table, of, tuple((dict(of.where) | dict(of.minus)).items()), file)
    return number if math.isfinite(number) else math.nan


def noted_by(folder: Path, analysis: str) -> dict[str, Any]:
    """Return what an analysis noted in NAME.json, as `Output` writes it; empty if the file is missing.

    Raises:
        UserError: the file cannot be read.
    """
    file = folder / f"{analysis}.json"
    try:
        noted = json.loads(read_text(file, LONGEST)) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{RunFolder(file)}: cannot be read: {error}; delete it, or analyze again") from error
    return noted if isinstance(noted, dict) else {}


def share_above(run: Run, other: Run, test: ClaimTest) -> float | None:
    """Return the share of the epochs in which the number of `run` is higher than that of `other`.

    Only epochs after the share `test.at` of the iterations count; after its divergence, a run has the worst number.
    None if a run has not ended, or no epoch counts.
    """
    column = COLUMNS[test.of]
    first = (run.history or other.history)[:1]
    if not (run.has_ended and other.has_ended and first):
        return None
    start = test.at * iterations_of(run.typed_config, int(first[0]["iteration"]))
    rest = [{column: math.inf} if each.error == math.inf else {} for each in (run, other)]
    pairs = [
        (one or rest[0], two or rest[1])
        for one, two in zip_longest(run.history, other.history)
        if (one or two)["iteration"] > start + 1e-9
    ]
    higher = [one[column] > two[column] for one, two in pairs if column in one and column in two]
    return fmean(higher) if higher else None


def _from_history(run: Run, test: ClaimTest) -> float | None:
    """Return the error or loss after the share `at` of the iterations; 100 or nan if the run diverged before."""
    column = COLUMNS[test.of]
    if run.history:
        total = iterations_of(run.typed_config, int(run.history[0]["iteration"]))
        for epoch in run.history:
            if epoch["iteration"] >= test.at * total - 1e-9 and column in epoch:
                return epoch[column]
    return (math.nan if column == "train_loss" else WORST_ERROR) if run.error == math.inf else None


def _number_in(table: pd.DataFrame, of: Analysed, lines: Conditions, file: Path) -> float:
    for name, value in lines:
        column = _named(table, name, file)
        table = table[_numeric(column).between(*value) if isinstance(value, tuple) else column == value]
    if table.empty:
        raise UserError(f"{RunFolder(file)}: no line has {', '.join(f'{name} {value}' for name, value in lines)}")
    if of.by:
        _named(table, of.by, file)
        table = table.groupby(of.by, as_index=False).mean(numeric_only=True)
    with np.errstate(all="ignore"):  # numbers without a logarithm become nan
        columns = [_values(table, column, file).to_numpy() for column in of.columns]  # pandas would skip nan
        return float(REDUCE[of.reduction](*columns))


def _values(table: pd.DataFrame, column: CsvColumn, file: Path) -> pd.Series:
    values = _numeric(_named(table, column.name, file))
    values = FUNCTIONS[column.function](values) if column.function else values
    return values if column.below is None else (values < column.below).astype(float)


def _named(table: pd.DataFrame, name: str, file: Path) -> pd.Series:
    if name not in table:
        raise UserError(f"{RunFolder(file)}: has no column {name}{nearest(name, [str(each) for each in table])}")
    return table[name]


def _numeric(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce")


def _bounds(test: ClaimTest, rows: Sequence[Sequence[float]], error: float) -> list[tuple[float, float, float]]:
    """Return each number of the test with its bounds; `rows` hold a number per run, in the order of `test.rows`."""
    if test.order:
        places = [place for place, row in enumerate(rows) for _ in row]
        return [rank_correlation(places, [value for row in rows for value in row], error)]
    by_row = dict(zip(test.rows, rows, strict=True))
    bounds = []
    for contrast in test.contrasts:
        weights, numbers = [weight for _, weight in contrast.weights], [by_row[row] for row in contrast.rows]
        if test.best:
            value, low, high = tail_sum(weights, numbers, test.best, test.log, error)
        else:
            value, low, high = weighted_sum(weights, numbers, error)
        bounds.append((value + contrast.constant, low + contrast.constant, high + contrast.constant))
    return bounds


def _numbers(test: ClaimTest, rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the numbers of the test without bounds, for which one run of each row is enough."""
    if test.order or test.best:
        return [value for value, _, _ in _bounds(test, rows, 0.5)]
    means = {row: fmean(values) for row, values in zip(test.rows, rows, strict=True)}
    return [_of_means(contrast, means) for contrast in test.contrasts]


def _of_means(contrast: Contrast, means: dict[str, float]) -> float:
    return contrast.constant + sum(weight * means[row] for row, weight in contrast.weights)


def _answer(
    test: ClaimTest, rows: Sequence[Sequence[float]], spent: float
) -> tuple[Outcome, list[tuple[float, float, float]]]:
    """Return what the rows answer, and the numbers with the bounds that decide this."""
    bounds = _bounds(test, rows, spent)
    if all(test.low < low and high < test.high for _, low, high in bounds):
        return Outcome.supported, bounds
    wide = _bounds(test, rows, spent / len(bounds))
    outside = [each for each in wide if each[2] < test.low or each[1] > test.high]
    return (Outcome.contradicted, outside) if outside else (Outcome.undecided, wide)
