"""The page of the showcase: gradients and signals of many measured networks, chosen by knobs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from deepnets.results.page import write_page

DIGITS = 3  # significant: more than a bar shows


@dataclass(frozen=True)
class Bars:
    """What one network shows, a number per unit: gradient norm; 10th percentile, mean and 90th of the signal.

    Numbers that are not finite are those of a network that diverged.
    """

    gradient: Sequence[float]
    low: Sequence[float]
    mean: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Design:
    """An ordering: its name, the layers of a branch, and those behind the addition.

    `command` measures one of its networks again, with {depth}, {ordering} and {shortcut} to fill in.
    """

    name: str
    branch: Sequence[str]
    after: Sequence[str]
    command: str


@dataclass(frozen=True)
class Showcase:
    """Measured networks by (ordering, depth in units, shortcut); a shortcut is the pair (scale, gate bias or None)."""

    about: str
    designs: Sequence[Design]
    depths: Sequence[int]
    scales: Sequence[float]
    biases: Sequence[float]
    bars: Mapping[tuple[str, int, tuple[float, float | None]], Bars]


def shortcuts_of(scales: Sequence[float], biases: Sequence[float]) -> list[tuple[float, float | None]]:
    """All shortcuts of the knobs, in their order: constant scales, then gates."""
    return [*((scale, None) for scale in scales), *((1.0, bias) for bias in biases)]


def options_of(scale: float, bias: float | None) -> str:
    """The options of scripts/train.py that choose this shortcut."""
    if bias is None:
        return f"model/shortcut=scaled_0.5_1 model.shortcut.shortcut_scale={scale:g}"
    return f"model/shortcut=exclusive_gating_b6 model.shortcut.bias={bias:g}"


def write_showcase(file: Path, showcase: Showcase) -> None:
    """Write the page: one HTML file that asks for nothing else.

    Raises:
        UserError: it cannot be written there.
    """
    shortcuts = shortcuts_of(showcase.scales, showcase.biases)
    data = {
        "designs": [vars(design) for design in showcase.designs],
        "depths": showcase.depths,
        "shortcuts": [options_of(*shortcut) for shortcut in shortcuts],
        "scales": showcase.scales,
        "biases": showcase.biases,
        "bars": [
            [
                [_short(showcase.bars[design.name, depth, shortcut]) for shortcut in shortcuts]
                for depth in showcase.depths
            ]
            for design in showcase.designs
        ],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    write_page(file, "showcase.html", about=showcase.about, data=text)


def _short(bars: Bars) -> list[list[float | None]]:
    """The numbers as they are shown; None, which the page calls diverged, where one is not finite."""
    return [
        [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in values]
        for values in vars(bars).values()
    ]
