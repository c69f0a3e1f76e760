"""Lines on the console that cannot stop a training, and in which names are text: none moves the cursor or colours."""

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from deepnets.errors import printable

PIPE_WIDTH = 200  # columns, where the output is not a terminal: names are not broken in a log


def print_line(line: str) -> None:
    """Print a line at once; where the output is full, closed or no longer read, what follows is not printed."""
    _print(printable(line))


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
        if not isinstance(error, BrokenPipeError):
            print_error(f"standard output cannot be written ({error}); nothing more is printed")


def print_error(line: str) -> None:
    """`print_line` on the error stream."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


def console_for(exporting: bool = False) -> Console:
    """Where people read; standard error while standard output carries an export."""
    console = Console(highlight=False, stderr=exporting)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def as_text(words: str, style: str = "") -> Text:
    """Words for a table or a line of rich, whose brackets are no markup and whose escape characters are text."""
    return Text(printable(words), style=style)


def print_rich(renderable: Any) -> None:
    """`print_line` of a table."""
    console = console_for()
    with console.capture() as text:
        console.print(renderable)
    _print(text.get().rstrip("\n"))
