"""A run as a process of its own, and what is noted when it dies without a word."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from deepnets.distributed import spawn
from deepnets.runs.execute import command_of
from deepnets.runs.execution import note_failure
from deepnets.runs.folder import RunFolder
from deepnets.system.files import opened

OUTPUT = "output.txt"
LAST_BYTES = 100_000  # of the output, in which the last line is looked for


def start(folder: RunFolder, trusted: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """`python -m deepnets.run FOLDER`, which saves when its parent dies; its output is added to output.txt."""
    return spawn.start(command_of(folder, trusted), environment, signal.SIGTERM, folder.path / OUTPUT)


def note_crash(folder: RunFolder, code: int) -> str:
    """Write down, as the run itself could not, that it failed; returns why, from its exit code and output.

    Raises:
        Locked: another process has the folder.
    """
    reason = spawn.how_it_ended(code)
    if code >= 0:
        with opened(folder.path / OUTPUT) as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = [line.strip() for line in output.read().decode(errors="replace").split("\n")]
        reason += f": {next(filter(None, reversed(lines)), 'no output')}"
    # Of several processes the one that holds the lock may end a moment after its parent.
    with folder.hold(10 if code < 0 else 0):
        note_failure(folder, reason, f"{reason}\n")
    return reason
