"""A figure as files and as a part of a page."""

import html
import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from deepnets.monitor.style import FAINT, INK, PAPER, show_as_text, styled
from deepnets.system.files import write_atomically


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and what it shows."""

    name: str
    caption: str
    figure: Figure

    def __post_init__(self) -> None:
        show_as_text(self.figure)

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{self.name}.{kind}" for kind in ("png", "svg")]
        with styled():
            self.figure.savefig(png := io.BytesIO(), format="png", dpi=150)
        write_atomically(files[0], png.getvalue(), durable=False)
        write_atomically(files[1], self._svg, durable=False)
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
