"""Files that a user named, and that may not be writable."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepnets.errors import UserError


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Around what writes a file or into a folder.

    Raises:
        UserError: the system refused; names the place.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: cannot be written ({error}); name another place") from error


def check_writable(folder: Path) -> None:
    """Whether files can be written into the folder, which need not be there yet: before hours are spent on them.

    Raises:
        UserError: names the place where they cannot.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder}: cannot be written; name another place")
