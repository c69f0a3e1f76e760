"""Compares each unit's gradient in float32 with bfloat16, and with float32 after a small change of the input.

Networks are measured at initialisation and, for a run folder, after training.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import fresh_network, one_batch, subject_of
from deepnets.analysis.gradients import BATCH
from deepnets.analysis.walk import Walk, walk_of, with_batch_statistics
from deepnets.command import number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, line, mark_stages, new_figure

BF16, STREAM = "bfloat16", "bfloat16, float32 stream"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images in the batch (default: 128)")
    parser.add_argument(
        "--perturbation",
        type=float,
        default=1e-3,
        help="size of the input's change, relative to its norm (default: 1e-3)",
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the perturbation (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding.

    Raises:
        UserError: the perturbation is not positive.
    """
    if not arguments.perturbation > 0:
        raise UserError(f"--perturbation {arguments.perturbation}: must be above 0")
    subject = subject_of(arguments)
    with Output("precision", subject.folder, arguments) as output:
        x, labels = one_batch(subject, arguments.images)
        times = {"initial": fresh_network(subject.config, {}, subject.config.seed).to(subject.device)}
        if subject.trained:
            times["trained"] = subject.model
        by_time: dict[str, Mapping[str, Agreement]] = {}
        for time, model in times.items():
            by_time[time] = _measured(model, x, labels, arguments)
            parts = [f"{name} {one.cosine:.3f} ({one.difference:.3f})" for name, one in by_time[time].items()]
            output.finding(
                f"{subject.name}, {'at initialisation' if time == 'initial' else 'trained'}: cosine (and relative "
                f"difference) of the gradient with the float32 gradient: {'; '.join(parts)}",
                time=time,
                **{name: [one.cosine, one.difference] for name, one in by_time[time].items()},
            )
        rows = [
            (time, name, unit + 1, one.cosines[unit], one.differences[unit])
            for time, measured in by_time.items()
            for name, one in measured.items()
            for unit in range(len(one.cosines))
        ]
        output.rows("units", ("time", "arithmetic", "unit", "cosine", "difference"), rows)
        output.figure("units", _figure(by_time, walk_of(subject.model)))


@dataclass(frozen=True)
class Agreement:
    """The cosine of a gradient g and a reference r, g r / (|g| |r|), and the relative difference |g - r| / |r|.

    `cosines` and `differences` have an entry per unit, `cosine` and `difference` are over all parameters. The
    cosine is NaN if g or r is 0; the difference is not finite if r is 0.
    """

    cosines: np.ndarray
    differences: np.ndarray
    cosine: float
    difference: float


def _measured(model: nn.Module, x: Tensor, labels: Tensor, arguments: argparse.Namespace) -> Mapping[str, Agreement]:
    model = with_batch_statistics(model).to(memory_format=torch.channels_last).requires_grad_(True)
    generator = torch.Generator().manual_seed(arguments.seed)
    changed = perturbed(x, arguments.perturbation, generator)
    reference = parameter_gradients(model, x, labels, torch.float32)
    gradients = {BF16: parameter_gradients(model, x, labels, torch.bfloat16)}
    if hasattr(model, "stem"):  # a network of the user's own may have none
        gradients[STREAM] = parameter_gradients(model, x, labels, torch.bfloat16, float32_stream=True)
    gradients |= {
        f"float32, input changed by {arguments.perturbation:g}": parameter_gradients(
            model, changed, labels, torch.float32
        ),
    }
    return {name: agreement(model, walk_of(model), one, reference) for name, one in gradients.items()}


def _figure(by_time: Mapping[str, Mapping[str, Agreement]], walk: Walk) -> Figure:
    """Draw the cosine by unit: a panel for each time, a line for each gradient."""
    figure = new_figure(1 + 2.4 * len(by_time), 7.5)
    panels = figure.subplots(len(by_time), 1, squeeze=False)[:, 0]
    for axes, (time, measured) in zip(panels, by_time.items(), strict=True):
        for (name, one), color in zip(measured.items(), COLOURS, strict=False):
            line(axes, one.cosines, color=color, label=name)
        axes.set(ylabel="cosine with float32", xlabel="unit", title=time, ylim=(min(0, axes.get_ylim()[0]), 1.02))
        mark_stages(axes, [walk.stages])
        axes.legend(fontsize=7)
    return figure


def parameter_gradients(
    model: nn.Module, x: Tensor, labels: Tensor, precision: torch.dtype, *, float32_stream: bool = False
) -> list[Tensor]:
    """Compute dL/dw of each parameter as training does; L is the mean cross-entropy of images x (N, C, H, W).

    More than BATCH images are split into batches, whose gradients are added. With `float32_stream` the stem's output is
    cast to float32 under autocast, so the units' sums stay float32; the branches still compute in bfloat16.
    """
    with ExitStack() as held:
        if float32_stream:
            stem = model.get_submodule("stem")
            held.callback(stem.register_forward_hook(lambda module, given, output: output.float()).remove)
        count = ceil(len(x) / BATCH)
        gradients = []
        for images, targets in zip(x.tensor_split(count), labels.tensor_split(count), strict=True):
            with torch.enable_grad():
                with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
                    logits = model(images).float()
                loss = cross_entropy(logits, targets) * (len(targets) / len(labels))
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        return [torch.stack(parts).sum(0) for parts in zip(*gradients, strict=True)]


def agreement(model: nn.Module, walk: Walk, gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> Agreement:
    """Measure how far the `gradients` of all parameters of `model` agree with the `reference`, by unit and over all."""
    index = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    units = [[index[id(parameter)] for parameter in unit.parameters()] for unit in walk.units]
    parts = [_compared(gradients, reference, places) for places in [*units, range(len(reference))]]
    cosines, differences = np.array(parts).T
    return Agreement(cosines[:-1], differences[:-1], cosines[-1], differences[-1])


def perturbed(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to x; its norm is `share` times the norm of x."""
    noise = torch.randn(x.shape, generator=generator).to(x)
    return x + share * x.norm() / noise.norm() * noise


def _compared(gradients: Sequence[Tensor], reference: Sequence[Tensor], places: Sequence[int]) -> tuple[float, float]:
    g, r = (torch.cat([part[place].flatten() for place in places]).double() for part in (gradients, reference))
    return (g @ r / (g.norm() * r.norm())).item(), ((g - r).norm() / r.norm()).item()
