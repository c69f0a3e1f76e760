"""Images/s, summed over the runs of a random search, trained as one batched network and one by one.

The ratios of trials per minute are the same. In the precision that training takes here, and in float32.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch

from deepnets.bench.figures import Figures, in_turns, seconds_of
from deepnets.bench.subject import add_subject, chosen, subject_of, words_of
from deepnets.command import count, counts
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.stack import Stack, fit_together

# None diverges; all have one activation, as the rows of a stack do.
SEARCH = ["sweep=srivastava2015_fig1_highway", "model.layer=[linear,relu]", "optimizer.lr=0.01"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "highway_fc50", dataset="mnist")
    parser.add_argument("--rows", type=counts, default="10,32", help="how many at once (default: 10,32)")
    parser.add_argument("--iterations", type=count, default=40, help="of all rows together, a repeat (default: 40)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train by turns."""
    arguments.overrides = [*SEARCH, *arguments.overrides]
    subject, words = chosen(arguments), words_of(arguments)
    precisions = dict.fromkeys((subject.precision, torch.float32))
    return [_in(precision, subject.device, words, arguments) for precision in precisions]


def _in(precision: torch.dtype, device: torch.device, words: list[str], arguments: argparse.Namespace) -> Figures:
    def steps(rows: int) -> Iterator:
        configs = [subject_of([*words, f"setting={row}", f"seed={row}"]).config for row in range(rows)]
        trainings = [prepare(config, device, precision) for config in configs]
        return fit(trainings[0]) if rows == 1 else fit_together(Stack(trainings))

    def speed(batches: Iterator, rows: int, images: int) -> float:
        iterations = max(1, arguments.iterations // rows)
        return iterations * rows * images / seconds_of(batches, iterations, device)

    images = subject_of([*words, "setting=0"]).config.batch_size
    candidates = {
        "one by one" if rows == 1 else f"{rows} at once": partial(speed, steps(rows), rows, images)
        for rows in dict.fromkeys((*arguments.rows, 1))
    }
    name = str(precision).removeprefix("torch.")
    return Figures(f"rows of {arguments.model}, {name}", "images/s", in_turns(candidates, arguments.repeats))
