"""A row as a process of its own, which ends with its parent, and what is noted when it dies without a word."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from deepnets.runs.folder import RunFolder

OUTPUT = "output.txt"
# What a child does before it becomes `python -m deepnets.run FOLDER`: it asks the kernel (Linux's prctl, option 1) for
# SIGTERM when its parent dies, however that dies, so that it saves and ends; a parent that is dead already is noticed.
BOUND = (
    "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 15); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


def start(folder: RunFolder, trusted: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """`python -m deepnets.run FOLDER`, whose output is added to the folder's output.txt.

    It is to be called from the main thread: the kernel takes the end of the thread that forked for the parent's.
    """
    run = [sys.executable, "-m", "deepnets.run", str(folder.path.resolve())]
    trust = [f"--trust={target}" for target in trusted]
    command = [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid()), *run, *trust]
    with (folder.path / OUTPUT).open("ab") as output:
        # A group of its own: Ctrl-C in the terminal reaches it through its parent, once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
        )


def note_crash(folder: RunFolder, code: int) -> str:
    """Write down, as the run itself could not, that it failed; returns why, from its exit code and output.

    Raises:
        Locked: another process has the folder.
    """
    if code < 0:
        reason = f"killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            reason += ", as the system does when memory runs out"
    else:
        lines = [line.strip() for line in (folder.path / OUTPUT).read_text(errors="replace").split("\n")]
        reason = f"ended with exit code {code}: {next(filter(None, reversed(lines)), 'no output')}"
    # Of several processes the one that holds the lock may end a moment after its parent.
    with folder.lock(10 if code < 0 else 0), (folder.path / "log.txt").open("a") as log:
        log.write(reason + "\n")
        folder.write_json("result.json", {"status": "failed", "reason": reason})
    return reason
