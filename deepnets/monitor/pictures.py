"""Pictures small and fast enough to be made while a net trains: uint8 arrays (H, W, 3)."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

# Drawn at twice the size, then halved. TensorBoard shows a picture about 350 pixels wide by repeating or leaving out
# pixels: a larger one would lose strokes of its letters.
WIDTH, HEIGHT = 640, 432
LEFT, RIGHT, TOP, BOTTOM = 92, 16, 96, 74  # margins of the plot
SMALL, LARGE = 24, 26  # pixels of the letters
TEXT, GRID, PAPER = (40, 40, 40), (224, 224, 224), (255, 255, 255)
FIRST, LAST = np.array((158, 202, 225)), np.array((8, 69, 148))  # earliest to latest curve, light to dark blue
THIN, BOLD = 3, 6  # pixels of a line
DOTTED_UNITS = 60  # more have no room for a dot each
SHOWN_FILTERS = 64
PIXELS_ACROSS = 320  # of the picture of the filters


def profile(title: str, curves: Sequence[Sequence[float]], names: tuple[str, str]) -> np.ndarray:
    """Curves over units 1, 2, ... on a logarithmic axis, the earliest light, the latest dark and bold.

    `names` are those of the first and last curve. Values that have no logarithm leave a gap.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    exponents = [math.log10(value) for curve in curves for value in curve if 0 < value < math.inf]
    low, high = math.floor(min(exponents, default=-1)), math.ceil(max(exponents, default=0))
    high = max(high, low + 1)
    units = max(map(len, curves))

    def across(unit: float) -> float:
        return LEFT + (unit - 0.5) / units * (WIDTH - LEFT - RIGHT)

    def up(exponent: float) -> float:
        return HEIGHT - BOTTOM - (exponent - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    for exponent in range(low, high + 1, math.ceil((high - low) / 6)):
        draw.line([(LEFT, up(exponent)), (WIDTH - RIGHT, up(exponent))], fill=GRID, width=2)
        draw.text((LEFT - 10, up(exponent)), f"{10.0**exponent:g}", TEXT, _font(SMALL), anchor="rm")
    for unit in _ticks(units):
        draw.text((across(unit), HEIGHT - BOTTOM + 8), str(unit), TEXT, _font(SMALL), anchor="ma")
    draw.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8), "unit, from the images to the head", TEXT, _font(SMALL), "md")
    draw.text((WIDTH / 2, 8), title, TEXT, _font(LARGE), anchor="ma")
    for number, curve in enumerate(curves):
        latest = number == len(curves) - 1
        color = tuple(np.linspace(LAST, FIRST, len(curves))[-1 - number].astype(int).tolist())
        points = [(across(unit), up(math.log10(v)) if 0 < v < math.inf else None) for unit, v in enumerate(curve, 1)]
        _draw_curve(draw, points, color, width=BOLD if latest else THIN)
    _draw_key(draw, names, single=len(curves) == 1)
    return np.asarray(image.reduce(2))


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


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _ticks(units: int) -> list[int]:
    """1 and round numbers up to `units`, about six."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if units / step <= 7)
    return sorted({1, *range(step, units + 1, step)} - ({2} if step > 2 else set()))


def _draw_curve(
    draw: ImageDraw.ImageDraw, points: list[tuple[float, float | None]], color: tuple[int, ...], width: int
) -> None:
    for (x, y), (next_x, next_y) in pairwise(points):
        if y is not None and next_y is not None:
            draw.line([(x, y), (next_x, next_y)], fill=color, width=width)
    if width == BOLD and len(points) <= DOTTED_UNITS:
        for x, y in points:
            if y is not None:
                draw.circle((x, y), width, fill=color)


def _draw_key(draw: ImageDraw.ImageDraw, names: tuple[str, str], single: bool) -> None:
    shown = [(names[1], LAST)] if single else [(names[0], FIRST), (names[1], LAST)]
    x, y = float(LEFT), TOP - 28
    for name, color in shown:
        draw.line([(x, y), (x + 32, y)], fill=tuple(color.tolist()), width=BOLD)
        draw.text((x + 42, y), name, TEXT, _font(SMALL), anchor="lm")
        x += 80 + draw.textlength(name, _font(SMALL))
