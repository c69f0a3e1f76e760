"""Runs the project's commands and composes rows as users do."""

import atexit
import csv
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from deepnets.config.compose import compose
from deepnets.config.schema import Row
from deepnets.runs.log import TIME_COLUMNS

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "0"}


# Its server has imported what commands import; each command is a process of its own that it forks.
IMPORTED = multiprocessing.get_context("forkserver")
IMPORTED.set_forkserver_preload(["deepnets.results.report", "sklearn.datasets", "torch._dynamo"])


def train(*overrides: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/train.py with these overrides to its end, as `call` does."""
    return call("train.py", *overrides, cwd=cwd, **environment)


def call(script: str, *words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of scripts/ with these words to its end, in a process that does not have to import torch."""
    with tempfile.TemporaryDirectory() as place:
        streams = Path(place, "out"), Path(place, "err")
        command = str(ROOT / "scripts" / script), *words
        process = IMPORTED.Process(target=_execute, args=(command, cwd, {**ENVIRONMENT, **environment}, *streams))
        process.start()
        process.join()
        return subprocess.CompletedProcess(command, process.exitcode, *map(Path.read_text, streams))


def _execute(command: tuple[str, ...], cwd: Path, environment: dict[str, str], *streams: Path) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout.reconfigure(write_through=True)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    sys.path[0] = str(ROOT / "scripts")
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def start(*overrides: str) -> subprocess.Popen[str]:
    """Start `python scripts/train.py` with these overrides, and do not wait for it."""
    return subprocess.Popen(
        [*TRAIN, *overrides], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=ENVIRONMENT
    )


def metrics(folder: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv without the columns that depend on a clock."""
    with (folder / "metrics.csv").open() as file:
        return [
            {name: value for name, value in row.items() if name not in TIME_COLUMNS} for row in csv.DictReader(file)
        ]


def row(output_root: Path, *changes: str) -> Row:
    """Compose the row that scripts/train.py composes for these overrides."""
    return compose([*changes, f"output_root={output_root}"])
