"""Starts a real SLURM for tests, on this machine alone, and runs whose pace a test steers."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import filelock
import pytest

from deepnets.launch.grid import launch
from tests.command import ROOT, row

SCRIPT = ROOT / "tests" / "one_node_slurm.sh"
PATIENCE = 240  # seconds for anything that must happen
NET = ["model.depth=8", "model.widths=[4,4,4]", "schedule=cosine", "schedule._target_=tests.paced.Paced"]
NET += ["device=cpu"]
SLURM = ["launcher=slurm", "launcher.cpus=1"]


def missing() -> str | None:
    """Return why SLURM cannot be started here, or None."""
    if absent := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]:
        return f"no {absent[0]} here: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "starting SLURM takes root"


@contextmanager
def slurm(*settings: str) -> Iterator[Path]:
    """Start SLURM with these further settings; yields the folder whose files steer tests/paced.py in jobs."""
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder:
        started = subprocess.run(
            [SCRIPT, "start", folder, str(free_port()), *settings], capture_output=True, text=True, check=False
        )
        pace = Path(folder, "pace")
        pace.mkdir()
        try:
            if started.returncode:
                pytest.skip(f"SLURM does not start here: {started.stderr}")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in {"SLURM_CONF": f"{folder}/slurm.conf", "PYTHONPATH": ROOT, "PACE": pace}.items():
                    patch.setenv(name, str(value))
                yield pace
        finally:
            subprocess.run([SCRIPT, "stop", folder], check=True)


def free_port() -> int:
    """Return the first of three ports in a row that no server uses, below those that the kernel gives out."""
    for port in range(20000 + os.getpid() % 3000 * 3, 32000):
        with ExitStack() as sockets, suppress(OSError):
            for number in range(port, port + 3):
                sockets.enter_context(socket.socket()).bind(("", number))
            return port
    raise AssertionError("no port is free")


def once(
    factory: pytest.TempPathFactory, scenario: Callable[[Path, Path], dict[str, Any]], *settings: str
) -> dict[str, Any]:
    """Run the scenario once, even if two workers of pytest-xdist share its tests; returns the facts that it found."""
    shared = factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    root, facts = shared / scenario.__name__, shared / f"{scenario.__name__}.json"
    with filelock.FileLock(f"{root}.lock"):
        if not facts.is_file():
            shutil.rmtree(root, ignore_errors=True)
            with slurm(*settings) as pace:
                facts.write_text(json.dumps(scenario(root, pace)))
    return {"root": root, **json.loads(facts.read_text())}


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.1)


def queue() -> dict[str, str]:
    """Return state and reason, e.g. `PENDING BeginTime`, of each task of an array."""
    lines = answer("squeue", "--noheader", "--array", "--format=%F_%K %T %r").splitlines()
    return dict(line.split(" ", 1) for line in lines if "N/A" not in line)


def answer(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def job(folder: Path) -> str:
    return json.loads((folder / "job.json").read_text())["job"]


def ending(task: str) -> str:
    """Return SLURM's state, exit code and number of restarts, e.g. `FAILED 1:0 0`."""
    shown = answer("scontrol", "show", "job", "--oneliner", task)
    return " ".join(re.search(rf"{key}=(\S+)", shown)[1] for key in ("JobState", "ExitCode", "Restarts"))


def start_again(task: str, *updates: str) -> None:
    """Start a task that is queued again in two seconds, not SLURM's two minutes; within one, a node would refuse it."""
    until(lambda: queue().get(task) in ("PENDING BeginTime", "PENDING None"), f"{task} is queued again")
    answer("scontrol", "update", f"jobid={task}", "StartTime=now+2", *updates)


def launched(root: Path, names: str, *changes: str) -> tuple[int, str]:
    """Launch the grid of these schedules from this process; returns its exit code and its output."""
    rows = [row(root, *NET, *SLURM, *changes, f"+schedule.name={name}") for name in names]
    with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
        code = launch(rows)
    return code, printed.getvalue()


def folder_of(root: Path, name: str) -> Path:
    (folder,) = [folder for folder in root.glob("runs/*/seed0") if f"schedule.name={name}" in str(folder)]
    return folder
