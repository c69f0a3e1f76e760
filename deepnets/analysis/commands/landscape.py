"""Loss surfaces around networks, or the loss along the line between two (Li et al. 2018).

Two random directions, normalised filter by filter, span a surface. At each point, batch normalisation uses the
statistics of the images that are scored. Everything is computed in float32, even for runs in bfloat16, because bfloat16
rounds by more than a surface bends. A killed analysis resumes by the same command.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from deepnets.analysis.commands.output import Output, Saved
from deepnets.analysis.commands.subject import Subject, names_apart, one_batch, subjects_of
from deepnets.analysis.walk import with_batch_statistics
from deepnets.command import number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, line, new_figure
from deepnets.system.printing import with_progress

Weights = Mapping[str, Tensor]  # parameters by name
Steps = tuple[tuple[float, Weights], ...]
LEVELS = 12  # contour levels


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--line", action="store_true", help="measure the loss on the line between two run folders")
    parser.add_argument(
        "--points",
        type=number,
        default=25,
        help="odd number of points on each axis of a surface; a line has about twice as many (default: 25)",
    )
    parser.add_argument(
        "--range",
        type=float,
        default=1.0,
        help="how far a surface extends each way, in units of the filters' norms; past each net, a line extends by "
        "half this share of their distance (default: 1)",
    )
    parser.add_argument("--images", type=number, default=250, help="use this many random images (default: 250)")
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="source of the images (default: train)"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the directions (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.points < 3 or arguments.points % 2 == 0 or not arguments.range > 0:
        raise UserError(
            f"--points {arguments.points} --range {arguments.range:g}: the points must be an odd number of at least 3, "
            "and the range above 0"
        )
    subjects = subjects_of(arguments)
    if arguments.line and len(subjects) != 2:
        raise UserError(f"--line: joins two run folders, but {len(subjects)} given")
    weights = [dict(subject.model.named_parameters()) for subject in subjects]
    across = difference(*weights) if arguments.line else None
    models = [subject.model for subject in subjects]
    with Output("landscape", subjects[0].folder, arguments) as output, output.saved(*models) as saved:
        if across is None:
            _surfaces(subjects, arguments, output, saved)
        else:
            _line(subjects, across, arguments, output, saved)


def _surfaces(subjects: list[Subject], arguments: argparse.Namespace, output: Output, saved: Saved) -> None:
    places = np.linspace(-arguments.range, arguments.range, arguments.points)
    losses, rows = {}, []
    labels = names_apart(subjects)
    for subject, label in zip(subjects, labels, strict=True):
        generator = torch.Generator().manual_seed(arguments.seed)
        weights = dict(subject.model.named_parameters())
        first, second = (random_direction(weights, generator) for _ in range(2))
        grid: list[Steps] = [((a, first), (b, second)) for b in places for a in places]
        scores = _scores(subject, grid, arguments, saved)
        rows += [(subject.name, a, b, *score) for ((a, _), (b, _)), score in zip(grid, scores, strict=True)]
        surface = losses[label] = scores[:, 0].reshape(len(places), -1)
        centre, edge = surface[len(places) // 2, len(places) // 2], _edge(surface)
        bent = nonconvexity(surface)
        output.finding(
            f"{subject.name}: loss {centre:.4g} at the net, {edge:.4g} at the edge in the median, "
            f"{np.nanmin(surface):.4g} at least and {np.nanmax(surface):.4g} at most; {100 * bent:.1f}% of second "
            f"differences along the axes are negative",
            centre=centre,
            edge=edge,
            least=np.nanmin(surface),
            greatest=np.nanmax(surface),
            nonconvexity=bent,
        )
    output.rows("surface", ("run", "x", "y", "loss", "error"), rows)
    output.figure("surface", _contours(places, losses))


def _edge(losses: np.ndarray) -> float:
    border = np.ones_like(losses, dtype=bool)
    border[1:-1, 1:-1] = False
    return float(np.median(losses[border]))


def _line(
    subjects: list[Subject], across: Weights, arguments: argparse.Namespace, output: Output, saved: Saved
) -> None:
    grid = np.linspace(-arguments.range / 2, 1 + arguments.range / 2, 2 * arguments.points - 1)
    places = np.unique(np.round([*grid, 0, 1], 12))  # both nets are always measured
    scores = _scores(subjects[0], [((float(place), across),) for place in places], arguments, saved)
    loss, error = scores.T
    ends = [loss[places == end].item() for end in (0, 1)]
    between = loss[(places > 0) & (places < 1)]
    barrier = float(between.max() - max(ends))
    output.table("line", {"place": places, "loss": loss, "error": error})
    figure = new_figure(4)
    upper, lower = figure.subplots(2, 1, sharex=True)
    line(upper, loss, places, color=COLOURS[0])
    line(lower, error, places, color=COLOURS[1])
    upper.set(ylabel="loss", yscale="log")
    lower.set(ylabel="error (%)", xlabel=f"0: {subjects[0].name}   1: {subjects[1].name}")
    output.figure("line", figure)
    output.finding(
        f"{subjects[0].name} to {subjects[1].name}: loss {ends[0]:.4g} and {ends[1]:.4g} at the ends, at most "
        f"{between.max():.4g} between them, {abs(barrier):.4g} {'above' if barrier > 0 else 'below'} the greater end",
        ends=ends,
        barrier=barrier,
    )


def _scores(subject: Subject, places: Sequence[Steps], arguments: argparse.Namespace, saved: Saved) -> np.ndarray:
    """Measure loss and error at every place, (places, 2)."""
    x, labels = one_batch(subject, arguments.images, arguments.split)
    model: nn.Module = with_batch_statistics(subject.model)
    weights = dict(model.named_parameters())
    scores = []
    for index, steps in enumerate(with_progress(places, f"loss around {subject.name}")):
        key = f"{subject.name} {index}"
        scores.append(saved.once(key, partial(score_at, model, weights, steps, x, labels)))
    return np.array(scores)


def _contours(places: np.ndarray, losses: dict[str, np.ndarray]) -> Figure:
    """Draw the surfaces side by side, with the same logarithmic levels."""
    logs = {label: np.log10(np.clip(surface, 1e-6, 1e6)) for label, surface in losses.items()}
    finite = np.concatenate([surface.ravel() for surface in logs.values()])
    levels = np.linspace(np.nanmin(finite), np.nanmax(finite) + 1e-9, LEVELS)
    figure = new_figure(3.6, 0.8 + 3.2 * len(logs))
    panels = figure.subplots(1, len(logs), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (label, surface) in zip(panels, logs.items(), strict=True):
        filled = axes.contourf(places, places, surface, levels=levels, cmap="viridis")
        axes.contour(places, places, surface, levels=levels, colors="white", linewidths=0.4, linestyles="solid")
        axes.plot(0, 0, "+", color="white")
        axes.set(title=label, xlabel="first direction", aspect="equal")
        axes.grid(visible=False)
    panels[0].set_ylabel("second direction")
    figure.colorbar(filled, ax=list(panels), label="loss", format=lambda log, _: f"{10**log:.3g}")
    return figure


def random_direction(weights: Weights, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw N(0, 1) for every weight, then scale each filter to its norm in the net; 0 for biases and normalisation.

    A filter holds a layer's weights for one output, at one index of the first dimension. Li et al. 2018, section 4.
    """
    directions = {}
    for name, weight in weights.items():
        drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
        if weight.dim() > 1:
            drawn_norms, norms = (each.flatten(1).norm(dim=1) for each in (drawn, weight))
            directions[name] = drawn * (norms / drawn_norms).view(-1, *[1] * (weight.dim() - 1))
        else:
            directions[name] = torch.zeros_like(weight)
    return directions


def difference(start: Weights, end: Weights) -> dict[str, Tensor]:
    """Return the direction in which a step of 1 leads from the net `start` to the net `end`.

    Raises:
        UserError: the two nets have different shapes.
    """
    if {name: weight.shape for name, weight in start.items()} != {name: weight.shape for name, weight in end.items()}:
        raise UserError("a line joins two runs of one network; these two have different layers")
    return {name: end[name] - weight for name, weight in start.items()}


def score_at(
    model: nn.Module, weights: Weights, steps: Sequence[tuple[float, Weights]], x: Tensor, labels: Tensor
) -> tuple[float, float]:
    """Compute mean cross-entropy and error (%) on the images x (N, C, H, W), after `steps` away from `weights`.

    Batch normalisation of `model` must be in training mode, so that it uses the statistics of these images at this
    point. If the net overflows, far away, the results are not finite.
    """
    moved = dict(weights)
    for size, direction in steps:
        moved = {name: weight + size * direction[name] for name, weight in moved.items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.inference_mode():
        logits = functional_call(model, (moved, buffers), x).float()
    wrong = (logits.argmax(1) != labels).double().mean().item()
    return cross_entropy(logits, labels).item(), 100 * wrong


def nonconvexity(losses: np.ndarray) -> float:
    """Return the share of second differences along rows and columns of a surface (points, points) that lie below 0."""
    differences = np.concatenate([np.diff(losses, 2, axis=axis).ravel() for axis in range(losses.ndim)])
    finite = differences[np.isfinite(differences)]
    return float((finite < -1e-6 * np.abs(losses[np.isfinite(losses)]).max()).mean()) if len(finite) else float("nan")
