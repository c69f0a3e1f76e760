"""Seconds of every analysis of ResNet-110 on 1,000 images of CIFAR-10, beside how long it may take on two cores.

Each is a command in a process of its own, on a fresh net, and is written down once it has ended: the same command goes
on where the last one ended. A landscape is of 25 x 25 points on 250 images. What takes twice its limit is stopped.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from deepnets.bench.figures import Figures
from deepnets.bench.parts import Found, Part, follow
from deepnets.bench.trainings import DEEPNETS, ended, last_line
from deepnets.command import some_of
from deepnets.errors import UserError

NET = ("model=resnet110",)
GATED = ("model=resnet110", "model/shortcut=exclusive_gating_b6")
LIMIT, LANDSCAPE_LIMIT = 300.0, 1200.0  # seconds on two cores that do nothing else
ANALYSES: dict[str, tuple[str, ...]] = {
    "evaluate": NET,  # all 10,000 test images
    "gates": (*GATED, "--images", "1000"),
    "highway": (*GATED, "--images", "1000"),
    "propagation": (*NET, "--images", "1000"),
    "gradients": (*NET, "--images", "1000", "--test-images", "1000", "--sizes", "1", "--draws", "1"),
    "precision": (*NET, "--images", "1000"),
    "lesion": (*NET, "--images", "1000"),
    "paths": (*NET, "--images", "1000", "--draws", "1000"),
    "shattering": NET,  # 5,120 images, on 20 lines
    "curvature": (*NET, "--images", "1000"),
    "landscape": NET,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--root", metavar="DIR", help="folder with cifar10, as dataset.root of scripts/train.py")
    parser.add_argument("--minutes", type=float, default=60, help="after which this command ends (default: 60)")
    parser.add_argument(
        "--only", type=some_of(list(ANALYSES)), default=list(ANALYSES), metavar="NAMES", help="with commas: these only"
    )
    parser.set_defaults(json=Path("analyses.json"))


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Measure what the file lacks, as far as the minutes go. Raises a UserError where no data are named."""
    if not arguments.root:
        raise UserError("bench.py analyses: needs --root DIR, the folder with cifar10")
    where = ["dataset=cifar10", f"dataset.root={Path(arguments.root).resolve()}"]
    parts = [part(name, [*where, *ANALYSES[name]]) for name in arguments.only]
    follow(parts, arguments.json, arguments.minutes)
    return []


def part(name: str, words: Sequence[str]) -> Part:
    """The analysis with these words of its command line; twice its limit at most."""
    limit = LANDSCAPE_LIMIT if name == "landscape" else LIMIT
    return Part(name, partial(timed, name, words, limit), 2 * limit)


def timed(name: str, words: Sequence[str], limit: float, seconds: float) -> Found:
    """Wall-clock and processor seconds of the command, with the number of seconds that it may take."""
    with tempfile.TemporaryDirectory() as place:
        began, used = time.monotonic(), _processor_seconds()
        done = ended([*DEEPNETS, "analyze", name, *words, "--output", place], seconds)
        took = time.monotonic() - began
    if done.returncode:
        return {"absent": last_line(done)}
    processor = _processor_seconds() - used
    return {
        "seconds": round(took, 1),
        "limit": limit,
        "within": took <= limit,
        "processor_seconds": round(processor, 1),
    }


def _processor_seconds() -> float:
    """Of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
