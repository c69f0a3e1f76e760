"""Pictures small and fast enough to be made while a net trains: uint8 arrays (H, W, 3)."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

from deepnets.monitor.style import styled

# TensorBoard shows a picture about 350 pixels wide by repeating or leaving out pixels: a larger one would lose strokes
# of its letters.
SIZE, DPI = (3.4, 2.3), 100  # inches, dots per inch
DOTTED_UNITS = 60  # more have no room for a dot each
SHOWN_FILTERS = 64
PIXELS_ACROSS = 320  # of the picture of the filters


def profile(title: str, curves: Sequence[Sequence[float]], names: tuple[str, str]) -> Figure:
    """Curves over units 1, 2, ... on a logarithmic axis, the earliest light, the latest dark and bold.

    `names` are those of the first and last curve. Values that have no logarithm leave a gap.
    """
    with styled():
        figure = Figure(figsize=SIZE, dpi=DPI)
        axes = figure.subplots(gridspec_kw={"left": 0.18, "right": 0.97, "bottom": 0.19, "top": 0.8})
        shades = colormaps["Blues"](np.linspace(0.4, 1, len(curves)) if len(curves) > 1 else [1.0])
        for index, (curve, colour) in enumerate(zip(curves, shades, strict=True)):
            values = [value if 0 < value < math.inf else math.nan for value in curve]
            is_last = index == len(curves) - 1
            label = names[1] if is_last else names[0] if index == 0 else None
            marker = "." if is_last and len(curve) <= DOTTED_UNITS else ""
            width = 2 if is_last else 1
            axes.plot(range(1, len(curve) + 1), values, color=colour, linewidth=width, marker=marker, label=label)
        values = [value for curve in curves for value in curve if 0 < value < math.inf] or [1.0]
        decades = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values) * 1.01))
        axes.set(yscale="log", ylim=decades, xlabel="unit, from the images to the head")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")  # a power as a formula takes half of the time
        axes.locator_params(axis="x", integer=True)
        figure.suptitle(title, fontsize=9, y=0.99)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, borderpad=0)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """The figure as it is shown."""
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]


def tiles(filters: Tensor) -> np.ndarray:
    """The first 64 filters (n, H, W, C), C 1 or 3, each scaled to its largest weight; grey is 0."""
    weights = filters[:SHOWN_FILTERS].float().cpu().numpy()
    count, height, width, channels = weights.shape
    largest = np.abs(weights).max((1, 2, 3), keepdims=True)
    pixels = (127.5 * (1 + weights / np.maximum(largest, 1e-30))).astype(np.uint8)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)) if channels == 1 else pixels
    columns = math.ceil(math.sqrt(count * 1.6))
    scale = max(1, PIXELS_ACROSS // columns // width)
    rows, gap = math.ceil(count / columns), 4
    down, across = height * scale + gap, width * scale + gap
    picture = np.full((rows * down + gap, columns * across + gap, 3), 255, np.uint8)
    for index, tile in enumerate(pixels.repeat(scale, 1).repeat(scale, 2)):
        top, left = gap + index // columns * down, gap + index % columns * across
        picture[top : top + height * scale, left : left + width * scale] = tile
    return picture
