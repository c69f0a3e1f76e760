"""Writes files so that a crash leaves each whole or absent, and writes and reads them without following links."""

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from deepnets.errors import UserError

LONGEST = 10_000_000  # bytes of a JSON file; a result has a few thousand
BYTE_CODE = "bytecode"  # in the user's cache: byte code of copied sources
LAST_BYTES = 100_000  # read from the end of a log
LONGEST_METRICS = 10_000_000  # bytes of a metrics.csv, enough for a hundred thousand epochs


@contextmanager
def fresh(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a new file beside `path`, for the caller to rename; if `durable`, it is on disk when the block ends.

    An older file of the new file's name is removed first: a killed process may have left it, or it may be a link.
    """
    new = new_name(path)
    new.unlink(missing_ok=True)
    try:
        with new.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def new_name(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def write_atomically(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace the file in one step, even while other processes replace it too; a kill leaves the old or the new file.

    If `durable`, a power failure also leaves one of them; this takes some milliseconds.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with fresh(draft, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    try:
        new_name(draft).replace(path)
    except BaseException:
        new_name(draft).unlink(missing_ok=True)
        raise
    if durable:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Write the folder's list of files to disk, so that a power failure undoes no creation, renaming or removal."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, durably."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        flush_folder(each.parent)


def make_own_folder(folder: Path) -> None:
    """Create a folder in a run's or a sweep's folder; use this if deepnets chose its name, not the user.

    Raises:
        OSError: the folder is a link, which is not followed, or cannot be created.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a link, and is not followed; put a folder in its place", str(folder))
    folder.mkdir(parents=True, exist_ok=True)


def write_folder(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Write a new folder with these contents by path; it appears as a whole and durably, and the first writer wins.

    Raises:
        OSError: the folder cannot be written, or the folder above it is a link.
    """
    make_own_folder(folder.parent)
    new = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.new")
    new.mkdir()
    for place, content in contents.items():
        (new / place).parent.mkdir(parents=True, exist_ok=True)
        with (new / place).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    for each in {new, *(parent for place in contents for parent in (new / place).parents if new in parent.parents)}:
        flush_folder(each)
    with suppress(OSError):  # another process was faster; the contents are the same
        new.rename(folder)
        flush_folder(folder.parent)
    shutil.rmtree(new, ignore_errors=True)


def cache_folder() -> Path:
    """Return the path of the user's cache; `own_cache` also creates the folder and checks that it is the user's."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute() / "deepnets"


def own_cache() -> Path:
    """Return the user's own cache folder, and create it if it is missing; nobody else can read or write in it.

    Raises:
        UserError: the folder cannot be created, or somebody else could have written into it.
    """
    folder = cache_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise UserError(f"no cache folder: {error}; set XDG_CACHE_HOME to a folder that you can write") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(
            f"{folder}: must be a folder of your own, into which nobody else can write; remove it, or set "
            "XDG_CACHE_HOME to another place"
        )
    if status.st_mode & 0o077:  # others may read in it
        folder.chmod(0o700)
    return folder


def opened_to_append(path: Path) -> IO[bytes]:
    """Open a regular file to append to it.

    Raises:
        OSError: it is a link, which is not followed, or a pipe, or cannot be written.
    """
    # O_NONBLOCK, because opening a pipe would wait until somebody reads from it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return os.fdopen(descriptor, "ab")


def opened(path: Path) -> IO[bytes]:
    """Open a regular file to read it; does not follow a link at the end of its path.

    Raises:
        ValueError: it is a link, a folder, a pipe or a device. OSError: it cannot be read.
    """
    try:
        # O_NONBLOCK, because opening a pipe would wait until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link, which is not followed; put the file itself in its place") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a file")
    return os.fdopen(descriptor, "rb")


def end_of(path: Path) -> str:
    """Return the last 100,000 bytes of a file as text.

    Raises:
        OSError, ValueError: as `opened`.
    """
    with opened(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        return file.read().decode(errors="replace")


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; {} if there is no file, or a crash of the machine left it empty.

    Raises:
        ValueError: it holds something else, or `read_text` raises it. OSError: it cannot be read.
    """
    try:
        text = read_text(path, LONGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        content = json.loads(text, parse_float=_finite, parse_constant=_finite) if text.strip("\0\n") else {}
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} instead of an object")
    return content


def _finite(text: str) -> float:
    """Return the number, or raise ValueError for NaN, Infinity and 1e999: json reads them, but no run writes them."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_text(path: Path, longest: int) -> str:
    """Read the text of a regular file.

    Raises:
        ValueError: it has more than `longest` bytes or is not UTF-8, or `opened` raises it. OSError: it cannot be read.
    """
    with opened(path) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise ValueError(f"more than {longest} bytes")
    return content.decode()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError that names `place`, which the user chose.

    Raises:
        UserError: the system refused to write there.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{place}: cannot be written ({error}); name another place") from error


def check_writable(folder: Path) -> None:
    """Check that files can be written into a folder, before a command spends hours on them; it need not exist yet.

    Raises:
        UserError: the folder or its nearest parent cannot be written.
    """
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"{folder}: cannot be written; name another place")


def check_folder(folder: Path) -> None:
    """Check that a folder of runs is there.

    Raises:
        UserError: the folder is missing; the message names the folder beside it, or in outputs/, with the most similar
            name.
    """
    if not folder.is_dir():
        beside = {
            each.name: each
            for place in (folder.parent, Path("outputs"))
            if place.is_dir()
            for each in place.iterdir()
            if each.is_dir()
        }
        longer = [name for name in beside if name.startswith(folder.name)]  # this sweep with overrides
        near = [*sorted(longer, key=len), *get_close_matches(folder.name, beside, 1)][:1]
        hint = f"the nearest: {beside[near[0]]}" if near else "as in outputs/<sweep>, or a run's"
        raise UserError(f"{folder}: no such folder; name a sweep's folder, {hint}")


def natural(name: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts numbers within names by value: seed2 before seed10, 0.05 before 0.1."""
    words = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(1, float(word), "") if index % 2 else (0, 0.0, word) for index, word in enumerate(words)]


def folders_with(name: str, below: Path, most_others: float) -> Iterator[Path]:
    """Yield the folders in and below a folder that hold a file of this name, in natural order: seed2 before seed10.

    What lies inside such a folder is not looked at.

    Raises:
        UserError: there are more than `most_others` other folders one after the other, as on a whole disk.
    """
    others = 0
    for path, names, files in os.walk(below):
        names.sort(key=natural)
        if name in files or name in names:  # a folder of this name is a damaged file: reading it says so
            names.clear()
            others = 0
            yield Path(path)
        elif (others := others + 1) > most_others:
            raise UserError(f"{below}: has over {most_others:,} folders that are no runs; name a sweep's folder in it")
