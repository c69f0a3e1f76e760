"""Seconds from a command's words to its composed runs, the start of Python included."""

import argparse
import subprocess
import sys
import time

from deepnets.bench.figures import Figures, in_turns

COMMANDS = {
    "one run": [],
    "80 rows of he2016_table1": ["sweep=he2016_table1", "dataset.root=/data"],
    "1,000 seeds": ["-m", "seed=range(1000)"],
    "10,000 runs": ["-m", "seed=range(100)", "optimizer.lr=range(0.01,1.01,0.01)"],
}
SCRIPT = "from deepnets.config.command_line import rows_of_command; rows_of_command()"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Nothing can be chosen."""


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Compose by turns."""
    candidates = {name: lambda words=words: _seconds(words) for name, words in COMMANDS.items()}
    return [Figures("from words to rows", "seconds", in_turns(candidates, arguments.repeats))]


def _seconds(words: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", SCRIPT, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
