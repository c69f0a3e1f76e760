"""Computes how certain errors are, and whether two rows differ."""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np
import scipy  # which imports scipy.stats at its first use

CONFIDENCE = 0.95
STANDARD_ERRORS = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # in half of a normal interval at `CONFIDENCE`
FEWEST_SEEDS = 3  # with fewer there is neither a verdict nor a claim
FEWEST_RANKED = 5  # rows; the rankings of fewer rows may agree by chance
RESAMPLES = 9999
TAIL_RESAMPLES = 499
WORST_ERROR = 100.0  # percent; a diverged run counts as this if a finite number is needed
FALSE_ALARM = 1e-3  # the rate for honest records, if the logarithms of ratios are normal; see `largest_gap`
LEAST_GAPS = 8.0  # typical gaps are always allowed, because all moved trainings may be close by chance
MOST_OF_LOSS = 0.1  # largest share of a loss that is allowed, or a few very different trainings would allow any gap
FLOOR = 4 * 2.0**-23  # share of a loss; in any net, another order of the sum over a batch may round by as much
TEST_SET_NOTE = (
    "Test set: the choice of test images alone may move the difference by this much (half of a "
    f"{100 * CONFIDENCE:.0f}% interval, from the images that each run got right)."
)


def median_interval(errors: Sequence[float]) -> tuple[float, float] | None:
    """Return the bootstrap interval of the median at `CONFIDENCE` (percentile method, fixed random state), in percent.

    None if there are fewer than `FEWEST_SEEDS` runs. A diverged run counts as `WORST_ERROR`.
    """
    finite = [min(error, WORST_ERROR) for error in errors]
    if len(finite) < FEWEST_SEEDS:
        return None
    if len(set(finite)) == 1:
        return finite[0], finite[0]
    interval = scipy.stats.bootstrap(
        (finite,), np.median, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile", rng=0
    ).confidence_interval
    return float(interval.low), float(interval.high)


def image_noise(first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None]) -> float | None:
    """Return how far the choice of test images alone may move the difference of two mean errors: half a 95 % interval.

    Each array says which images a run got wrong, (images,). Images are paired and a row's runs are averaged, so that
    differences between its seeds do not count. In percent points; None if a row has no arrays or their lengths differ.
    """
    rows = [[wrong for wrong in row if wrong is not None] for row in (first, second)]
    if not all(rows) or len({len(wrong) for row in rows for wrong in row}) > 1:
        return None
    by_image = np.mean(rows[0], axis=0) - np.mean(rows[1], axis=0)
    return 100 * STANDARD_ERRORS * float(by_image.std(ddof=1)) / math.sqrt(len(by_image))


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Return Kendall's tau-b between two rankings of the same rows, and its p value; an infinite error is the worst.

    None if there are fewer than `FEWEST_RANKED` rows, or all rows of a side are equal.
    """
    if len(first) < FEWEST_RANKED or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    agreement = scipy.stats.kendalltau(first, second)
    return float(agreement.statistic), float(agreement.pvalue)


@dataclass(frozen=True)
class Comparison:
    """Welch's t test of two rows: `difference` of the mean errors in percent, first - second.

    `low` and `high` bound the difference; the bounds of all comparisons hold together at `CONFIDENCE` (Bonferroni).
    `p` is for this comparison alone, `p_corrected` is corrected for all by Holm, `effect` is Hedges' g, and
    `image_noise` is the result of that function. If rows cannot be compared, `why_not` says why and numbers are nan.
    """

    first: str
    second: str
    seeds: tuple[int, int]
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    effect: float = math.nan
    p: float = math.nan
    p_corrected: float = math.nan
    image_noise: float | None = None
    why_not: str = ""

    @property
    def answer(self) -> str:
        """Whether the first row's error is lower or higher, or why nothing can be said."""
        if self.why_not:
            return self.why_not
        if self.p_corrected > 1 - CONFIDENCE:
            return "no difference shown"
        return "lower" if self.difference < 0 else "higher"


@dataclass(frozen=True)
class Errors:
    """Final test errors of a row, in percent, one for each seed; infinite if a run diverged.

    `wrong` says which test images each run got wrong, (images,), None if that is not known. `weights` are checksums of
    the final weights, by which a run is recognised in two rows, None if it is not known. A row `is_mixed` if several
    versions of the user's code trained its runs.
    """

    row: str
    values: tuple[float, ...]
    wrong: tuple[np.ndarray | None, ...] = ()
    weights: tuple[str | None, ...] = ()
    is_mixed: bool = False


class Welch(NamedTuple):
    """Welch's t test on the errors of two rows: `difference` of the means, first minus second, in percent points.

    `low` and `high` bound the difference; `p` is for this test alone.
    """

    difference: float
    low: float
    high: float
    p: float


def welch(first: Sequence[float], second: Sequence[float], error: float) -> Welch:
    """Test two rows; the interval leaves out the true difference with probability `error`.

    If neither row has any spread, nothing can be said: the interval has no bounds, and p is 1.
    """
    return welch_of_each([(first, second)], error)[0]


def welch_of_each(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], error: float) -> list[Welch]:
    """Test each pair as `welch` does. A call of scipy takes a millisecond, so that pairs of equal sizes share one."""
    tests: dict[int, Welch] = {}
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (first, second) in enumerate(pairs):
        if len(set(first)) == len(set(second)) == 1:
            difference = fmean(first) - fmean(second)
            tests[place] = Welch(difference, -math.inf, math.inf, 1.0)
        else:
            alike[len(first), len(second)].append(place)
    for places in alike.values():
        firsts, seconds = (np.array([pairs[place][side] for place in places]) for side in (0, 1))
        with warnings.catch_warnings():  # the test is sound if only one row has no spread
            warnings.filterwarnings("ignore", "Precision loss occurred in moment calculation", RuntimeWarning)
            test = scipy.stats.ttest_ind(firsts, seconds, axis=1, equal_var=False)
            interval = test.confidence_interval(1 - error)
        for place, low, high, p in zip(places, interval.low, interval.high, test.pvalue, strict=True):
            first, second = pairs[place]
            tests[place] = Welch(fmean(first) - fmean(second), float(low), float(high), float(p))
    return [tests[place] for place in range(len(pairs))]


def weighted_sum(weights: Sequence[float], rows: Sequence[Sequence[float]], error: float) -> tuple[float, float, float]:
    """Return the weighted sum of the rows' means, and bounds that leave out the true sum with probability `error`.

    This is Welch's t for any number of rows (Satterthwaite's degrees of freedom); with weights 1 and -1 it equals
    `welch`. If a row has fewer than two numbers, or one that is not finite, or several rows lack any spread, the
    bounds are infinite.
    """
    if min(map(len, rows)) < 2 or not np.isfinite(np.concatenate(rows)).all():
        return math.nan, -math.inf, math.inf
    total = sum(weight * fmean(row) for weight, row in zip(weights, rows, strict=True))
    parts = [weight**2 * np.var(row, ddof=1) / len(row) for weight, row in zip(weights, rows, strict=True)]
    if not (variance := sum(parts)):
        return (total, total, total) if len(rows) == 1 else (total, -math.inf, math.inf)
    freedom = variance**2 / sum(part**2 / (len(row) - 1) for part, row in zip(parts, rows, strict=True))
    half = float(scipy.stats.t.ppf(1 - error / 2, freedom)) * math.sqrt(variance)
    return total, total - half, total + half


def tail_sum(
    weights: Sequence[float], rows: Sequence[Sequence[float]], share: float, log: float | None, error: float
) -> tuple[float, float, float]:
    """Average the lowest `share` of each row; return the weighted sum of the means, with bounds as in `weighted_sum`.

    With `log`, a base, the logarithm of each mean counts. The bounds are Student's: the standard error comes from 499
    bootstrap resamples (fixed random state), and Satterthwaite's rule joins the rows' degrees of freedom, k - 1 for a
    row of k averaged numbers. Bootstrap percentiles are too narrow if rows differ in shape; see docs/claims.md.
    """
    lowest = [max(1, int(share * len(row))) for row in rows]
    with np.errstate(invalid="ignore"):  # diverged trials have infinite numbers
        values = [float(_tail(np.array(row), k, log)) for row, k in zip(rows, lowest, strict=True)]
        draw = np.random.default_rng(0)
        drawn = [
            _tail(draw.choice(row, (TAIL_RESAMPLES, len(row))), k, log) for row, k in zip(rows, lowest, strict=True)
        ]
        parts = [weight**2 * np.var(each, ddof=1) for weight, each in zip(weights, drawn, strict=True)]
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    if min(lowest) < 2 or not math.isfinite(total) or not math.isfinite(variance := sum(parts)) or not variance:
        return (total if math.isfinite(total) else math.nan), -math.inf, math.inf
    freedom = variance**2 / sum(part**2 / (k - 1) for part, k in zip(parts, lowest, strict=True))
    half = float(scipy.stats.t.ppf(1 - error / 2, freedom)) * math.sqrt(variance)
    return total, total - half, total + half


def _tail(values: np.ndarray, lowest: int, log: float | None) -> np.ndarray:
    """Average the `lowest` numbers along the last axis, and take the logarithm."""
    means = np.partition(values, lowest - 1)[..., :lowest].mean(-1)
    return np.log(means) / math.log(log) if log else means


def rank_correlation(places: Sequence[float], values: Sequence[float], error: float) -> tuple[float, float, float]:
    """Return Kendall's tau-b and its bounds, which leave out 0 if Kendall's asymptotic test has p below `error`.

    The standard deviation is the one that tau has for a random order, corrected for ties. The bounds are infinite for
    fewer than five values, for equal values, and if a value is not finite.
    """
    if len(values) < 5 or not np.isfinite(values).all() or len(set(values)) == 1:
        return math.nan, -math.inf, math.inf
    tau, p = scipy.stats.kendalltau(places, values, method="asymptotic")
    n = len(values)
    deviation = abs(tau) / scipy.stats.norm.isf(p / 2) if tau else math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))
    half = float(scipy.stats.norm.isf(error / 2) * deviation)
    return float(tau), max(-1.0, tau - half), min(1.0, tau + half)


def power(difference: float, spread: float, seeds: int, spent: float) -> float:
    """Return the probability that the interval leaves out 0, for two rows of `seeds` seeds and the same `spread`."""
    if not spread:
        return 0.0  # rows without spread are not tested
    freedom, shift = 2 * seeds - 2, abs(difference) / spread * math.sqrt(seeds / 2)
    if shift > 30:  # certain; scipy's noncentral t has no value there
        return 1.0
    bound = scipy.stats.t.ppf(1 - spent / 2, freedom)
    wrong_side = (
        scipy.stats.nct.cdf(-bound, freedom, shift) if shift < 5 else 0.0
    )  # else below 1e-10; scipy may return nan
    return float(scipy.stats.nct.sf(bound, freedom, shift) + wrong_side)


def compare_rows(rows: Sequence[Errors]) -> list[Comparison]:
    """Compare every pair of rows, as `compare_pairs` does."""
    return compare_pairs(list(combinations(rows, 2)))


def compare_pairs(pairs: Sequence[tuple[Errors, Errors]]) -> list[Comparison]:
    """Compare each pair by Welch's test, corrected for the number of tested pairs; the smallest p comes first.

    A run gives the same bits again, so rows of equal errors are the same experiment, of which there is nothing to test.
    Rows that have a run in common are not tested either, because the test takes all runs as independent, nor rows whose
    seeds different code has trained.
    """
    reasons = [_why_not(first, second) for first, second in pairs]
    tested = [pair for pair, why_not in zip(pairs, reasons, strict=True) if not why_not]
    values = [(first.values, second.values) for first, second in tested]
    tests = welch_of_each(values, (1 - CONFIDENCE) / max(len(tested), 1))
    comparisons = [_compared(first, second, test) for (first, second), test in zip(tested, tests, strict=True)]
    corrected = holm([comparison.p for comparison in comparisons])
    comparisons = [replace(pair, p_corrected=p) for pair, p in zip(comparisons, corrected, strict=True)]
    untested = [
        Comparison(first.row, second.row, (len(first.values), len(second.values)), why_not=why_not)
        for (first, second), why_not in zip(pairs, reasons, strict=True)
        if why_not
    ]
    return sorted(comparisons, key=lambda pair: pair.p) + untested


def holm(p: Sequence[float]) -> list[float]:
    """Correct m p values for their number (Holm 1979): the i-th smallest times m - i + 1, never falling."""
    corrected, highest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, p[index] * (len(p) - rank)))
        corrected[index] = highest
    return corrected


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the difference of the means over the pooled deviation, corrected for small samples (Hedges 1981)."""
    freedom = len(first) + len(second) - 2
    spreads = (_spread(tuple(first)), _spread(tuple(second)))
    pooled = math.sqrt(((len(first) - 1) * spreads[0] ** 2 + (len(second) - 1) * spreads[1] ** 2) / freedom)
    return (fmean(first) - fmean(second)) / pooled * (1 - 3 / (4 * freedom - 1))


@lru_cache
def _spread(values: tuple[float, ...]) -> float:
    """Return `stdev`. It is cached, as its exact sums take 0.1 ms, and a row is compared with all others."""
    return stdev(values)


def _why_not(one: Errors, other: Errors) -> str:
    first, second = one.values, other.values
    if one.is_mixed or other.is_mixed:
        return "different code of yours trained the seeds of a row"
    if min(len(first), len(second)) < FEWEST_SEEDS:
        return f"fewer than {FEWEST_SEEDS} seeds"
    if not all(map(math.isfinite, [*first, *second])):
        return "a run diverged"
    if len(set(first)) == len(set(second)) == 1:
        return "no spread between seeds"
    if tuple(first) == tuple(second):
        return "equal errors: the same runs"
    if {*one.weights} & {*other.weights} - {None}:
        return "both rows have a run with the same final weights, and the test takes runs as independent"
    return ""


def _compared(first: Errors, second: Errors, test: Welch) -> Comparison:
    difference, low, high, p = test
    seeds, effect = (len(first.values), len(second.values)), hedges_g(first.values, second.values)
    noise = image_noise(first.wrong, second.wrong)
    return Comparison(first.row, second.row, seeds, difference, low, high, effect, p, image_noise=noise)


class Gap(NamedTuple):
    """The `loss` of a record (from 1) that stands out most: it differs by `gap` nats; rounding explains `allowed`."""

    loss: int
    gap: float
    allowed: float


def largest_gap(record: np.ndarray, here: np.ndarray, moved: np.ndarray) -> Gap:
    """Find where a record's losses (L,) are furthest from the losses `here` (L,), and how far rounding may move them.

    `moved` (K, L) are the losses of K runs whose images were moved by one rounding. Their gaps |moved - here| show how
    far rounding alone moves this net. The typical gap of a loss is the root mean square of the K gaps. A run's ratio is
    the largest of its gaps divided by the typical gaps; for one of the K runs, the typical gaps come from the other
    K - 1. An honest record is one more run of this kind. So if the logarithms of the ratios are normal, the
    record's logarithm lies, with probability 1 - `FALSE_ALARM`, below their mean + t * their standard deviation *
    sqrt(1 + 1/K), with t of K - 1 degrees of freedom. At least `LEAST_GAPS` typical gaps are allowed, and more only up
    to `MOST_OF_LOSS` of the loss.

    In simulations, less than 1 % of honest records fail if the gaps of all runs grow alike, or differ by lognormal
    factors of deviation 1 or 2. Up to 4 % fail if in each iteration the gap of one run in twenty jumps a thousandfold,
    as when a ReLU switches. Another processor moves the losses less than rounding every pixel does.
    """
    floor = FLOOR * np.abs(here)
    gaps, gap = np.maximum(np.abs(moved - here), floor), np.maximum(np.abs(record - here), floor)
    squares, others = gaps**2, len(moved) - 1
    typical = np.sqrt(squares.mean(0))
    ratios = (gaps / np.sqrt((squares.sum(0) - squares) / others)).max(1)
    logs = [math.log(ratio) for ratio in ratios]
    bound = fmean(logs) + scipy.stats.t.ppf(1 - FALSE_ALARM, others) * stdev(logs) * math.sqrt(1 + 1 / len(moved))
    allowed = np.maximum(LEAST_GAPS * typical, np.minimum(math.exp(bound) * typical, MOST_OF_LOSS * np.abs(here)))
    place = int((gap / allowed).argmax())
    return Gap(place + 1, float(abs(record - here)[place]), float(allowed[place]))
