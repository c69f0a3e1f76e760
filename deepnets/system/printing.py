"""Prints without ever stopping a training; prints names as text, so that none moves the cursor or sets a colour."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from deepnets.errors import printable

Part = TypeVar("Part")

PATIENCE_SECONDS = 2.0  # before a loop shows its progress
LINE_SECONDS = 60.0  # between two lines about progress in a log
PIPE_WIDTH = 200  # columns if the output is not a terminal, so that names in a log stay on one line


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
