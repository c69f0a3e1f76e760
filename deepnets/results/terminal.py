"""Sheets as text."""

import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deepnets.results.sheet import Sheet

PIPE_WIDTH = 200  # columns, where the output is not a terminal


def console_for(exporting: bool = False) -> Console:
    """Where people read; standard error while standard output carries an export."""
    console = Console(highlight=False, stderr=exporting)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def print_sheet(console: Console, sheet: Sheet, most: int | None = None) -> None:
    """A sheet as text; lines beyond `most` are counted."""
    shown = (sheet if most is None else sheet.cut(most)).without_empty_columns()
    table = Table(box=None, pad_edge=False)
    for name in shown.header:
        table.add_column(name, justify="right" if name in shown.numbers else "left", overflow="fold")
    for line in shown.lines:
        table.add_row(*map(Text, line))
    console.print(Text(sheet.title, style="bold"))
    if shown.lines:
        console.print(table)
    if shown.note:
        console.print(Text(shown.note, style="dim"))
    console.print()
