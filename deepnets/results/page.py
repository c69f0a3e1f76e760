"""A page: one HTML file that needs nothing else, neither network nor scripts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepnets.results.figures.style import Picture
from deepnets.results.sheet import Sheet
from deepnets.runs.folder import write_atomically


@dataclass(frozen=True)
class Section:
    """A heading with sheets, each behind its title where `folded`, then notes and pictures."""

    title: str
    sheets: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    folded: bool = False


def write_page(
    file: Path, title: str, paragraphs: Sequence[str], warnings: Sequence[str], sections: Sequence[Section]
) -> None:
    """Write the page; whatever the texts hold is shown as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [replace(each, sheets=[sheet.without_empty_columns() for sheet in each.sheets]) for each in sections]
    filled = [section for section in sections if section.sheets or section.pictures]
    content = {"title": title, "paragraphs": paragraphs, "warnings": warnings, "sections": filled}
    write_atomically(file, environment.get_template("page.html").render(content))
