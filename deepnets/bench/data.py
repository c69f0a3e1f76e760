"""Images/s of the data pipeline alone: shuffle, crop, flip, normalise."""

import argparse
from collections.abc import Iterator
from functools import partial

import torch

from deepnets.bench.figures import SETTLE_SECONDS, Candidates, Figures, in_turns, seconds_of
from deepnets.bench.peers import plain
from deepnets.bench.subject import add_subject, chosen
from deepnets.bench.task import task_of
from deepnets.command import count, whole
from deepnets.data.batches import TrainingBatches
from deepnets.training.assembly import dataset_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")
    parser.add_argument("--iterations", type=count, default=40, help="batches a repeat (default: 40)")
    parser.add_argument("--workers", type=whole, default=2, help="processes of torchvision's loader (default: 2)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Make batches by turns."""
    subject, iterations = chosen(arguments), arguments.iterations
    batches, dataset, host = subject.training().batches, dataset_of(subject.config), torch.device("cpu")
    assert isinstance(batches, TrainingBatches), "dataset= names images that lie on the device"
    images = iterations * subject.config.batch_size

    def rate(endless: Iterator, device: torch.device) -> float:
        return images / seconds_of(endless, iterations, device)

    candidates: Candidates = {"deepnets": partial(rate, _endless(batches), subject.device)}
    for workers in dict.fromkeys((0, arguments.workers)):
        loader = plain.loader(task_of(subject, batches.split, dataset.pad, dataset.flip, workers))
        candidates[f"torchvision, {workers} workers"] = partial(rate, plain.forever(loader), host)
    return [
        Figures(
            "data pipeline",
            "images/s",
            in_turns(candidates, arguments.repeats, SETTLE_SECONDS if arguments.workers else 0),
        )
    ]


def _endless(batches: TrainingBatches) -> Iterator:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1
