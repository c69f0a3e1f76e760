"""Prints without ever stopping a training; prints names as text, so that none moves the cursor or sets a colour.

A sheet is a table of text, which is printed, or written as Markdown or LaTeX.
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import length_hint
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from deepnets.errors import printable

Part = TypeVar("Part")

PATIENCE_SECONDS = 2.0  # before a loop shows its progress
LINE_SECONDS = 60.0  # between two lines about progress in a log
PIPE_WIDTH = 200  # columns if the output is not a terminal, so that names in a log stay on one line
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[*"},  # after \\\\, both are its arguments
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    "∞": r"$\infty$",
    "<": "$<$",
    ">": "$>$",
}


def print_line(line: str) -> None:
    """Print a line at once; once the output is full, closed or without a reader, print nothing more."""
    _print(printable(line))


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
        if not isinstance(error, BrokenPipeError):
            print_error(f"standard output cannot be written ({error}); nothing more is printed")


def print_error(line: str) -> None:
    """Print a line on the error stream, as `print_line` does."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


def with_progress(parts: Iterable[Part], title: str, total: int | None = None) -> Iterator[Part]:
    """Yield the parts; after two seconds, a bar on stderr (in a log, a line each minute) shows how many are done.

    Parts without a length need their number, `total`.
    """
    begun = time.monotonic()
    total = length_hint(parts) if total is None else total
    due = begun + PATIENCE_SECONDS
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total, visible=False)
        for done, part in enumerate(parts):
            progress.update(task, completed=done, visible=time.monotonic() - begun > PATIENCE_SECONDS)
            if progress.disable and time.monotonic() > due:
                print_error(f"{title}: {done:,} of {total:,}")
                due = time.monotonic() + LINE_SECONDS
            yield part
        if due > begun + PATIENCE_SECONDS:
            print_error(f"{title}: {total:,} of {total:,}")


def console_for(exporting: bool = False) -> Console:
    """Return the console for people: standard output, or standard error if an export goes to standard output."""
    console = Console(highlight=False, stderr=exporting)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def as_text(text: str, style: str = "") -> Text:
    """Make text for rich in which brackets are not markup and escape characters are shown."""
    return Text(printable(text), style=style)


def print_rich(renderable: Any) -> None:
    """Print a table or another object of rich, as `print_line` prints a line."""
    console = console_for()
    with console.capture() as text:
        console.print(renderable)
    _print(text.get().rstrip("\n"))


@dataclass(frozen=True)
class Sheet:
    """A table of text. `numbers` names the columns of numbers, which are aligned at the right."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    note: str = ""

    def without_empty_columns(self) -> "Sheet":
        """Return the sheet without the columns that are empty in every line; the first column always stays."""
        texts = [{line[index] for line in self.lines} - {"", NOTHING} for index in range(len(self.header))]
        return self._only([index for index, filled in enumerate(texts) if not index or filled])

    def of(self, columns: Sequence[str]) -> "Sheet":
        """Return the sheet with only these columns, in the sheet's own order, and without its note."""
        return replace(self._only([index for index, name in enumerate(self.header) if name in columns]), note="")

    def _only(self, shown: Sequence[int]) -> "Sheet":
        lines = tuple(tuple(line[index] for index in shown) for line in self.lines)
        return replace(self, header=tuple(self.header[index] for index in shown), lines=lines)

    def cut(self, most: int, elsewhere: str = "not shown here") -> "Sheet":
        """Return the sheet with its first `most` lines; the note counts the others and says where they are."""
        more = len(self.lines) - most
        if more <= 0:
            return self
        note = f"{more} more line{'s' * (more > 1)} {elsewhere}. {self.note}".strip()
        return replace(self, lines=self.lines[:most], note=note)


def print_sheet(console: Console, sheet: Sheet) -> None:
    """Print a sheet without its empty columns."""
    shown = sheet.without_empty_columns()
    table = Table(box=None, pad_edge=False)
    for name in shown.header:
        table.add_column(as_text(name), justify="right" if name in shown.numbers else "left", overflow="fold")
    for line in shown.lines:
        table.add_row(*map(as_text, line))
    console.print(as_text(sheet.title, style="bold"))
    if shown.lines:
        console.print(table)
    if shown.note:
        console.print(as_text(shown.note, style="dim"))
    console.print()


def markdown_text(text: str) -> str:
    """Return the text in a line of Markdown in which no name is an element of HTML, an image or a link."""
    text = re.sub("<(?=[A-Za-z/!?])", "&lt;", " ".join(printable(text).split("\n")))
    return text.replace("](", "]&#40;")


def markdown_cell(text: str) -> str:
    """Return the text as a cell of a Markdown table."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", markdown_text(text))


def markdown_table(sheet: Sheet) -> str:
    """Return the header and the lines as a Markdown table; the title and the note are left out."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(markdown_cell, cells)) + " |"

    rule = ["--:" if name in sheet.numbers else ":--" for name in sheet.header]
    return "\n".join([line(sheet.header), line(rule), *map(line, sheet.lines)])


def latex_table(sheet: Sheet) -> str:
    """Return a LaTeX tabular with booktabs' rules; a comment above it holds the title and the note."""

    def line(cells: Sequence[str]) -> str:
        return (
            "  " + " & ".join(re.sub(".", lambda match: LATEX.get(match[0], match[0]), cell) for cell in cells) + r" \\"
        )

    columns = "".join("r" if name in sheet.numbers else "l" for name in sheet.header)
    lines = [
        "% " + " ".join(f"{sheet.title}. {sheet.note}".splitlines()),
        rf"\begin{{tabular}}{{{columns}}}",
        r"  \toprule",
        line(sheet.header),
        r"  \midrule",
        *map(line, sheet.lines),
        r"  \bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def percent(value: float | None) -> str:
    """Write a number with two decimals, None as a dash, and infinity, which stands for a divergence, as `∞`."""
    return NOTHING if value is None else "∞" if math.isinf(value) else f"{value:.2f}"


def signed(value: float | None) -> str:
    """Write a difference with its sign; a missing or undefined one becomes `NOTHING`."""
    return NOTHING if value is None or math.isnan(value) else f"{value:+.2f}".replace("-", MINUS)


def short_commit(name: str | None) -> str:
    """Write a commit's first ten digits, and `-dirty` if there were uncommitted changes; None becomes `unknown`."""
    if not name:
        return "unknown"
    return name.removesuffix("-dirty")[:10] + "-dirty" * name.endswith("-dirty")


def setting_text(value: Any) -> str:
    """Write the value of a setting as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value)
