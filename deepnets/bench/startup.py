"""Seconds from the command to the first optimiser step being on disk, and of --help, beside an empty Python."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deepnets.bench.figures import Figures, in_turns
from deepnets.bench.subject import add_subject, words_of

TRAIN = ("-m", "deepnets", "train")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Start by turns."""
    words = words_of(arguments)
    candidates = {
        "first optimiser step": lambda: _first_step(words),
        "--help": lambda: _seconds(*TRAIN, "--help"),
        "import torch": lambda: _seconds("-c", "import torch"),
        "empty Python": lambda: _seconds("-c", "pass"),
    }
    return [Figures("start", "seconds", in_turns(candidates, arguments.repeats))]


def _first_step(words: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, *TRAIN, *words, f"output_root={outputs}", "checkpoint_seconds=0"]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(Path(outputs).glob("runs/*/*/checkpoint.pt")):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} before its first step")
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        process.kill()
        process.wait()
        return seconds


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
