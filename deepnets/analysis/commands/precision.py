"""Gradients in bfloat16 beside float32 by unit, and how far a small change of the input carries those in float32.

Measured at initialisation and, of a run folder, as trained.
"""

import argparse
from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import nn

from deepnets.analysis.commands.outcome import Outcome
from deepnets.analysis.commands.subject import one_batch, subject_of
from deepnets.analysis.commands.variants import fresh
from deepnets.analysis.gradients import with_batch_statistics
from deepnets.analysis.precision import Agreement, agreement, parameter_gradients, perturbed
from deepnets.analysis.walk import Walk, walk_of
from deepnets.command import number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, line, mark_stages, new_figure

BF16, STREAM = "bfloat16", "bfloat16, float32 stream"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images of the one batch (default: 128)")
    parser.add_argument(
        "--perturbation", type=float, default=1e-3, help="of the input, relative to its norm (default: 1e-3)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="of the perturbation (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding.

    Raises:
        UserError: the perturbation is not positive.
    """
    if not arguments.perturbation > 0:
        raise UserError(f"--perturbation {arguments.perturbation}: must be above 0")
    subject = subject_of(arguments)
    with Outcome("precision", subject.folder, arguments) as outcome:
        x, labels = one_batch(subject, arguments.images)
        times = {"initial": fresh(subject.config, {}, subject.config.seed).to(subject.device)}
        if subject.trained:
            times["trained"] = subject.model
        found: dict[str, Mapping[str, Agreement]] = {}
        for time, model in times.items():
            found[time] = _measured(model, x, labels, arguments)
            parts = [f"{name} {one.cosine:.3f} ({one.difference:.3f})" for name, one in found[time].items()]
            outcome.finding(
                f"{subject.name}, {'at initialisation' if time == 'initial' else 'trained'}: cosine (and relative "
                f"difference) of the gradient with that in float32: {'; '.join(parts)}",
                time=time,
                **{name: [one.cosine, one.difference] for name, one in found[time].items()},
            )
        rows = [
            (time, name, unit + 1, one.cosines[unit], one.differences[unit])
            for time, measured in found.items()
            for name, one in measured.items()
            for unit in range(len(one.cosines))
        ]
        outcome.rows("units", ("time", "what", "unit", "cosine", "difference"), rows)
        outcome.figure("units", _figure(found, walk_of(subject.model)))


def _measured(
    model: nn.Module, x: torch.Tensor, labels: torch.Tensor, arguments: argparse.Namespace
) -> Mapping[str, Agreement]:
    model = with_batch_statistics(model).to(memory_format=torch.channels_last).requires_grad_(True)
    generator = torch.Generator().manual_seed(arguments.seed)
    changed = perturbed(x, arguments.perturbation, generator)
    reference = parameter_gradients(model, x, labels, torch.float32)
    gradients = {
        BF16: parameter_gradients(model, x, labels, torch.bfloat16),
        STREAM: parameter_gradients(model, x, labels, torch.bfloat16, float32_stream=True),
        f"float32, input changed by {arguments.perturbation:g}": parameter_gradients(
            model, changed, labels, torch.float32
        ),
    }
    return {name: agreement(model, walk_of(model), one, reference) for name, one in gradients.items()}


def _figure(found: Mapping[str, Mapping[str, Agreement]], walk: Walk) -> Figure:
    """Cosine by unit: a panel for each time, a line for each gradient."""
    figure = new_figure(1 + 2.4 * len(found), 7.5)
    for axes, (time, measured) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items(), strict=True):
        for (name, one), color in zip(measured.items(), COLOURS, strict=False):
            line(axes, one.cosines, color=color, label=name)
        axes.set(ylabel="cosine with float32", xlabel="unit", title=time, ylim=(min(0, axes.get_ylim()[0]), 1.02))
        mark_stages(axes, [walk.stages])
        axes.legend(fontsize=7)
    return figure
