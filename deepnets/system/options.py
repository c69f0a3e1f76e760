"""Types of options: what argparse hands on, or the reason why it does not; options that commands share; places."""

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepnets.errors import UserError

MOST = 10**9


def number(text: str, least: int = -MOST) -> int:
    """A whole number that no library's integers overflow at."""
    if not re.fullmatch(r"-?\d{1,10}", text) or not least <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, {least} or more, {MOST} at most")
    return int(text)


def whole(text: str) -> int:
    """One of 0 or more."""
    return number(text, 0)


def count(text: str) -> int:
    """One of 1 or more."""
    return number(text, 1)


def counts(text: str) -> list[int]:
    """Some of them, with commas."""
    return [count(part) for part in text.split(",")]


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of names with commas, all of them `known`."""

    def names(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{','.join(unknown)}: choose from {', '.join(known)}")
        return text.split(",")

    return names


def add_weights_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that loads the weights of a run."""
    parser.add_argument(
        "--trust", "--project", action="append", default=[], metavar="TARGET", help="a class of yours, or a project"
    )
    parser.add_argument(
        "--allow-previous", action="store_true", help="take weights of an earlier iteration than a finished run's last"
    )


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Wrap a block that writes to a place that the user named.

    Raises:
        UserError: the system refused; names the place.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: cannot be written ({error}); name another place") from error


def check_writable(folder: Path) -> None:
    """Check that files can be written into a folder, which need not exist yet, before hours are spent on them.

    Raises:
        UserError: they cannot; names the folder.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder}: cannot be written; name another place")
