"""Compares signals over depth with mean-field theory, and computes singular values of the Jacobian.

The sources are Brock et al. 2021 and Xiao 2018.

Channel statistics and correlations are measured on a batch that is normalised by its own statistics, as in training.
The Jacobian of the last unit's output with respect to the first unit's input is measured at the middle of one image,
with stored statistics. Theory is drawn for plain nets of ReLU or tanh without batch normalisation.
"""

import argparse
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import Subject, one_batch, subject_of
from deepnets.analysis.propagation import (
    Moments,
    Phi,
    Propagation,
    critical_weight_variance,
    propagation,
    singular_values,
    theory_of,
    variances,
)
from deepnets.analysis.walk import Walk, walk_of, with_batch_statistics
from deepnets.command import number
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, GREY, line, mark_stages, new_figure

NEAR = 0.02  # chi that is this near to 1 counts as critical


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images in the batch (default: 128)")
    parser.add_argument(
        "--jacobian",
        type=number,
        default=1024,
        help="crop the image until the last unit's output has at most this many values (default: 1024)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.images < 2:
        raise UserError(f"--images {arguments.images}: correlations need at least 2")
    subject = subject_of(arguments)
    x, _ = one_batch(subject, arguments.images)
    measured = propagation(walk_of(with_batch_statistics(subject.model)), x)
    walk = walk_of(subject.settled())
    theory = theory_of(walk, measured.start)
    values, size = singular_values(walk_of(subject.model.double()), x[:1].double(), arguments.jacobian)
    with Output("propagation", subject.folder, arguments) as output:
        output.table("units", _columns(measured, walk, theory))
        output.table("singular", {"index": np.arange(1, len(values) + 1), "value": values})
        output.figure("units", _figure(measured, walk, theory, values))
        _finding(output, subject, measured, walk, theory, values, size)


def _columns(measured: Propagation, walk: Walk, theory: list[Moments] | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "unit": range(1, len(walk) + 1),
        "stage": [stage + 1 for stage in walk.stages],
        "squared_channel_mean": measured.squared_mean,
        "channel_variance": measured.variance,
        "branch_variance": measured.branch_variance,
        "length": [moments.length for moments in measured.moments],
        "correlation": [moments.correlation for moments in measured.moments],
    }
    if theory:
        columns["length_theory"] = [moments.length for moments in theory]
        columns["correlation_theory"] = [moments.correlation for moments in theory]
        columns["growth_theory"] = [moments.growth for moments in theory]
    return columns


def _finding(
    output: Output,
    subject: Subject,
    measured: Propagation,
    walk: Walk,
    theory: list[Moments] | None,
    values: np.ndarray,
    size: int,
) -> None:
    first, last = measured.moments[0], measured.moments[-1]
    output.finding(
        f"{subject.name}: mean square of the signal {first.length:.3g} after the first of {len(walk)} units, "
        f"{last.length:.3g} after the last; correlation of two images {measured.start.correlation:.3f} before all "
        f"units, {last.correlation:.3f} after them",
        length=[moments.length for moments in measured.moments],
        correlation=[moments.correlation for moments in measured.moments],
    )
    if theory:
        chi, critical = theory[-1].growth ** (1 / len(walk)), _critical(walk)
        phase = "critical" if abs(chi - 1) < NEAR else "ordered" if chi < 1 else "chaotic"
        output.finding(
            f"{subject.name}: by mean-field theory each unit multiplies a perturbation's square by {chi:.3f}: {phase} "
            f"(variance of weights times fan-in {critical['weight_variance']:.3f}, critical "
            f"{critical['critical_weight_variance']:.3f}); after all units length {theory[-1].length:.3g} and "
            f"correlation {theory[-1].correlation:.3f}",
            chi=chi,
            length_theory=theory[-1].length,
            correlation_theory=theory[-1].correlation,
            **critical,
        )
    is_rounding = values[-1] <= len(values) * np.finfo(float).eps * values[0]
    spread = "unknown, since the least is a rounding error" if is_rounding else f"{values[0] / values[-1]:.3g}"
    output.finding(
        f"{subject.name}: {len(values)} singular values of the units' Jacobian at a {size}x{size} image, root mean "
        f"square {np.sqrt(np.mean(values**2)):.3g}, from {values[0]:.3g} to {values[-1]:.3g}, "
        f"condition number {spread}",
        greatest=values[0],
        median=np.median(values),
        least=values[-1],
    )


def _critical(walk: Walk) -> dict[str, float]:
    """Return sigma_w^2 and sigma_b^2 of the last unit's last layer, and the sigma_w^2 that is critical in theory."""
    parts = list(walk.units[-1].modules())
    weights = [part for part in parts if isinstance(part, nn.Linear | nn.Conv2d)][-1]
    weight, bias = variances(weights.weight, weights.bias)
    phi: Phi = nn.ReLU if any(isinstance(part, nn.ReLU) for part in parts) else nn.Tanh
    critical = critical_weight_variance(phi, bias)
    return {"weight_variance": weight, "bias_variance": bias, "critical_weight_variance": critical}


def _figure(measured: Propagation, walk: Walk, theory: list[Moments] | None, values: np.ndarray) -> Figure:
    figure = new_figure(5, 10)
    grid = figure.subplots(2, 3)
    (mean, variance, branch), (length, correlation, spectrum) = grid
    for axes, y, title in (
        (mean, measured.squared_mean, "squared channel mean"),
        (variance, measured.variance, "channel variance"),
        (branch, measured.branch_variance, "channel variance of the branch"),
        (length, [moments.length for moments in measured.moments], "mean square of the signal"),
        (correlation, [moments.correlation for moments in measured.moments], "correlation of two images"),
    ):
        line(axes, y, color=COLOURS[0], label="measured")
        axes.set(title=title, xlabel="unit")
        mark_stages(axes, [walk.stages])
        if axes is not length and min(y) >= 0:
            axes.set_ylim(0, 1.08 * max(y) or 1)
    if theory:
        for axes, y in ((length, [m.length for m in theory]), (correlation, [m.correlation for m in theory])):
            line(axes, y, color=COLOURS[1], label="mean-field theory", marker="", linestyle="--")
            axes.legend(fontsize=7)
    if min(m.length for m in measured.moments) > 0 and np.ptp(np.log10([m.length for m in measured.moments])) > 1:
        length.set_yscale("log")
    shown = np.maximum(values, values[0] * 1e-12) if values[0] > 0 else values + 1
    spectrum.hist(np.log10(shown), bins=40, color=COLOURS[0])
    spectrum.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    spectrum.set(title="singular values of the Jacobian", xlabel="log10 of the value", ylabel="how many")
    return figure
