"""Finds the best learning rate at each depth by the training losses of a sweep over model.depth and optimizer.lr."""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import add_folders
from deepnets.errors import UserError
from deepnets.monitor.style import line_style, name_lines, new_panels
from deepnets.results.cell import final_loss
from deepnets.results.read import Run, read_runs

FEWEST_POINTS = 3  # a line goes through fewer best rates exactly, which says nothing about its error

DEPTH, RATE = "model.depth", "optimizer.lr"
add_options = add_folders


def run(arguments: argparse.Namespace) -> None:
    """Compare, write the files and print the findings."""
    trends = _trends(read_runs(arguments.subject))
    with Output("transfer", arguments.output or arguments.subject[0], arguments) as output:
        points = [
            (name, int(depth), rate)
            for name, trend in trends.items()
            for depth, rate in zip(trend.depths, trend.rates, strict=True)
        ]
        output.rows("rates", ("net", "depth", "best_rate"), points)
        slopes = [(name, trend.slope, *trend.interval) for name, trend in trends.items()]
        output.rows("slopes", ("net", "slope", "low", "high"), slopes)
        output.figure("rates", _figure(trends))
        for name, trend in trends.items():
            low, high = trend.interval
            sentence = f"goes with depth to the power {trend.slope:.2f}, 95 % interval {low:.2f} to {high:.2f}"
            if math.isnan(trend.slope):
                sentence = f"has no slope yet, which takes {FEWEST_POINTS} best rates, at two depths or more"
            elif math.isnan(low):
                sentence = "is the same rate of the grid at every depth, which gives no interval of a slope"
            output.finding(
                f"{name}: the best learning rate {sentence}; "
                f"{trend.at_edge} of {len(trend.rates)} best rates are at an end of the grid",
                slope=trend.slope,
                interval=trend.interval,
                at_edge=trend.at_edge,
            )


@dataclass(frozen=True)
class Trend:
    """Best learning rates (points,) at depths (points,), and the slope of their logarithms with its 95 % interval.

    If the slope is -1, the rate halves as the depth doubles; if it is 0, the rate transfers. `at_edge` counts the rates
    at an end of the grid, where the true best rate may lie beyond it, and those that are NaN. Slope and interval are
    NaN if fewer than three rates are finite, or if all finite ones are at one depth. The interval is NaN also if all
    best rates are equal, since then the grid hides their spread.
    """

    depths: np.ndarray
    rates: np.ndarray
    at_edge: int
    slope: float
    interval: tuple[float, float]


def _trends(runs: list[Run]) -> dict[str, Trend]:
    """Return the trend of the runs that ended, for each combination of the sweep's other axes."""
    losses: dict[str, dict[tuple[int, int | None], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for each in runs:
        axes, values = each.sweep.get("axes", []), each.row.split(",")
        if not {DEPTH, RATE} <= {*axes} or len(axes) != len(values):
            raise UserError(f"{each.folder}: its sweep needs the axes {DEPTH} and {RATE}, as sweep=depth_transfer has")
        if each.error is not None:
            name = ",".join(value for axis, value in zip(axes, values, strict=True) if axis not in (DEPTH, RATE))
            depth, rate = each.config["model"]["depth"], each.config["optimizer"]["lr"]
            by_rate = losses[name or "all"][depth, each.seed]
            if rate in by_rate:
                raise UserError(
                    f"{each.folder}: another of these runs has this net, depth, seed and learning rate; "
                    "compare the runs of one protocol at a time"
                )
            by_rate[rate] = final_loss(each)
    if not losses:
        raise UserError("none of these runs has ended: the last epoch's training loss is compared")
    return {
        name: trend_of([depth for (depth, _), _ in ordered], [by_rate for _, by_rate in ordered])
        for name, by_run in losses.items()
        for ordered in [sorted(by_run.items())]
    }


def _figure(trends: Mapping[str, Trend]) -> Figure:
    figure, (axes,) = new_panels(3.6)
    for index, (name, trend) in enumerate(trends.items()):
        axes.plot(trend.depths, trend.rates, "o", label=name, color=line_style(index)["color"])
    axes.set(xlabel="layers", ylabel="best learning rate", xscale="log", yscale="log")
    depths = sorted({int(depth) for trend in trends.values() for depth in trend.depths})
    axes.set_xticks(depths, map(str, depths))
    axes.set_xticks([], minor=True)
    name_lines(figure, axes)
    return figure


def best_rate(losses: Mapping[float, float]) -> tuple[float, bool]:
    """Return the learning rate of the lowest loss, and whether it is an end of the grid.

    If no loss is finite, the rate is NaN and counts as an end. If the lowest loss has a finite neighbour on both sides,
    the rate is the minimum of the parabola through the three points, over the logarithm of the rate.
    """
    rates = sorted(losses)
    by_rate = [losses[rate] for rate in rates]
    if not any(map(math.isfinite, by_rate)):
        return math.nan, True
    best = int(np.argmin(by_rate))
    if best in (0, len(rates) - 1):
        return rates[best], True
    three = slice(best - 1, best + 2)
    if not all(map(math.isfinite, by_rate[three])):
        return rates[best], False
    a, b, _ = np.polyfit(np.log2(rates[three]) - math.log2(rates[best]), by_rate[three], 2)
    return (rates[best] * 2 ** (-b / (2 * a)) if a > 0 else rates[best]), False


def trend_of(depths: Sequence[int], losses: Sequence[Mapping[float, float]]) -> Trend:
    """Fit the trend of the best rates; point i is a depth with one seed's losses by learning rate.

    The interval is Student's, from the residuals of the line: they contain both the spread over seeds and the misfit.
    """
    best = [best_rate(by_rate) for by_rate in losses]
    rates = np.array([rate for rate, _ in best])
    is_finite = np.isfinite(rates)
    x, y = np.log2(np.array(depths)[is_finite]), np.log2(rates[is_finite])
    at_edge = sum(edge for _, edge in best)
    if len(x) < FEWEST_POINTS or len(set(x)) < 2:
        return Trend(np.array(depths), rates, at_edge, math.nan, (math.nan, math.nan))
    if np.ptp(y) == 0:  # the grid is too coarse to show a spread
        return Trend(np.array(depths), rates, at_edge, 0.0, (math.nan, math.nan))
    line = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * line.stderr
    return Trend(np.array(depths), rates, at_edge, float(line.slope), (line.slope - half, line.slope + half))
