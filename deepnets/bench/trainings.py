"""Trainings by commands, as users type them: what a part of `bench.py gpu` finds out about whole runs."""

import csv
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepnets.bench.parts import Found, Unfinished
from deepnets.runs.folder import RunFolder, run_folders

DEEPNETS = [sys.executable, "-m", "deepnets"]
SAVING_SECONDS = 60.0  # for a training that is stopped


def ended(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """The command, at its end.

    Raises:
        TimeoutExpired: that takes longer.
    """
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Of what a command that failed printed: the reason."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def results_of(words: Sequence[str], values: Sequence[str], seconds: float) -> Found:
    """The `values` of the results of the runs that these options of scripts/train.py make, each from its beginning."""
    with tempfile.TemporaryDirectory() as place:
        done = ended([*DEEPNETS, "train", *words, f"output_root={place}"], seconds)
        results = [folder.result or {} for folder in run_folders(Path(place))]
        if done.returncode or not results:
            return {"absent": last_line(done)}
        return {value: [result[value] for result in results] for value in values}


def several(words: Sequence[str], count: int, seconds: float, *, stacked: bool) -> Found:
    """Images/s of each of so many short runs that share the device, or train as one batched network."""
    launcher = [f"launcher.stacked={count}"] if stacked else ["launcher=pool", f"launcher.runs_per_device={count}"]
    seeds = f"seed={','.join(map(str, range(count)))}"
    return results_of(["-m", *words, *launcher, seeds], ["images_per_second"], seconds)


def analysed(words: Sequence[str], device: str, seconds: float) -> Found:
    """The result of a short run, and what `analyze.py lesion` prints of it."""
    with tempfile.TemporaryDirectory() as place:
        done = ended([*DEEPNETS, "train", *words, f"output_root={place}"], seconds)
        if done.returncode:
            return {"absent": last_line(done)}
        (folder,) = run_folders(Path(place))
        lesion = [*DEEPNETS, "analyze", "lesion", str(folder), "--device", device, "--draws", "1", "--most", "2"]
        done = ended(lesion, seconds)
        found = done.stdout.splitlines() if done.returncode == 0 else last_line(done)
        result = folder.completed or {}
        return {key: result[key] for key in ("test_error", "seconds", "device", "precision")} | {"lesion": found}


def stopped(words: Sequence[str], seconds: float) -> Found:
    """Whether a run that is stopped after its first epoch and resumed ends as one that is not: the epochs' losses."""
    deadline, losses = time.monotonic() + seconds, []
    with tempfile.TemporaryDirectory() as place:
        for name in ("whole", "stopped"):
            command = [*DEEPNETS, "train", *words, f"output_root={Path(place, name)}"]
            if name == "stopped":
                with _running(command) as process:
                    while process.poll() is None and not [*Path(place, name).glob("runs/*/seed0/metrics.csv")]:
                        time.sleep(0.1)
                        if time.monotonic() > deadline:
                            raise subprocess.TimeoutExpired(command, seconds)
                    process.send_signal(signal.SIGINT)
                    process.wait(SAVING_SECONDS)
            done = ended(command, deadline - time.monotonic())
            if done.returncode:
                return {"absent": last_line(done)}
            (folder,) = run_folders(Path(place, name))
            with (folder.path / "metrics.csv").open() as file:
                losses.append([float(epoch["train_loss"]) for epoch in csv.DictReader(file)])
        resumed = re.search(r"resuming at iteration (\d+)", (folder.path / "log.txt").read_text())
        return {"resumed at": resumed and int(resumed[1]), "equal": losses[0] == losses[1], "losses": losses}


def trained(words: Sequence[str], folder: RunFolder, seconds: float) -> Found:
    """The result of the run that these options of scripts/train.py make, stopped and saved when the seconds are over.

    Raises:
        Unfinished: it was stopped.
    """
    process = subprocess.Popen([*DEEPNETS, "train", *words])
    try:
        process.wait(max(seconds - SAVING_SECONDS, 1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(SAVING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its last checkpoint is there
        raise Unfinished from None
    return folder.completed or {"absent": f"{shlex.join(words)} ended with exit code {process.returncode}"}


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command, which ends with the context."""
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
