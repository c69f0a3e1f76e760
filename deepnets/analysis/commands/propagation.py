"""Signals over depth beside mean-field theory, and singular values of the Jacobian (Brock et al. 2021; Xiao 2018).

Channel statistics and correlations are those of a batch with its own statistics, as in training; the Jacobian is that
of one image from the first unit's input to the last unit's output, with stored statistics. Theory is drawn for nets
without batch normalisation, of ReLU or tanh.
"""

import argparse
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from deepnets.analysis.commands.outcome import Outcome
from deepnets.analysis.commands.subject import Subject, one_batch, subject_of
from deepnets.analysis.gradients import with_batch_statistics
from deepnets.analysis.meanfield import Moments, Phi, critical_weight_variance, theory_of, variances
from deepnets.analysis.propagation import Propagation, propagation, singular_values
from deepnets.analysis.walk import Walk, walk_of
from deepnets.command import number
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, GREY, line, mark_stages, new_figure

NEAR = 0.02  # chi that is this near to 1 counts as critical


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images of the one batch (default: 128)")
    parser.add_argument(
        "--jacobian", type=number, default=1024, help="values of the last unit's output, at most (default: 1024)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.images < 2:
        raise UserError(f"--images {arguments.images}: correlations need at least 2")
    subject = subject_of(arguments)
    x, _ = one_batch(subject, arguments.images)
    found = propagation(walk_of(with_batch_statistics(subject.model)), x)
    walk = walk_of(subject.settled())
    theory = theory_of(walk, found.start)
    values, size = singular_values(walk_of(subject.model.double()), x[:1].double(), arguments.jacobian)
    with Outcome("propagation", subject.folder, arguments) as outcome:
        outcome.table("units", _columns(found, walk, theory))
        outcome.table("singular", {"index": np.arange(1, len(values) + 1), "value": values})
        outcome.figure("units", _figure(found, walk, theory, values))
        _finding(outcome, subject, found, walk, theory, values, size)


def _columns(found: Propagation, walk: Walk, theory: list[Moments] | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "unit": range(1, len(walk) + 1),
        "stage": [stage + 1 for stage in walk.stages],
        "squared_channel_mean": found.squared_mean,
        "channel_variance": found.variance,
        "branch_variance": found.branch_variance,
        "length": [moments.length for moments in found.moments],
        "correlation": [moments.correlation for moments in found.moments],
    }
    if theory:
        columns["length_theory"] = [moments.length for moments in theory]
        columns["correlation_theory"] = [moments.correlation for moments in theory]
        columns["growth_theory"] = [moments.growth for moments in theory]
    return columns


def _finding(
    outcome: Outcome,
    subject: Subject,
    found: Propagation,
    walk: Walk,
    theory: list[Moments] | None,
    values: np.ndarray,
    size: int,
) -> None:
    first, last = found.moments[0], found.moments[-1]
    outcome.finding(
        f"{subject.name}: mean square of the signal {first.length:.3g} behind the first of {len(walk)} units, "
        f"{last.length:.3g} behind the last; correlation of two images {found.start.correlation:.3f} in front, "
        f"{last.correlation:.3f} behind all",
        length=[moments.length for moments in found.moments],
        correlation=[moments.correlation for moments in found.moments],
    )
    if theory:
        chi, critical = theory[-1].growth ** (1 / len(walk)), _critical(walk)
        phase = "critical" if abs(chi - 1) < NEAR else "ordered" if chi < 1 else "chaotic"
        outcome.finding(
            f"{subject.name}: by mean-field theory a perturbation's square grows by {chi:.3f} a unit, which is {phase} "
            f"(variance of weights times fan-in {critical['weight_variance']:.3f}, critical "
            f"{critical['critical_weight_variance']:.3f}); behind all units length {theory[-1].length:.3g} and "
            f"correlation {theory[-1].correlation:.3f}",
            chi=chi,
            length_theory=theory[-1].length,
            correlation_theory=theory[-1].correlation,
            **critical,
        )
    is_rounding = values[-1] <= len(values) * np.finfo(float).eps * values[0]
    spread = "beyond rounding" if is_rounding else f"{values[0] / values[-1]:.3g}"
    outcome.finding(
        f"{subject.name}: {len(values)} singular values of the units' Jacobian at a {size}x{size} image, root mean "
        f"square {np.sqrt(np.mean(values**2)):.3g}, from {values[0]:.3g} to {values[-1]:.3g}, "
        f"condition number {spread}",
        greatest=values[0],
        median=np.median(values),
        least=values[-1],
    )


def _critical(walk: Walk) -> dict[str, float]:
    """Of the last unit's last weights, the variances and the critical variance of the theory."""
    parts = list(walk.units[-1].modules())
    weights = [part for part in parts if isinstance(part, nn.Linear | nn.Conv2d)][-1]
    weight, bias = variances(weights.weight, weights.bias)
    phi: Phi = nn.ReLU if any(isinstance(part, nn.ReLU) for part in parts) else nn.Tanh
    critical = critical_weight_variance(phi, bias)
    return {"weight_variance": weight, "bias_variance": bias, "critical_weight_variance": critical}


def _figure(found: Propagation, walk: Walk, theory: list[Moments] | None, values: np.ndarray) -> Figure:
    figure = new_figure(5, 10)
    grid = figure.subplots(2, 3)
    (mean, variance, branch), (length, correlation, spectrum) = grid
    for axes, y, title in (
        (mean, found.squared_mean, "squared channel mean"),
        (variance, found.variance, "channel variance"),
        (branch, found.branch_variance, "channel variance of the branch"),
        (length, [moments.length for moments in found.moments], "mean square of the signal"),
        (correlation, [moments.correlation for moments in found.moments], "correlation of two images"),
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
    if min(m.length for m in found.moments) > 0 and np.ptp(np.log10([m.length for m in found.moments])) > 1:
        length.set_yscale("log")
    shown = np.maximum(values, values[0] * 1e-12) if values[0] > 0 else values + 1
    spectrum.hist(np.log10(shown), bins=40, color=COLOURS[0])
    spectrum.axvline(0, color=GREY, linewidth=0.8, linestyle="--")
    spectrum.set(title="singular values of the Jacobian", xlabel="log10 of the value", ylabel="how many")
    return figure
