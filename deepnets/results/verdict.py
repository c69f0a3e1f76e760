"""Whether a row's test error is the printed one, which was drawn by chance as well."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

from scipy import stats

from deepnets.results.published import FAIL, PublishedRow
from deepnets.results.statistics import CONFIDENCE, FEWEST_SEEDS, WORST_ERROR

AGREES, COMPATIBLE, DIFFERS, TOO_FEW = "agrees", "compatible", "differs", f"n < {FEWEST_SEEDS}"
RULE = (
    "Verdict, from 3 seeds on: the printed number is itself drawn by chance (it is of one run, or the best, median or "
    "mean of several), so the true difference from the paper is known within an interval only, at 95% by our seeds' "
    "mean and spread. differs: the interval leaves out 0; agrees: it lies within the margin that the sweep states for "
    "the full protocol; compatible: neither, and the table says where the true difference lies. A diverged run counts "
    "as 100%."
)


@dataclass(frozen=True)
class Printed:
    """A printed number, in percent: the "best", "median" or "mean" of so many `runs`, which are equal of one run."""

    error: float
    statistic: str = "mean"
    runs: int = 1


def printed_of(row: PublishedRow) -> Printed | None:
    """What a row is compared with: its printed mean where the paper says of how many runs, else its test error.

    None where the paper prints no number for it.
    """
    words = row.statistic or ""
    if row.mean is not None and (found := re.search(r"mean of (\d+)", words)):
        return Printed(row.mean, "mean", int(found[1]))
    if not isinstance(row.test_error, int | float):
        return None
    if found := re.match(r"(best|median|mean) of (\d+)", words):
        return Printed(row.test_error, found[1], int(found[2]))
    return Printed(row.test_error)


def true_difference(errors: Sequence[float], printed: Printed) -> tuple[float, float] | None:
    """The interval of our expected error minus the paper's, in percent points, at `CONFIDENCE`.

    A prediction interval: the printed number is a further draw from the same distribution if there is no difference.
    Exact for one run or a mean, if errors are normal; for a median or a best one the variance is exact and the
    distribution taken as Student's. None below `FEWEST_SEEDS` errors.
    """
    if len(errors) < FEWEST_SEEDS:
        return None
    ours, n = [min(error, WORST_ERROR) for error in errors], len(errors)
    spread = stdev(ours)
    shift, variance = _drawn(printed.statistic, printed.runs)
    variance += 1 / n + shift**2 / (2 * (n - 1))  # of our mean, and of the shift, which our spread is needed for
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * spread * math.sqrt(variance)
    difference = fmean(ours) + shift * spread - printed.error
    return difference - half, difference + half


@cache
def _drawn(statistic: str, runs: int) -> tuple[float, float]:
    """Expectation and variance of a statistic of so many standard normal numbers."""
    if statistic == "mean" or runs == 1:
        return 0.0, 1 / runs
    if statistic == "median" and runs % 2 == 0:  # between that of one run more and of one less
        return 0.0, (_drawn(statistic, runs - 1)[1] + _drawn(statistic, runs + 1)[1]) / 2
    place = 1 if statistic == "best" else (runs + 1) // 2
    uniform = stats.beta(place, runs - place + 1)  # of the number at this place, among numbers drawn from [0, 1]
    first, second = (uniform.expect(lambda u, power=power: stats.norm.ppf(u) ** power) for power in (1, 2))
    return float(first), float(second - first**2)


def verdict_of(errors: Sequence[float], row: PublishedRow, is_fail: bool) -> str:
    """By `RULE`; empty where the paper prints nothing. `is_fail`: whether our runs fail, as the table defines it."""
    if row.test_error is None or not errors:
        return ""
    if len(errors) < FEWEST_SEEDS:
        return TOO_FEW
    if is_fail or row.test_error == FAIL:
        return AGREES if is_fail and row.test_error == FAIL else DIFFERS
    printed = printed_of(row)
    interval = true_difference(errors, printed) if printed else None
    if interval is None:
        return DIFFERS
    low, high = interval
    if low > 0 or high < 0:
        return DIFFERS
    return AGREES if row.margin is not None and -row.margin <= low and high <= row.margin else COMPATIBLE
