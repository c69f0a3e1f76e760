"""Measures and draws a network's units while it trains, without any effect on the training.

Pictures are small and fast enough to be made while a network trains: uint8 arrays (H, W, 3).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from deepnets.models.shortcuts import Gated
from deepnets.models.unit import Unit
from deepnets.monitor.style import styled

PROBE_IMAGES = 32  # gates are measured on them; spread over the whole split, which may be sorted by class
# TensorBoard shows a picture about 350 pixels wide by repeating or leaving out pixels: a larger one would lose strokes
# of its letters.
SIZE, DPI = (3.4, 2.3), 100  # inches, dots per inch
DOTTED_UNITS = 60  # with more units there is no room for a dot each
SHOWN_FILTERS = 64
PIXELS_ACROSS = 320  # width of the picture of the first filters


def units_of(model: nn.Module) -> list[Unit]:
    """Return all units in order, from the images to the head; none for a net that is not made of units."""
    return [module for module in model.modules() if isinstance(module, Unit)]


def gradient_norms(model: nn.Module) -> list[float]:
    """Return ||dL/dw|| of each unit from the images to the head; w are its parameters, L the last batch's mean loss.

    Reads gradients that the last iteration left, clipped if the run clips them; none before the first one. A unit
    whose branch was dropped in that iteration (stochastic depth) has norm 0.
    """
    gradients = [[p.grad for p in unit.parameters() if p.grad is not None] for unit in units_of(model)]
    norms = [get_total_norm(of_unit) for of_unit in gradients if of_unit]
    return torch.stack(norms).tolist() if norms else []


def gate_activity(model: nn.Module, images: Tensor, precision: torch.dtype) -> list[float]:
    """Return the mean transform gate g(x), over images, channels and pixels, of each gated unit from images to head.

    Images (N, C, H, W) are as in evaluation; a net without gates has no means. See Srivastava et al. 2015, section 4.
    """
    gates = [unit.shortcut.gate for unit in units_of(model) if isinstance(unit.shortcut, Gated)]
    if not gates:
        return []
    means: list[Tensor] = []
    observers = [gate.register_forward_hook(lambda _, __, g: means.append(g.float().mean())) for gate in gates]
    training = model.training
    try:
        if training:
            model.eval()
        with (
            torch.inference_mode(),
            torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16),
        ):
            model(images)
    finally:
        for observer in observers:
            observer.remove()
        if training:
            model.train()
    return torch.stack(means).tolist()


def first_filters(model: nn.Module, shape: tuple[int, int, int]) -> Tensor | None:
    """Return the first layer's weights as pictures (n, H, W, C); None unless C is 1 or 3 and H W is more than 1.

    They are a convolution's filters or, for a net on flattened images of `shape` (C, H, W), an image per output.
    """
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    if (first := next(layers, None)) is None:
        return None
    weight = first.weight.detach()
    if isinstance(first, nn.Linear):
        if first.in_features != math.prod(shape):
            return None
        weight = weight.unflatten(1, shape)
    _, channels, height, width = weight.shape
    return weight.permute(0, 2, 3, 1) if channels in (1, 3) and height * width > 1 else None


def profile(title: str, curves: Sequence[Sequence[float]], names: tuple[str, str]) -> Figure:
    """Draw curves over units 1, 2, ... on a logarithmic axis, the earliest light, the latest dark and bold.

    `names` are the names of the first and last curve. Values that have no logarithm leave a gap.
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
        axes.yaxis.set_major_formatter("{x:g}")  # powers as formulas would take half of the drawing time
        axes.locator_params(axis="x", integer=True)
        figure.suptitle(title, fontsize=9, y=0.99)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 0.98), ncols=2, borderpad=0)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """Draw the figure and return its pixels (H, W, 3), uint8."""
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]


def tiles(filters: Tensor) -> np.ndarray:
    """Draw the first 64 filters (n, H, W, C), where C is 1 or 3; each is scaled by its largest weight, grey is 0."""
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
