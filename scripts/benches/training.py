"""Images/s of the training part of an epoch, against the same network in a plain script."""

import argparse

from benches.figures import Figures
from benches.plain import plain_loader, plain_training
from benches.subject import add_subject, chosen
from benches.turns import in_turns, rate

from deepnets.fit import fit
from deepnets.run import build_model


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")
    parser.add_argument("--iterations", type=int, default=40, help="iterations a repeat (default: 40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train by turns."""
    subject = chosen(arguments)
    training = subject.training()
    size, iterations, device = subject.config.batch_size, arguments.iterations, subject.device
    ours = fit(training)
    candidates = {"deepnets": lambda: rate(ours, size, iterations, device)}
    for workers in (0, 2):
        batches = plain_loader(training.batches.split, size, workers)
        plain = plain_training(build_model(list(subject.overrides)), batches, device)
        candidates[f"plain script, {workers} workers"] = lambda plain=plain: rate(plain, size, iterations, device)
    return [Figures(f"training {arguments.model}", "images/s", in_turns(candidates, arguments.repeats))]
