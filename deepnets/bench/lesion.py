"""Images/s through a network with one unit deleted, over the deletions of each of its units.

With shared beginnings by batches of 64, which fit the cache, against an evaluation for each by batches as in training;
in the arithmetic of training's evaluation, and in float32.
"""

import argparse
import time

import torch

from deepnets.analysis import lesion
from deepnets.analysis.walk import Walk, recalibrate_batchnorm, walk_of
from deepnets.bench.figures import Figures, in_turns
from deepnets.bench.subject import Subject, add_subject, chosen
from deepnets.data.batches import EvaluationBatches
from deepnets.data.dataset import Splits
from deepnets.run import build_model
from deepnets.system.options import count
from deepnets.training.assembly import dataset_of, splits_of

SHARED = 64  # images of a batch


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "preact110")
    parser.add_argument("--images", type=count, default=64, help="test images, scored with shared beginnings (64)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Score by turns; raises RuntimeError where an error differs."""
    subject = chosen(arguments)
    model = build_model(list(subject.overrides)).eval().to(subject.device).to(memory_format=torch.channels_last)
    splits, walk = splits_of(dataset_of(subject.config), subject.device), walk_of(model)
    recalibrate_batchnorm(model, next(iter(_batches(splits, subject.config.evaluation_batch_size, SHARED)))[0])
    precisions = dict.fromkeys((subject.precision, torch.float32))
    return [_in(precision, subject, splits, walk, arguments) for precision in precisions]


def _in(precision: torch.dtype, subject: Subject, splits: Splits, walk: Walk, arguments: argparse.Namespace) -> Figures:
    variants = [lesion.with_deleted(walk, [unit]) for unit in range(len(walk))]
    images, whole = arguments.images, subject.config.evaluation_batch_size

    def errors(size: int, chosen: list[lesion.Variant]) -> list[float]:
        return lesion.scores(walk, _batches(splits, images, size), chosen, precision).error.tolist()

    def speed(images: int, size: int, chosen: list[lesion.Variant]) -> float:
        data, started = _batches(splits, images, size), time.perf_counter()
        lesion.scores(walk, data, chosen, precision)
        return images * len(chosen) / (time.perf_counter() - started)

    some = variants[::9]
    if [errors(images, [variant])[0] for variant in some] != errors(16, variants)[::9]:
        raise RuntimeError("shared beginnings score other than evaluations one by one")
    candidates = {
        "shared beginnings": lambda: speed(images, SHARED, variants),
        "one by one": lambda: speed(whole, whole, [variants[len(variants) // 2]]),
    }
    name = str(precision).removeprefix("torch.")
    return Figures(f"one unit deleted, {name}", "images/s", in_turns(candidates, arguments.repeats))


def _batches(splits: Splits, images: int, size: int) -> EvaluationBatches:
    first = splits.test.select(torch.arange(images, device=splits.test.labels.device))
    return EvaluationBatches(first, splits.normalization, batch_size=size)
