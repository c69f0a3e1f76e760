"""Which learning rate is best at each depth, and how it changes with depth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Trend:
    """Best learning rates (points,) at depths (points,), and the slope of their logarithms with its 95 % interval.

    A slope of -1 halves the rate where depth doubles; 0 is transfer. `at_edge` counts rates at an end of the grid,
    which the true ones may lie beyond.
    """

    depths: np.ndarray
    rates: np.ndarray
    at_edge: int
    slope: float
    interval: tuple[float, float]


def best_rate(losses: Mapping[float, float]) -> tuple[float, bool]:
    """The learning rate of the lowest loss, and whether it is an end of the grid; NaN where no loss is finite.

    Between its two neighbours it is where the parabola through the three points, over the rate's logarithm, is lowest.
    """
    rates = sorted(losses)
    found = [losses[rate] for rate in rates]
    if not any(map(math.isfinite, found)):
        return math.nan, True
    best = int(np.argmin(found))
    if best in (0, len(rates) - 1):
        return rates[best], True
    around = slice(best - 1, best + 2)
    if not all(map(math.isfinite, found[around])):
        return rates[best], False
    a, b, _ = np.polyfit(np.log2(rates[around]) - math.log2(rates[best]), found[around], 2)
    return (rates[best] * 2 ** (-b / (2 * a)) if a > 0 else rates[best]), False


def trend(depths: Sequence[int], losses: Sequence[Mapping[float, float]]) -> Trend:
    """The trend of runs of `depths`, with several seeds of each, whose losses by learning rate are `losses`.

    The interval is Student's, of the line's residuals: it holds the spread over seeds and the line's lack of fit.
    """
    best = [best_rate(own) for own in losses]
    rates = np.array([rate for rate, _ in best])
    known = np.isfinite(rates)
    x, y = np.log2(np.array(depths)[known]), np.log2(rates[known])
    at_edge = sum(edge for _, edge in best)
    if len(x) < 3 or len(set(x)) < 2:
        return Trend(np.array(depths), rates, at_edge, math.nan, (math.nan, math.nan))
    line = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * line.stderr
    return Trend(np.array(depths), rates, at_edge, float(line.slope), (line.slope - half, line.slope + half))
