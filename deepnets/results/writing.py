"""Files that a user named, and that may not be writable."""

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
