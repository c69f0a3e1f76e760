"""`bench.py lesion` and `analyses` measure how fast units are deleted, and how long each analysis takes."""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from deepnets.analysis import lesion
from deepnets.analysis.walk import Walk, recalibrate_batchnorm, walk_of
from deepnets.bench.comparison import (
    DEEPNETS,
    BenchRun,
    Comparison,
    Part,
    PartResult,
    add_run_options,
    chosen_run,
    finished,
    follow,
    in_turns,
    last_line,
    precision_name,
)
from deepnets.command import count, some_of
from deepnets.data.batches import EvaluationBatches
from deepnets.data.dataset import Splits
from deepnets.errors import UserError
from deepnets.run import build_model
from deepnets.training.assembly import dataset_of, splits_of

SHARED = 64  # images in a batch that passes the first units once for several deletions
NET = ("model=resnet110",)
GATED = ("model=resnet110", "model/shortcut=exclusive_gating_b6")
LIMIT, LANDSCAPE_LIMIT = 300.0, 1200.0  # seconds that an analysis may take on two idle cores
ANALYSES: dict[str, tuple[str, ...]] = {
    "evaluate": NET,  # all 10,000 test images
    "gates": (*GATED, "--images", "1000"),
    "highway": (*GATED, "--images", "1000"),
    "propagation": (*NET, "--images", "1000"),
    "gradients": (
        *NET,
        "--images",
        "1000",
        "--test-images",
        "1000",
        "--orderings",
        "original,full_preactivation",
        "--sizes",
        "1",
        "--draws",
        "1",
    ),
    "precision": (*NET, "--images", "1000"),
    "lesion": (*NET, "--images", "1000"),
    "paths": (*NET, "--images", "1000", "--draws", "1000"),
    "shattering": NET,  # 5,120 images, on 20 lines
    "curvature": (*NET, "--images", "1000"),
    "landscape": NET,
}


def add_lesion_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py lesion`."""
    add_run_options(parser, "preact110")
    parser.add_argument("--images", type=count, default=64, help="test images for shared beginnings (default: 64)")


def measure_lesion(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure images/s of a network with one unit deleted.

    With "shared beginnings", each unit is deleted in turn, and a batch passes the units before a deleted one only once;
    its 64 images fit the cache. With "one by one", only the middle unit is deleted, and one batch of
    evaluation_batch_size is evaluated. Both are measured in the run's precision and in float32.

    Raises:
        RuntimeError: the two ways give different errors.
    """
    run = chosen_run(arguments)
    model = build_model(list(run.overrides)).eval().to(run.device).to(memory_format=torch.channels_last)
    splits, walk = splits_of(dataset_of(run.config), run.device), walk_of(model)
    recalibrate_batchnorm(model, next(iter(_batches(splits, run.config.evaluation_batch_size, SHARED)))[0])
    precisions = dict.fromkeys((run.precision, torch.float32))
    return [_lesion_in(precision, run, splits, walk, arguments) for precision in precisions]


def add_analyses_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py analyses`."""
    parser.add_argument("--root", metavar="DIR", help="folder with cifar10, as dataset.root of scripts/train.py")
    parser.add_argument("--minutes", type=float, default=60, help="minutes after which this command ends (default: 60)")
    parser.add_argument(
        "--only", type=some_of(list(ANALYSES)), default=list(ANALYSES), metavar="NAMES", help="only these, with commas"
    )
    parser.set_defaults(json=Path("analyses.json"))


def measure_analyses(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the seconds of every analysis of a ResNet-110 on CIFAR-10, beside its limit on two cores.

    Each analysis is a command in its own process, on a fresh net. It takes 1,000 images; but `evaluate` takes 10,000,
    `shattering` 5,120, and `landscape` 250 at each of 25 x 25 points. Its seconds are written when it has ended, so
    that the same command, typed again, measures only what is missing. An analysis is stopped at twice its limit.

    Raises:
        UserError: the user named no data.
    """
    if not arguments.root:
        raise UserError("bench.py analyses: needs --root DIR, the folder with cifar10")
    overrides = ["dataset=cifar10", f"dataset.root={Path(arguments.root).resolve()}"]
    parts = [analysis_part(name, [*overrides, *ANALYSES[name]]) for name in arguments.only]
    follow(parts, arguments.json, arguments.minutes)
    return []


def analysis_part(name: str, words: Sequence[str]) -> Part:
    """Make the part that times the analysis with these command-line arguments, for at most twice its limit."""
    limit = LANDSCAPE_LIMIT if name == "landscape" else LIMIT
    return Part(name, partial(_timed, name, words, limit), 2 * limit)


def _timed(name: str, words: Sequence[str], limit: float, seconds: float) -> PartResult:
    """Run the analysis; return its wall-clock and processor seconds, and the seconds that it may take."""
    with tempfile.TemporaryDirectory() as place:
        began, used = time.monotonic(), _processor_seconds()
        done = finished([*DEEPNETS, "analyze", name, *words, "--output", place], seconds)
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
    """Return the processor seconds of all ended processes that this process has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lesion_in(
    precision: torch.dtype, run: BenchRun, splits: Splits, walk: Walk, arguments: argparse.Namespace
) -> Comparison:
    variants = [lesion.with_deleted(walk, [unit]) for unit in range(len(walk))]
    images, usual_size = arguments.images, run.config.evaluation_batch_size

    def errors(size: int, chosen: list[lesion.Variant]) -> list[float]:
        return lesion.scores(walk, _batches(splits, images, size), chosen, precision).error.tolist()

    def speed(images: int, size: int, chosen: list[lesion.Variant]) -> float:
        data, started = _batches(splits, images, size), time.perf_counter()
        lesion.scores(walk, data, chosen, precision)
        return images * len(chosen) / (time.perf_counter() - started)

    some = variants[::9]
    if [errors(images, [variant])[0] for variant in some] != errors(16, variants)[::9]:
        raise RuntimeError("shared beginnings give other errors than evaluations one by one")
    candidates = {
        "shared beginnings": lambda: speed(images, SHARED, variants),
        "one by one": lambda: speed(usual_size, usual_size, [variants[len(variants) // 2]]),
    }
    title = f"one unit deleted, {precision_name(precision)}"
    return Comparison(title, "images/s", in_turns(candidates, arguments.repeats))


def _batches(splits: Splits, images: int, size: int) -> EvaluationBatches:
    """Return the first `images` test images in batches of `size`."""
    first = splits.test.select(torch.arange(images, device=splits.test.labels.device))
    return EvaluationBatches(first, splits.normalization, batch_size=size)
