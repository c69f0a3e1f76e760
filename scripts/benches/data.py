"""Images/s of the data pipeline alone: shuffle, crop, flip, normalise."""

import argparse
from collections.abc import Iterator

import torch
from benches.figures import Figures
from benches.plain import plain_loader
from benches.subject import add_subject, chosen
from benches.turns import in_turns, rate

from deepnets.data.batches import TrainingBatches


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")
    parser.add_argument("--iterations", type=int, default=40, help="batches a repeat (default: 40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Make batches by turns."""
    subject = chosen(arguments)
    batches = subject.training().batches
    size, iterations, host = subject.config.batch_size, arguments.iterations, torch.device("cpu")
    ours = _endless(batches)
    candidates = {"deepnets": lambda: rate(ours, size, iterations, subject.device)}
    for workers in (0, 2):
        plain = plain_loader(batches.split, size, workers)
        candidates[f"torchvision, {workers} workers"] = lambda plain=plain: rate(plain, size, iterations, host)
    return [Figures("data pipeline", "images/s", in_turns(candidates, arguments.repeats))]


def _endless(batches: TrainingBatches) -> Iterator:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1
