"""The largest eigenvalues and the trace of the Hessian of the loss, with stored batch statistics.

Eigenvalues by Lanczos, the trace by Hutchinson's estimate, both by products of Hessian and vector: each costs about
seven evaluations of the images. What was killed resumes by the same command.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import numpy as np
from torch import Tensor

from deepnets.analysis.commands.outcome import Outcome, tracked
from deepnets.analysis.commands.subject import names_apart, subjects_of
from deepnets.analysis.curvature import Hessian, largest_eigenvalues, trace_samples
from deepnets.command import count, number, whole
from deepnets.data.batches import EvaluationBatches
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, line, new_figure

AT_ONCE = 250  # images in one double backward pass, which holds all activations


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--images", type=number, default=1000, help="images, drawn once (default: 1000)")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="default: train")
    parser.add_argument("--eigenvalues", type=count, default=3, help="how many of the largest (default: 3)")
    parser.add_argument("--tolerance", type=float, default=0.01, help="relative, of an eigenvalue (default: 0.01)")
    parser.add_argument("--draws", type=number, default=10, help="vectors of the trace's estimate (default: 10)")
    parser.add_argument("--seed", type=whole, default=0, help="of the vectors (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.draws < 2 or not arguments.tolerance > 0:
        raise UserError("--draws is at least 2, --tolerance above 0")
    subjects = subjects_of(arguments)
    labels = names_apart([subject.name for subject in subjects])
    rows = []
    with Outcome("curvature", subjects[0].folder, arguments) as outcome:
        figure = new_figure(3)
        axes = figure.subplots()
        with outcome.saved(*(subject.settled() for subject in subjects)) as saved:
            for subject, label, color in zip(subjects, labels, COLOURS * len(subjects), strict=False):
                batches = subject.batches(arguments.split, arguments.images)
                batches.batch_size = min(batches.batch_size, AT_ONCE)
                hessian = Hessian(subject.model, _Shown(batches, subject.name))
                values = saved.once(
                    f"{subject.name} eigenvalues",
                    partial(largest_eigenvalues, hessian, arguments.eigenvalues, arguments.tolerance, arguments.seed),
                )
                traces = [
                    saved.once(f"{subject.name} trace {draw}", partial(trace_samples, hessian, [draw]))[0]
                    for draw in range(arguments.seed, arguments.seed + arguments.draws)
                ]
                trace, deviation = np.mean(traces), np.std(traces, ddof=1) / np.sqrt(len(traces))
                rows += [(subject.name, "eigenvalue", rank, value) for rank, value in enumerate(values, 1)]
                rows += [(subject.name, "trace", draw, value) for draw, value in enumerate(traces, 1)]
                line(axes, values, label=label, color=color)
                outcome.finding(
                    f"{subject.name}: the largest eigenvalues of the Hessian are "
                    f"{', '.join(f'{value:.4g}' for value in values)}; its trace over {hessian.size:,} weights is "
                    f"{trace:.4g} (standard error {deviation:.2g} of {len(traces)} draws)",
                    eigenvalues=values,
                    trace=trace,
                    standard_error=deviation,
                )
        axes.set(xlabel="rank", ylabel="eigenvalue of the Hessian")
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        figure.legend(loc="outside upper left", fontsize=7)
        outcome.rows("spectrum", ("run", "what", "number", "value"), rows)
        outcome.figure("spectrum", figure)


class _Shown:
    """Batches with a bar for each pass over them."""

    def __init__(self, batches: EvaluationBatches, name: str) -> None:
        self.batches, self.name, self.passes = batches, name, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter(tracked(self.batches, f"product {self.passes} of {self.name}"))
