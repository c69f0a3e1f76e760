"""Errors that are not bugs: the user asked for something impossible, or the system refused something."""

import errno
import re
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# OSErrors about a network or a process, not about a file.
NO_FILE = (ConnectionError, TimeoutError, ChildProcessError, ProcessLookupError)
LONGEST = 200  # characters of a value in a message
# Control characters except tab and newline, marks that change a text's direction, bytes of names that are not UTF-8.
UNPRINTABLE = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
NO_MEMORY = re.compile(r"[Cc]an(not|'t) allocate memory|out of memory|can't start new thread")

PACKAGE = Path(__file__).resolve().parent


class UserError(ValueError):
    """A message for the user: what was given, what is allowed, what to do.

    A command catches it once, at the top, prints it without traceback, and exits with 1. Every other exception is a
    bug, unless `system_message` or `hydra_errors.explain` explains it.
    """

    @property
    def summary(self) -> str:
        """The message, for a line that already names the folder; subclasses leave the folder out."""
        return str(self)


def system_message(error: BaseException) -> str | None:
    """Say in one line that the system refused a file, a folder or memory; None for every other error."""
    is_memory = isinstance(error, MemoryError | RuntimeError | ImportError | OSError) and NO_MEMORY.search(str(error))
    if is_memory or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return f"too little memory: {first_line(error)}"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, NO_FILE):
        return f"{error.filename}: {error.strerror}" if error.filename else first_line(error)
    return None


def own_code_message(error: BaseException) -> str | None:
    """Say in one line which error arose in a user's own file or in code that it called, and where; None for others."""
    frames = [(Path(frame.filename), frame) for frame in traceback.extract_tb(error.__traceback__)]
    in_package = [index for index, (file, _) in enumerate(frames) if file.is_relative_to(PACKAGE)]
    for file, frame in reversed(frames[min(in_package, default=len(frames)) :]):
        if not file.is_relative_to(PACKAGE) and _is_own(file):
            return f"{file.name}, line {frame.lineno}, in {frame.name}: {type(error).__name__}: {first_line(error)}"
    return None


def _is_own(file: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return file.is_file() and not installed and not file.is_relative_to(sysconfig.get_path("stdlib"))


def listed(names: Iterable[str]) -> str:
    """List the first three different names, and say how many others there are; several with commas are in quotes."""
    names = list(dict.fromkeys(names))
    first = [f"'{name}'" if "," in name and len(names) > 1 else name for name in names[:3]]
    return ", ".join(first) + f" and {len(names) - 3} more" * (len(names) > 3)


def brief(value: object) -> str:
    """Return the value as Python writes it, in one line; a long value is cut off."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def nearest(name: str, names: Iterable[str]) -> str:
    """Return text that ends a message with the nearest of the names; empty if no name is near."""
    near = get_close_matches(name, list(names), 1)
    return f"; the nearest: {near[0]}" if near else ""


def shortened(message: str) -> str:
    """Cut off very long values in a message, because nobody would read them to the end."""
    return re.sub(rf"(\S{{{LONGEST}}})\S{{{LONGEST},}}", r"\1...", message)


def printable(text: str) -> str:
    """Return the text with escapes (`\\x1b`) for characters that a terminal would obey or cannot show."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def first_line(error: BaseException) -> str:
    """Return the first line of the error's message, or the error's class if it has no message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
