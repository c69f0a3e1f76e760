"""Where deepnets is, a clone or an installed package, and what follows: its options, and where results go."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # as in a wheel; a clone has conf/ beside the package
CONF = PACKAGE / "conf" if INSTALLED else PACKAGE.parent / "conf"


def home() -> Path:
    """The folder of outputs/ and data/: the clone, or where an installed command is called."""
    return Path.cwd() if INSTALLED else PACKAGE.parent


def program(verb: str) -> str:
    """How a user types the command `verb`."""
    return f"deepnets {verb}" if INSTALLED else f"python scripts/{verb}.py"
