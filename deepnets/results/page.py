"""The page of a report, which shows sheets and pictures: one HTML file, which loads nothing from the network."""

import html
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from deepnets.errors import printable
from deepnets.monitor.style import FAINT, INK, PAPER, show_as_text, styled
from deepnets.system.files import write_atomically, writing
from deepnets.system.printing import Sheet

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PICTURE_KINDS = ("png", "svg")
MARK = '<meta name="generator" content="deepnets">'  # in the head of page.html


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its files, and a caption that says what it shows."""

    name: str
    caption: str
    figure: Figure

    def __post_init__(self) -> None:
        show_as_text(self.figure)

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{self.name}.{kind}" for kind in PICTURE_KINDS]
        with styled():
            self.figure.savefig(png := io.BytesIO(), format="png", dpi=150)
        write_atomically(files[0], png.getvalue(), durable=False)
        write_atomically(files[1], self._drawn("path"), durable=False)
        return files

    def inline(self) -> str:
        """Return an SVG element that takes the page's width and colours; its ids are unique on the page."""
        svg = self._drawn("none")  # text stays text, because drawn letters would make up half of the page
        svg = svg[svg.index("<svg") :]
        height, width = self.figure.get_figheight(), self.figure.get_figwidth()
        svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'style="max-width:{width * 110:.0f}px"', svg, count=1)
        label = html.escape(self.name)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" data-ratio="{height / width:.3f}" ', 1)
        svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
        svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing points to a group
        prefix = re.sub(r"[^\w.=-]", "_", self.name)  # no ), which would end url(#...), and no quotation mark
        for address in ('id="', 'href="#', "url(#"):
            svg = svg.replace(address, f"{address}{prefix}-")
        svg = _with_shared_lines(re.sub(r'\s*\n\s*(?=[<"A-Zz])', "", svg), prefix)
        svg = re.sub(r"(?<=\d\.\d\d)\d+", "", svg)  # hundredths of a point are enough
        return _with_classes(svg.replace(INK, "currentColor").replace(FAINT, "var(--line)").replace(PAPER, "none"))

    def _drawn(self, letters: str) -> str:
        text = io.StringIO()  # with the salt below, equal figures give equal files
        with styled(), matplotlib.rc_context({"svg.hashsalt": self.name, "svg.fonttype": letters}):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


def _with_shared_lines(svg: str, prefix: str) -> str:
    """Write long lines relative to their first point, in tenths of a point, and those of equal form only once."""
    forms: dict[str, str] = {}  # text of a line's element, without its place: its id
    long_line = re.compile(
        r'<path d="M ([\d.]+) ([\d.]+)((?:[ML] [-\d.]+ [-\d.]+){8,})"( clip-path="[^"]*")( style="[^"]*")/>'
    )

    def placed(line: re.Match[str]) -> str:
        x, y, further, clip, style = line.groups()
        drawn, last = "", (0, 0)
        for kind, *place in re.findall(r"([ML]) (\S+?) ([-\d.]+)", further):
            here = round(10 * (float(place[0]) - float(x))), round(10 * (float(place[1]) - float(y)))
            drawn += f"{kind.lower()}{(here[0] - last[0]) / 10:g},{(here[1] - last[1]) / 10:g}".replace(",-", "-")
            last = here
        name = forms.setdefault(f'd="M0 0{drawn}"{style}', f"{prefix}-line{len(forms)}")
        return f'<g{clip}><use xlink:href="#{name}" x="{x}" y="{y}"/></g>'

    svg = long_line.sub(placed, svg)
    lines = "".join(f'<path id="{name}" {form}/>' for form, name in forms.items())
    return svg.replace("<defs>", f"<defs>{lines}", 1)


def _with_classes(svg: str) -> str:
    """Write each style of an SVG element once, as a class that the elements name: a third of a figure is styles."""
    head, body = svg.split(">", 1)
    classes = {style: f"s{zlib.crc32(style.encode()):x}" for style in re.findall(r' style="([^"]*)"', body)}
    for style, name in classes.items():
        body = body.replace(f' style="{style}"', f' class="{name}"')
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    return f"{head}><style>{rules}</style>{body}"


@dataclass(frozen=True)
class Section:
    """A heading with sheets, then notes and pictures; if `folded`, a sheet opens with a click on its title."""

    title: str
    sheets: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    folded: bool = False


def write_page(file: Path, template: str, **content: Any) -> None:
    """Fill in a template of this folder and write the page; markup in the texts is shown as text.

    Raises:
        UserError: the page cannot be written there.
    """
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, printable(TEMPLATES.get_template(template).render(content)))


def _pictures_on(file: Path) -> set[str]:
    """Return the names of the pictures on a page that an earlier report wrote; none if another program wrote it."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return set()
    names = map(html.unescape, re.findall(r'<figure id="([^"]+)">', text)) if MARK in text else ()
    return {name for name in names if name == Path(name).name}


def write_report_page(
    file: Path, title: str, paragraphs: Sequence[str], warnings: Sequence[str], sections: Sequence[Section]
) -> None:
    """Write a page of sections, and beside it each picture as PNG and SVG; raises what `write_page` raises.

    If the page replaces an earlier one, the files of pictures that only the earlier page has are removed.
    """
    with writing(file.parent):
        before = _pictures_on(file)
        for section in sections:
            for picture in section.pictures:
                picture.save(file.parent)
    sections = [replace(each, sheets=[sheet.without_empty_columns() for sheet in each.sheets]) for each in sections]
    filled = [section for section in sections if section.sheets or section.pictures or section.notes]
    write_page(file, "page.html", title=title, paragraphs=paragraphs, warnings=warnings, sections=filled)
    with writing(file.parent):
        for name in before - {picture.name for section in sections for picture in section.pictures}:
            for kind in PICTURE_KINDS:
                (file.parent / f"{name}.{kind}").unlink(missing_ok=True)
