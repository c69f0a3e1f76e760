"""Seconds an epoch that the log of a gated ResNet-20 adds to its training: every epoch observed, gates too.

The worst case: a short epoch of noise of CIFAR-10's shape (its own has 391 iterations).
"""

import argparse
import tempfile
import time

from deepnets.bench.figures import Figures, Measurement
from deepnets.bench.subject import subject_of
from deepnets.command import count
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import Log
from deepnets.training.fit import fit


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--iterations", type=count, default=40, help="iterations an epoch (default: 40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train for an epoch a repeat, after one to warm up."""
    size = [
        f"dataset.source.train={128 * arguments.iterations}",
        f"dataset.source.test={25 * arguments.iterations}",
        f"epochs={arguments.repeats + 1}",
    ]
    subject = subject_of(["model=resnet20", "model/shortcut=exclusive_gating_b6", "dataset=synthetic", *size])
    training = subject.training()
    results: Measurement = {"logging": [], "training": []}
    logged = 0.0
    with tempfile.TemporaryDirectory() as outputs, Log(RunFolder(outputs), training, subject.config, [], [], 0) as log:
        begun = time.perf_counter()
        for state in fit(training):
            started = time.perf_counter()
            log.iteration(state)
            if state.completed:
                log.epoch(state)
            now = time.perf_counter()
            logged += now - started
            if state.completed:
                results["logging"].append(logged)
                results["training"].append(now - begun - logged)
                logged, begun = 0.0, now
    return [Figures("an epoch", "seconds", {name: seconds[1:] for name, seconds in results.items()})]
