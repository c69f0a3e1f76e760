"""Where deepnets is, a clone or an installed package, and what follows: options, version, and where results go."""

import subprocess
import sys
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # as in a wheel; a clone has conf/ beside the package
CONF = PACKAGE / "conf" if INSTALLED else PACKAGE.parent / "conf"
SCHEMAS = CONF / "schema"  # of the files in it, for editors


def home() -> Path:
    """The folder of outputs/ and data/: that of the clone for its scripts, else the one where a command is called."""
    return Path.cwd() if _is_verb() else PACKAGE.parent


def program(verb: str) -> str:
    """How a user types the command `verb`."""
    return f"deepnets {verb}" if _is_verb() else f"python scripts/{verb}.py"


@cache
def git_commit() -> str | None:
    """The commit of the clone deepnets runs from, `-dirty` with uncommitted changes, or that its wheel was built from.

    None outside a git clone, and where the wheel was not built in one.
    """
    if INSTALLED:  # where a folder above may be another project's clone
        file = CONF / "commit"
        return file.read_text().strip() if file.is_file() else None
    command = ["git", "-C", str(PACKAGE.parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _is_verb() -> bool:
    """Whether `deepnets VERB` is being executed, or a clone's scripts are not there."""
    return INSTALLED or sys.argv[0].startswith("deepnets ")
