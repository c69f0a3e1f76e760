"""How figures look and how they are written; every colour can be told from the others by the colour-blind."""

import html
import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito 2008, without black and yellow, which vanish on one of the two backgrounds.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
# In a page these three follow its text, its lines and its background, light or dark.
INK, FAINT, PAPER = "#1b1c1d", "#c3c4c5", "#fefefe"
WIDTH = 6.4  # inches
STYLE = {
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


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and what it shows."""

    name: str
    caption: str
    figure: Figure

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{self.name}.{kind}" for kind in ("png", "svg")]
        with styled():
            self.figure.savefig(files[0], dpi=150)
        files[1].write_text(self._svg)
        return files

    def inline(self) -> str:
        """The SVG element for a page: it takes the page's width and colours, and its ids are its own."""
        svg = self._svg[self._svg.index("<svg") :]
        height, width = self.figure.get_figheight(), self.figure.get_figwidth()
        svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'style="max-width:{width * 110:.0f}px"', svg, count=1)
        label = html.escape(self.name)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" data-ratio="{height / width:.3f}" ', 1)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        own = re.sub(r"[^\w.=-]", "_", self.name)  # no ), which would end url(#...), and no quotation mark
        for address in ('id="', 'href="#', "url(#"):
            svg = svg.replace(address, f"{address}{own}-")
        return svg.replace(INK, "currentColor").replace(FAINT, "var(--line)").replace(PAPER, "none")

    @cached_property
    def _svg(self) -> str:
        text = io.StringIO()
        with styled(), matplotlib.rc_context({"svg.hashsalt": self.name}):  # the same figure is the same file
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


def styled() -> AbstractContextManager[None]:
    """While it lasts, matplotlib draws in our style: its ticks ask for it as late as when a figure is written."""
    return matplotlib.rc_context(STYLE)


def new_figure(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure, `height` in inches, and its panels from the top left; all panels share both scales."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    return figure, list(panels.flat)


def look(index: int) -> dict[str, Any]:
    """Colour and dash of the line number `index`; the colours come again with other dashes."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def name_lines(figure: Figure, axes: Axes) -> None:
    """The names of the lines above the panel, where they cover nothing; none for a single line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = max(1, min(len(labels), 100 // (max(map(len, labels)) + 8)))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns)
