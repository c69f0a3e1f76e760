"""Where deepnets is, a clone or an installed package, and what follows: its options, and where results go."""

import sys
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


def _is_verb() -> bool:
    """Whether `deepnets VERB` is being executed, or a clone's scripts are not there."""
    return INSTALLED or sys.argv[0].startswith("deepnets ")
