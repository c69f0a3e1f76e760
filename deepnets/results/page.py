"""A page: one HTML file that needs nothing else from the network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deepnets.errors import printable
from deepnets.results.figures.picture import Picture
from deepnets.results.sheet import Sheet
from deepnets.results.writing import writing
from deepnets.system.files import write_atomically

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Section:
    """A heading with sheets, each behind its title where `folded`, then notes and pictures."""

    title: str
    sheets: Sequence[Sheet] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    folded: bool = False


def write_page(file: Path, template: str, **content: Any) -> None:
    """Write the page that a template of this folder makes; whatever the texts hold is shown as text.

    Raises:
        UserError: it cannot be written there.
    """
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, printable(TEMPLATES.get_template(template).render(content)))


def write_report_page(
    file: Path, title: str, paragraphs: Sequence[str], warnings: Sequence[str], sections: Sequence[Section]
) -> None:
    """Write a page of sections, and beside it each picture as PNG and SVG; raises as `write_page`."""
    with writing(file.parent):
        for section in sections:
            for picture in section.pictures:
                picture.save(file.parent)
    sections = [replace(each, sheets=[sheet.without_empty_columns() for sheet in each.sheets]) for each in sections]
    filled = [section for section in sections if section.sheets or section.pictures]
    write_page(file, "page.html", title=title, paragraphs=paragraphs, warnings=warnings, sections=filled)
