"""Seconds that each run of a sweep of tiny runs on digits takes beyond its training: start and composition."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deepnets.bench.figures import Figures, Measurement
from deepnets.command import count
from deepnets.runs.folder import RunFolder


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--rows", type=count, default=200, help="of the grid (default: 200)")
    parser.add_argument("--iterations", type=count, default=40, help="that each trains (default: 40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train a grid a repeat."""
    results: Measurement = {"beyond training": [], "training": []}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as outputs:
            size = ["model.depth=8", "model.widths=[2,2,2]", "epochs=null", f"iterations={arguments.iterations}"]
            grid = ["-m", *size, f"seed=range({arguments.rows})", f"output_root={outputs}"]
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "deepnets", "train", *grid], check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            results_of = [RunFolder(path.parent).result for path in Path(outputs).glob("runs/*/*/result.json")]
            training = sum(result["seconds"] for result in results_of if result is not None)
        results["beyond training"].append((seconds - training) / arguments.rows)
        results["training"].append(training / arguments.rows)
    return [Figures(f"a row of {arguments.rows}", "seconds", results)]
