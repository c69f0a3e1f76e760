"""The version of the code that runs."""

import subprocess
from functools import cache

from deepnets.config.schema import REPOSITORY


@cache
def git_commit() -> str | None:
    """The commit of the clone deepnets runs from, `-dirty` with uncommitted changes; None outside a git clone."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
