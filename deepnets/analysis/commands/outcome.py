"""What an analysis leaves: tables as CSV, figures as PNG and SVG, both also on TensorBoard where they are pictures."""

import argparse
import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from deepnets.data.batches import EvaluationBatches
from deepnets.errors import UserError
from deepnets.results.figures.picture import Picture
from deepnets.runs.folder import RunFolder
from deepnets.style import GREY, styled

Part = TypeVar("Part")


class Outcome:
    """The files of one analysis: `<folder>/analysis/<analysis>_<name>.{csv,png,svg}`, or in --output itself.

    Each figure is also the TensorBoard image `analysis/<analysis>_<name>` of the run folder, which must not be training
    at the same time: another process that writes there is a UserError; --output leaves the run folder alone.
    """

    def __init__(self, analysis: str, folder: Path, arguments: argparse.Namespace) -> None:
        self.analysis = analysis
        self.events = folder
        self.folder = folder if arguments.output else folder / "analysis"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # TensorBoard leaves a file of events for a newer one for good: of a run that trains no more would be seen.
            if (self.events / "config.yaml").is_file():
                stack.enter_context(RunFolder(self.events).lock())
            self.folder.mkdir(parents=True, exist_ok=True)
            self.writer = stack.enter_context(closing(SummaryWriter(str(self.events))))
            stack.enter_context(styled())
            self.held = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.held.close()
        if kind is None:
            print(f"results      {RunFolder(self.folder)}/{self.analysis}_*")

    def table(self, name: str, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
        """Write the columns, of equal length, as CSV; numbers to six significant digits."""
        with (self.folder / f"{self.analysis}_{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in zip(*columns.values(), strict=True):
                writer.writerow([f"{cell:.6g}" if isinstance(cell, float | np.floating) else cell for cell in row])

    def rows(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """As `table`, row by row."""
        self.table(name, dict(zip(columns, zip(*rows, strict=True), strict=True)))

    def figure(self, name: str, figure: Figure) -> None:
        """Write the figure as PNG and SVG, and as an image for TensorBoard."""
        png, _ = Picture(f"{self.analysis}_{name}", name, figure).save(self.folder)
        with Image.open(png) as image:
            pixels = np.asarray(image.convert("RGB"))
        self.writer.add_image(f"analysis/{self.analysis}_{name}", pixels, dataformats="HWC")

    def print_line(self, finding: str) -> None:
        """Print the finding, in a line."""
        print(f"{self.analysis}: {finding}", flush=True)


def whole_numbers(option: str, text: str, least: int = 1, most: float = math.inf) -> list[int]:
    """The numbers that an option lists with commas.

    Raises:
        UserError: something is no whole number, or outside of these bounds.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and least <= int(word) <= most for word in words):
        bounds = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
        raise UserError(f"{option} {text}: must be whole numbers {bounds} with commas, e.g. {least},{least + 1}")
    return [int(word) for word in words]


def mark_stages(axes: Axes, nets: Iterable[Sequence[int]]) -> None:
    """A line where a stage begins, if all nets agree on the place; `nets` holds the stage of each unit of each net."""
    stages, *others = dict.fromkeys(map(tuple, nets))
    if others:
        return
    axes.grid(visible=False, axis="x")  # or the lines would be lost in it
    for unit in range(1, len(stages)):
        if stages[unit] != stages[unit - 1]:
            axes.axvline(unit + 0.5, color=GREY, linewidth=0.8, linestyle=":")


def progress(batches: EvaluationBatches, what: str) -> Iterable[tuple[Tensor, Tensor]]:
    """The batches, with a bar on the terminal that shows how far they are."""
    return tracked(batches, len(batches), what)


def tracked(parts: Iterable[Part], total: int, what: str) -> Iterable[Part]:
    """The parts, with that bar."""
    console = Console(stderr=True)
    return track(parts, what, total=total, console=console, transient=True, disable=not console.is_terminal)
