"""The best learning rate over depth: runs of a sweep over model.depth and optimizer.lr, by their training losses."""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from deepnets.analysis.commands.outcome import Outcome
from deepnets.analysis.transfer import Trend, trend
from deepnets.errors import UserError
from deepnets.monitor.style import look, name_lines, new_panels
from deepnets.results.read import Run, read_runs
from deepnets.results.search import final_loss

DEPTH, RATE = "model.depth", "optimizer.lr"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is asked; there is no device, since nothing is evaluated."""
    parser.add_argument("subject", nargs="+", type=Path, metavar="FOLDER", help="run folders, or folders of them")
    parser.add_argument("--output", type=Path, help="folder for the results (default: analysis/ in the first folder)")


def run(arguments: argparse.Namespace) -> int:
    """Compare, write the files and print the findings; returns the exit code."""
    trends = _trends(read_runs(arguments.subject))
    with Outcome("transfer", arguments.output or arguments.subject[0], arguments) as outcome:
        points = [
            (name, int(depth), rate)
            for name, found in trends.items()
            for depth, rate in zip(found.depths, found.rates, strict=True)
        ]
        outcome.rows("rates", ("net", "depth", "best_rate"), points)
        slopes = [(name, found.slope, *found.interval) for name, found in trends.items()]
        outcome.rows("slopes", ("net", "slope", "low", "high"), slopes)
        outcome.figure("rates", _figure(trends))
        for name, found in trends.items():
            low, high = found.interval
            outcome.finding(
                f"{name}: the best learning rate goes with depth to the power {found.slope:.2f}, 95 % interval "
                f"{low:.2f} to {high:.2f}; {found.at_edge} of {len(found.rates)} best rates are at an end of the grid",
                slope=found.slope,
                interval=found.interval,
                at_edge=found.at_edge,
            )
    return 0


def _trends(runs: list[Run]) -> dict[str, Trend]:
    """By the row's other values, of the runs that ended."""
    losses: dict[str, dict[tuple[int, int | None], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for each in runs:
        axes, values = each.sweep.get("axes", []), each.row.split(",")
        if not {DEPTH, RATE} <= {*axes} or len(axes) != len(values):
            raise UserError(f"{each.folder}: its sweep needs the axes {DEPTH} and {RATE}, as sweep=depth_transfer has")
        if each.error is not None:
            name = ",".join(value for axis, value in zip(axes, values, strict=True) if axis not in (DEPTH, RATE))
            depth, rate = each.config["model"]["depth"], each.config["optimizer"]["lr"]
            losses[name or "all"][depth, each.seed][rate] = final_loss(each)
    if not losses:
        raise UserError("none of these runs has ended: the last epoch's training loss is compared")
    return {
        name: trend([depth for depth, _ in own], [own[place] for place in own])
        for name, found in losses.items()
        for own in [dict(sorted(found.items()))]
    }


def _figure(trends: Mapping[str, Trend]) -> Figure:
    figure, (axes,) = new_panels(3.6)
    for index, (name, found) in enumerate(trends.items()):
        axes.plot(found.depths, found.rates, "o", label=name, color=look(index)["color"])
    axes.set(xlabel="layers", ylabel="best learning rate", xscale="log", yscale="log")
    depths = sorted({int(depth) for found in trends.values() for depth in found.depths})
    axes.set_xticks(depths, map(str, depths))
    axes.set_xticks([], minor=True)
    name_lines(figure, axes)
    return figure
