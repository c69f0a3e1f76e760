"""Measures how transform gates route: biases, sparsity, selectivity, change (Srivastava et al. 2015, Fig. 2 and 3).

The command `gates` draws single blocks. The 95 % intervals come from a bootstrap: over blocks for the correlations and
for a block's sparseness and variance between classes, over images for the other numbers.
"""

import argparse

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import subject_of
from deepnets.analysis.gates import Routing, interval, routing_of
from deepnets.analysis.walk import walk_of
from deepnets.command import number
from deepnets.monitor.style import COLOURS, line, new_figure
from deepnets.system.printing import with_progress

Interval = tuple[float, float, float]  # value, low, high


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, help="use this many random training images (default: all)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    subject = subject_of(arguments)
    walk = walk_of(subject.settled())
    batches = subject.batches("train", arguments.images)
    routing = routing_of(walk, with_progress(batches, "gates"), len(subject.classes))
    with Output("highway", subject.folder, arguments) as output:
        layers = _layers(routing)
        output.table("layers", layers)
        output.figure("layers", _figure(layers))
        numbers = _numbers(routing)
        output.rows("numbers", ("measure", "value", "low", "high"), [(name, *each) for name, each in numbers.items()])
        output.finding(f"{subject.name}: {_sentence(numbers, routing)}", **numbers)


def _layers(routing: Routing) -> dict[str, np.ndarray]:
    """Return columns with a number per layer; 95 % of the blocks, or of the images, lie between low and high."""
    columns: dict[str, np.ndarray] = {"layer": np.arange(1, len(routing.bias) + 1)}
    for name, values, axis in (
        ("bias", routing.bias, 1),
        ("gate", routing.mean, 1),
        ("opened", routing.opened, 0),
        ("population_sparseness", routing.population, 0),
        ("lifetime_sparseness", routing.lifetime, 1),
        ("between_classes", routing.between, 1),
        ("change", routing.change, 0),
    ):
        columns[name] = np.nanmean(values, axis=axis)
        columns[f"{name}_low"], columns[f"{name}_high"] = np.nanquantile(values, (0.025, 0.975), axis=axis)
    return columns


def _numbers(routing: Routing) -> dict[str, Interval]:
    layer, block = np.nonzero(~np.isnan(routing.bias))
    bias, gate = routing.bias[layer, block], routing.mean[layer, block]

    def rank(x: np.ndarray, y: np.ndarray) -> float:
        return spearmanr(x, y).statistic if np.ptp(x) and np.ptp(y) else np.nan

    def mean(values: np.ndarray) -> Interval:
        return interval(np.mean, values)

    return {
        "bias_over_depth": interval(rank, layer, bias),
        "bias_and_gate": interval(rank, bias, gate),
        "opened": mean(routing.opened.mean(1)),
        "population_sparseness": mean(routing.population.mean(1)),
        "lifetime_sparseness": mean(routing.lifetime[layer, block]),
        "between_classes": mean(routing.between[layer, block]),
        "change": mean(routing.change.mean(1)),
        "first_half_of_change": mean(routing.change[:, : routing.change.shape[1] // 2].sum(1) / routing.change.sum(1)),
    }


def _sentence(numbers: dict[str, Interval], routing: Routing) -> str:
    def said(name: str, percent: bool = False) -> str:
        value, low, high = (100 * each if percent else each for each in numbers[name])
        return f"{value:.1f}% ({low:.1f} to {high:.1f})" if percent else f"{value:.2f} ({low:.2f} to {high:.2f})"

    depth, activity, layers = numbers["bias_over_depth"], numbers["bias_and_gate"], routing.change.shape[1]
    biases = (
        f"biases {_direction(depth, 'rise', 'fall', 'have no trend')} with depth, rank correlation "
        f"{said('bias_over_depth')}; blocks of lower bias are "
        f"{_direction(activity, 'less', 'more', 'neither more nor less')} active, {said('bias_and_gate')}"
    )
    return (
        f"{'biases are all equal' if np.isnan(depth[0]) else biases}; an image opens {said('opened', True)} of the "
        f"gates beyond one half, with sparseness {said('population_sparseness')} over blocks; a block's sparseness "
        f"over images is {said('lifetime_sparseness')}, and {said('between_classes', True)} of its variance lies "
        f"between classes; a layer changes the state by {said('change', True)} of the possible change, and the first "
        f"{layers // 2} of {layers} layers add up to {said('first_half_of_change', True)} of all changes"
    )


def _direction(measure: Interval, positive: str, negative: str, neither: str) -> str:
    """Choose a word: the interval lies above 0, below 0, or contains 0."""
    return positive if measure[1] > 0 else negative if measure[2] < 0 else neither


def _figure(layers: dict[str, np.ndarray]) -> Figure:
    panels = {
        "bias of the gates (95% of blocks)": ("bias",),
        "mean gate (95% of blocks)": ("gate",),
        "sparsity of an image (95% of images)": ("population_sparseness", "opened"),
        "selectivity of a block (95% of blocks)": ("lifetime_sparseness", "between_classes"),
        "change of the state (95% of images)": ("change",),
    }
    labels = {
        "population_sparseness": "sparseness over blocks",
        "opened": "share open beyond 1/2",
        "lifetime_sparseness": "sparseness over images",
        "between_classes": "variance between classes",
    }
    figure = new_figure(5, 10)
    grid = figure.subplots(2, 3, sharex=True)
    for axes, (title, names) in zip(grid.flat, panels.items(), strict=False):
        for name, color in zip(names, COLOURS, strict=False):
            band = (layers[f"{name}_low"], layers[f"{name}_high"])
            line(axes, layers[name], band=band, color=color, label=labels.get(name))
        axes.set(title=title, xlabel="layer")
        axes.locator_params(axis="x", integer=True)
        if len(names) > 1:
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend
            axes.legend(fontsize=7, loc="upper left")
    grid.flat[-1].set_visible(False)
    grid[0, -1].tick_params(labelbottom=True)  # no panel stands below it
    return figure
