"""What figures of analyses have in common: lines over units or depths, with a band, and where stages begin."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from deepnets.monitor.style import DOTS, GREY

Values = Sequence[float] | np.ndarray


def line(axes: Axes, y: Values, x: Values | None = None, band: tuple[Values, Values] | None = None, **how: Any) -> None:
    """A line through dots at x, 1, 2, ... by default, and the band between two more lines in its colour."""
    x = np.arange(1, len(y) + 1) if x is None else x
    (drawn,) = axes.plot(x, y, **(DOTS | how))
    if band is not None:
        axes.fill_between(x, *band, color=drawn.get_color(), alpha=0.18, linewidth=0)


def mean_and_range(axes: Axes, x: Values, draws: np.ndarray, **how: Any) -> None:
    """The mean over the draws (len(x), draws), and the band from the least to the greatest."""
    line(axes, draws.mean(1), x, (draws.min(1), draws.max(1)), **how)


def mean_and_deviation(axes: Axes, draws: np.ndarray, **how: Any) -> None:
    """The mean over the draws (draws, values), and the band of a standard deviation to both sides, without dots."""
    mean, deviation = draws.mean(0), draws.std(0, ddof=1)
    line(axes, mean, np.arange(len(mean)), (mean - deviation, mean + deviation), marker="", **how)


def mark_stages(axes: Axes, nets: Iterable[Sequence[int]]) -> None:
    """A line where a stage begins, if all nets agree on the place; `nets` holds the stage of each unit of each net."""
    axes.locator_params(axis="x", integer=True)
    stages, *others = dict.fromkeys(map(tuple, nets))
    if others:
        return
    axes.grid(visible=False, axis="x")  # or the lines would be lost in it
    for unit in range(1, len(stages)):
        if stages[unit] != stages[unit - 1]:
            axes.axvline(unit + 0.5, color=GREY, linewidth=0.8, linestyle=":")
