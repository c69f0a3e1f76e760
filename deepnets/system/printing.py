"""Printing that cannot stop a training; names are printed as text, so none moves the cursor or changes the colour."""

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from deepnets.errors import printable

PIPE_WIDTH = 200  # columns if the output is not a terminal, so that names are not broken in a log


def print_line(line: str) -> None:
    """Print a line at once; if the output is full, closed or no longer read, nothing more is printed."""
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


def console_for(exporting: bool = False) -> Console:
    """The console that people read: standard output, or standard error while standard output carries an export."""
    console = Console(highlight=False, stderr=exporting)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def as_text(words: str, style: str = "") -> Text:
    """Text for a table or a line of rich, whose brackets are not markup and whose escape characters are shown."""
    return Text(printable(words), style=style)


def print_rich(renderable: Any) -> None:
    """Print a table or another object of rich, as `print_line` prints a line."""
    console = console_for()
    with console.capture() as text:
        console.print(renderable)
    _print(text.get().rstrip("\n"))
