"""Images/s through pre-activation ResNet-110 with one unit deleted, over all 54 deletions.

With shared beginnings against an evaluation for each, by batches of 500 as in training, and by batches that fit the
cache as theirs do.
"""

import argparse
import time

import torch
from benches.figures import Figures
from benches.options import count
from benches.subject import add_subject, chosen
from benches.turns import in_turns

from deepnets.analysis import lesion
from deepnets.analysis.walk import walk_of
from deepnets.assembly import dataset_of, splits_of
from deepnets.data.batches import EvaluationBatches
from deepnets.run import build_model


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "preact110")
    parser.add_argument("--images", type=count, default=40, help="test images, scored with shared beginnings (40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Score by turns; raises RuntimeError where a number differs."""
    subject, count = chosen(arguments), arguments.images
    model = build_model(list(subject.overrides)).eval().to(subject.device, memory_format=torch.channels_last)
    splits, walk = splits_of(dataset_of(subject.config), subject.device), walk_of(model)
    variants = [lesion.with_deleted(walk, [unit]) for unit in range(len(walk))]

    def batches(images: int, size: int) -> EvaluationBatches:
        first = splits.test.select(torch.arange(images, device=subject.device))
        return EvaluationBatches(first, splits.normalization, batch_size=size)

    def speed(images: int, size: int, chosen: list[lesion.Variant]) -> float:
        data, started = batches(images, size), time.perf_counter()
        lesion.scores(walk, data, chosen)
        return images * len(chosen) / (time.perf_counter() - started)

    one_by_one = [lesion.scores(walk, batches(count, count), [variant]).error[0] for variant in variants[::9]]
    if one_by_one != lesion.scores(walk, batches(count, 16), variants).error[::9].tolist():
        raise RuntimeError("shared beginnings score other than evaluations one by one")
    middle = variants[len(variants) // 2]
    candidates = {
        "shared beginnings, batches of 64": lambda: speed(count, 64, variants),
        "one by one, batches of 500": lambda: speed(500, 500, [middle]),
        "one by one, batches of 64": lambda: speed(512, 64, [middle]),
    }
    return [Figures("one unit deleted", "images/s", in_turns(candidates, arguments.repeats))]
