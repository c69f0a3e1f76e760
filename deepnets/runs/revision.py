"""The version of the code that runs."""

import subprocess
from functools import cache

from deepnets.config.places import CONF, INSTALLED, PACKAGE


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
