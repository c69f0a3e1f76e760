"""The style of all figures, in reports, analyses and TensorBoard; colour-blind people can tell its colours apart.

It is here, and not with reports or analyses, because `monitor` draws too but may not import them.
"""

import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from deepnets.errors import printable

# Okabe and Ito 2008, without black and yellow, which vanish on one of the two backgrounds.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
# An HTML page replaces these three by the colours of its text, lines and background, light or dark.
INK, FAINT, PAPER = "#1b1c1d", "#c3c4c5", "#fefefe"
GREY = "#777777"  # reference lines, on both backgrounds
DOTS: dict[str, Any] = {
    "marker": "o",
    "markersize": 3,
    "linewidth": 1,
}  # for a line whose points are units or layers, or counts of them
WIDTH = 6.4  # inches
NAME_WIDTH = 30  # characters of a name that fit above one of three panels, or beside a bar
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}
Values = Sequence[float] | np.ndarray


def styled() -> AbstractContextManager[None]:
    """Let matplotlib draw in this style within the context.

    A figure must also be written within it, because matplotlib makes the ticks only while it writes.
    """
    return matplotlib.rc_context(STYLE)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Make an empty figure; sizes are in inches, and panels and texts drawn later do not overlap."""
    return Figure(figsize=(width, height), layout="constrained")


def new_panels(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure and its panels, listed from the top left; all panels share both scales."""
    figure = new_figure(height)
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)


def show_array(axes: Axes, array: np.ndarray, **how: Any) -> AxesImage:
    """Draw an array as coloured cells without a grid."""
    axes.grid(visible=False)
    return axes.imshow(array, aspect="auto", interpolation="nearest", **how)


def line_style(index: int) -> dict[str, Any]:
    """Return colour and dash of line number `index`; after the last colour, the colours repeat with another dash."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def wrapped(name: str) -> str:
    """Break a name after commas, into lines that fit above a panel or beside a bar."""
    spaced = printable(name).replace(",", ", ")
    return textwrap.fill(spaced, NAME_WIDTH, break_long_words=False, break_on_hyphens=False).replace(", ", ",")


def show_as_text(figure: Figure) -> None:
    """Draw names as they are: a `$` in them does not start a formula, and escape characters are printed as text.

    Only the powers of ten on a logarithmic scale are formulas.
    """
    scales = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    logarithmic = [axis for axis in scales if isinstance(axis.get_major_formatter(), LogFormatter)]
    powers = {text for axis in logarithmic for text in axis.findobj(Text)} - {axis.label for axis in logarithmic}
    for text in set(figure.findobj(Text)) - powers:
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))


def name_lines(figure: Figure, *panels: Axes) -> None:
    """Write the names of the panels' lines above the panels, where they cover nothing; a single line gets no name."""
    named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(named) > 1:
        columns = max(1, min(len(named), 100 // (max(map(len, named)) + 8)))
        figure.legend(named.values(), named.keys(), loc="outside upper left", ncols=columns)


def line(axes: Axes, y: Values, x: Values | None = None, band: tuple[Values, Values] | None = None, **how: Any) -> None:
    """Draw a line through dots and, in the same colour, the `band` between two curves; x is 1, 2, ... by default."""
    x = np.arange(1, len(y) + 1) if x is None else x
    (drawn,) = axes.plot(x, y, **(DOTS | how))
    if band is not None:
        axes.fill_between(x, *band, color=drawn.get_color(), alpha=0.18, linewidth=0)


def mean_and_range(axes: Axes, x: Values, draws: np.ndarray, **how: Any) -> None:
    """Draw the mean of the samples `draws` (len(x), samples), and a band from the least to the greatest of them."""
    line(axes, draws.mean(1), x, (draws.min(1), draws.max(1)), **how)


def mean_and_deviation(axes: Axes, draws: np.ndarray, **how: Any) -> None:
    """Draw the mean of the samples `draws` (samples, values) without dots, and one standard deviation to both sides."""
    mean, deviation = draws.mean(0), draws.std(0, ddof=1)
    line(axes, mean, np.arange(len(mean)), (mean - deviation, mean + deviation), marker="", **how)


def from_zero(axes: Axes) -> None:
    """Let the vertical axis begin at 0 and end above all that was drawn so far."""
    axes.set_ylim(0, 1.05 * axes.dataLim.y1 if axes.dataLim.y1 > 0 else 1)


def mark_stages(axes: Axes, nets: Iterable[Sequence[int]]) -> None:
    """Draw a line where each stage ends and the next begins; draw none if the nets have different stages.

    `nets` holds the stage of each unit of each net.
    """
    axes.locator_params(axis="x", integer=True)
    stages, *others = dict.fromkeys(map(tuple, nets))
    if others:
        return
    axes.grid(visible=False, axis="x")  # it would hide these lines
    for unit in range(1, len(stages)):
        if stages[unit] != stages[unit - 1]:
            axes.axvline(unit + 0.5, color=GREY, linewidth=0.8, linestyle=":")
