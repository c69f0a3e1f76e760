"""Images/s of this machine, summed over runs of a narrow, deep network, by how its seeds share the CPU's cores.

One run on all threads, a run a core by launcher=pool, or three seeds as one batched network by launcher.stacked; and a
run a core with torch's own batch normalisation. Each turn is a command of its own. In both precisions.
"""

import argparse
import os
import subprocess
from collections.abc import Sequence
from functools import partial

from deepnets.bench.figures import Figures, in_turns
from deepnets.bench.trainings import results_of
from deepnets.command import count
from deepnets.config.schema import Precision
from deepnets.errors import UserError

# ResNet-110 of sweep=he2016_table1 scale=deep, on images that need no download
NARROW = [
    *("model=resnet110", "model.widths=[4,8,16]", "model.batchnorm_images=64"),
    *("dataset=synthetic", "dataset.source.size=16", "dataset.source.test=100", "device=cpu"),
]
STACKED = 3
SECONDS = 600.0  # for one command


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--iterations", type=count, default=30, help="of each run (default: 30)")
    parser.add_argument("overrides", nargs="*", metavar="OPTION", help="any other option of scripts/train.py")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train by turns."""
    return [_in(precision, arguments) for precision in (Precision.fp32, Precision.bf16)]


def _in(precision: Precision, arguments: argparse.Namespace) -> Figures:
    cores = len(os.sched_getaffinity(0))
    size = f"dataset.source.train={arguments.iterations * 128}"
    words = [*NARROW, size, "epochs=1", f"precision={precision}", *arguments.overrides]
    pool = ["launcher=pool", f"launcher.runs_per_device={cores}"]
    ways = {
        f"{cores} runs, a thread each": (cores, pool),
        f"one run, {cores} threads": (1, []),
        f"{STACKED} runs stacked, {cores} threads": (STACKED, [f"launcher.stacked={STACKED}"]),
        f"{cores} runs, a thread each, batchnorm_kernel=torch": (cores, [*pool, "batchnorm_kernel=torch"]),
    }
    candidates = {name: partial(_speed, [*words, *more], seeds) for name, (seeds, more) in ways.items()}
    return Figures(
        f"runs of ResNet-110 of width 4, 8, 16, {precision}", "images/s", in_turns(candidates, arguments.repeats)
    )


def _speed(words: Sequence[str], seeds: int) -> float:
    """The images/s of all runs together, which train at the same time."""
    try:
        found = results_of(["-m", *words, f"seed=range({seeds})"], ["images_per_second"], SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"{' '.join(words)} takes more than {SECONDS:.0f} seconds; choose fewer --iterations") from None
    if "absent" in found:
        raise UserError(f"{' '.join(words)}: {found['absent']}")
    return sum(found["images_per_second"])
