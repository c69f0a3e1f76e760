"""Makes sheets, which are tables of text; prints them, or writes them as Markdown or LaTeX."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from deepnets.system.printing import as_text

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
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
        return self._only([index for index, words in enumerate(texts) if not index or words])

    def of(self, columns: Sequence[str]) -> "Sheet":
        """Return the sheet with only these columns, in the sheet's own order, and without its note."""
        return replace(self._only([index for index, name in enumerate(self.header) if name in columns]), note="")

    def _only(self, shown: Sequence[int]) -> "Sheet":
        lines = tuple(tuple(line[index] for index in shown) for line in self.lines)
        return replace(self, header=tuple(self.header[index] for index in shown), lines=lines)

    def cut(self, most: int) -> "Sheet":
        """Return the sheet with its first `most` lines; the note counts the others."""
        more = len(self.lines) - most
        if more <= 0:
            return self
        note = f"{more} more line{'s' * (more > 1)} not shown here. {self.note}".strip()
        return replace(self, lines=self.lines[:most], note=note)


def print_sheet(console: Console, sheet: Sheet, most: int | None = None) -> None:
    """Print a sheet; lines beyond `most` are only counted."""
    shown = (sheet if most is None else sheet.cut(most)).without_empty_columns()
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


def markdown_table(sheet: Sheet) -> str:
    """Return the header and the lines as a Markdown table; the title and the note are left out."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

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
        f"% {sheet.title}. {sheet.note}",
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
    """Write a difference with its sign."""
    return NOTHING if value is None else f"{value:+.2f}".replace("-", MINUS)


def short_commit(name: str | None) -> str:
    """Write a commit's first ten digits, and `-dirty` if there were uncommitted changes; None becomes `unknown`."""
    if not name:
        return "unknown"
    return name.removesuffix("-dirty")[:10] + "-dirty" * name.endswith("-dirty")


def setting_text(value: Any) -> str:
    """Write the value of a setting as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value)
