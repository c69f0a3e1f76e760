"""The figures of gradients, signals and responses over depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnets.analysis.commands.bypass import Bypass
from deepnets.analysis.gradients import first_to_last
from deepnets.analysis.signals import Signals
from deepnets.analysis.walk import Walk
from deepnets.monitor.style import COLOURS, GREY, line, mark_stages, mean_and_range, new_figure, show_array


@dataclass(frozen=True)
class State:
    """What was measured of one network at one time; arrays have an entry per unit.

    A ReLU behind the addition clipped `below` of `values` values; 0 of 0 where there is none.
    """

    run: str
    label: str
    time: str
    walk: Walk
    norms: np.ndarray
    signals: Signals
    bypass: Bypass
    below: np.ndarray
    values: np.ndarray
    responses: dict[str, float]

    @property
    def clipped(self) -> np.ndarray:
        """The share of values that is clipped; NaN where no ReLU stands."""
        return np.where(self.values > 0, self.below / np.maximum(self.values, 1), np.nan)


def units(states: Sequence[State]) -> Figure:
    """Per unit: gradient norm, forward signal (10th percentile, mean, 90th), and share that the last ReLU clips."""
    clips = any(not np.isnan(state.clipped).all() for state in states)
    panels = 2 + clips
    figure = new_figure(0.5 + 2.1 * panels, 7.5)
    axes = figure.subplots(panels, 1, sharex=True)
    labels = list(dict.fromkeys(state.label for state in states))
    for state in states:
        style: dict[str, Any] = {
            "color": COLOURS[labels.index(state.label) % len(COLOURS)],
            "linestyle": "--" if state.time == "initial" else "-",
        }
        line(axes[0], state.norms, label=f"{state.label}, {state.time}", **style)
        banded = state.time != "initial" or len(states) == len(labels)
        line(axes[1], state.signals.mean, band=(state.signals.low, state.signals.high) if banded else None, **style)
        if clips:
            line(axes[2], 100 * state.clipped, **style)
    axes[0].set(ylabel="gradient norm at its output", yscale="log")
    axes[1].set_ylabel("output: mean, 10 to 90%")
    axes[1].axhline(0, color=GREY, linewidth=0.5)
    if clips:
        axes[2].set_ylim(bottom=0)
        axes[2].set_ylabel("clipped behind addition (%)")
    axes[-1].set_xlabel("unit")
    for each in axes:
        mark_stages(each, (state.walk.stages for state in states))
    _name_lines(figure, [f"{state.label}, {state.time}" for state in states])
    return figure


def responses(by_run: Mapping[str, Sequence[float]]) -> Figure:
    """Standard deviations of layer responses, in the order of layers and by size: He et al. 2015, Fig. 7."""
    figure = new_figure(4.2, 7.5)
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    for (label, values), color in zip(by_run.items(), COLOURS * len(by_run), strict=False):
        line(upper, values, color=color, label=label)
        line(lower, sorted(values, reverse=True), color=color)
    upper.set(ylabel="deviation of the response", xlabel="layer", ylim=(0, None))
    lower.set(ylabel="deviation of the response", xlabel="layer, by size of its response")
    upper.locator_params(axis="x", integer=True)
    _name_lines(figure, list(by_run))
    return figure


def training(norms: np.ndarray) -> Figure:
    """Gradient norms (epochs + 1, units) while a run trains, and the ratio of the first to the last."""
    figure = new_figure(3, 7.5)
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    image = show_array(
        left, np.log10(norms.T), origin="lower", extent=(-0.5, len(norms) - 0.5, 0.5, norms.shape[1] + 0.5)
    )
    left.set(xlabel="epoch", ylabel="unit")
    left.locator_params(integer=True)
    right.locator_params(axis="x", integer=True)
    figure.colorbar(image, ax=left, label="log10 of the gradient norm")
    line(right, [first_to_last(row) for row in norms], np.arange(len(norms)), color=COLOURS[0])
    right.axhline(1, color=GREY, linewidth=0.7, linestyle="--")
    right.set(xlabel="epoch", ylabel="first unit's gradient over the last one's", ylim=(0, None))
    return figure


def depth(found: Mapping[str, Mapping[int, np.ndarray]]) -> Figure:
    """Gradient norms (draws, units) by ordering and number of units: bars of the deepest nets, ratios of all."""
    figure = new_figure(1 + 1.7 * len(found), 10)
    grid = figure.add_gridspec(len(found), 2, width_ratios=[2, 1])
    right = figure.add_subplot(grid[:, 1])
    deepest = max(units for by_units in found.values() for units in by_units)
    lefts: list[Axes] = []
    for row, ((name, by_units), color) in enumerate(zip(found.items(), COLOURS * len(found), strict=False)):
        shared = lefts[0] if lefts else None
        left = figure.add_subplot(grid[row, 0], sharex=shared, sharey=shared)
        lefts.append(left)
        norms = by_units[deepest]
        left.bar(np.arange(1, deepest + 1), norms.mean(0), color=color)
        left.set(title=f"{name}, {deepest} units", ylabel="gradient norm")
        ratios = np.array([[first_to_last(row) for row in norms] for norms in by_units.values()])
        mean_and_range(right, list(by_units), ratios, color=color, label=name)
    lefts[-1].set_xlabel("unit")
    right.axhline(1, color=GREY, linewidth=0.7, linestyle="--")
    counts = list(next(iter(found.values())))
    right.plot(counts, np.sqrt(counts), color=GREY, linewidth=0.7, linestyle=":", label="√units")
    right.set(xlabel="units", ylabel="first unit's gradient over the last one's", xscale="log", yscale="log")
    right.set_xticks(counts, map(str, counts))
    right.minorticks_off()
    lowest, highest = right.get_ylim()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if lowest <= tick <= highest]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    right.legend(fontsize=7)
    return figure


def _name_lines(figure: Figure, names: Sequence[str]) -> None:
    figure.legend(loc="outside upper left", fontsize=7, ncols=2 if max(map(len, names)) < 50 else 1)
