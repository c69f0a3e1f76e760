"""Gradients of a network along lines between two images, beside noise; resumes where it was killed."""

import argparse
from functools import partial
from itertools import cycle

import numpy as np
import torch
from matplotlib.figure import Figure

from deepnets.analysis import shattering
from deepnets.analysis.commands.outcome import Outcome, Saved, tracked
from deepnets.analysis.commands.subject import Subject, names_apart, one_batch, subjects_of
from deepnets.monitor.style import COLOURS, GREY, mean_and_deviation, new_figure

LAGS = 15


def measure(arguments: argparse.Namespace) -> None:
    """Measure the subjects, write the files and print the finding."""
    subjects = subjects_of(arguments)
    labels = names_apart([subject.name for subject in subjects])
    with Outcome("shattering", subjects[0].folder, arguments) as outcome:
        with outcome.saved(*(subject.settled() for subject in subjects)) as saved:
            found = [_gradients(subject, arguments, saved) for subject in subjects]
        _write(subjects, labels, dict(zip(labels, found, strict=True)), arguments, outcome)


def _write(
    subjects: list[Subject],
    labels: list[str],
    gradients: dict[str, np.ndarray],
    arguments: argparse.Namespace,
    outcome: Outcome,
) -> None:
    """Set the gradients beside noise: tables, figure and findings."""
    generator = torch.Generator().manual_seed(arguments.seed)
    noise = {
        "brown noise": shattering.brown_noise(arguments.draws, generator),
        "white noise": shattering.white_noise(arguments.draws, generator),
    }
    curves = {name: shattering.autocorrelation(g, LAGS) for name, g in (gradients | noise).items()}
    rows = [(name, draw, point, value) for name, g in gradients.items() for (draw, point), value in np.ndenumerate(g)]
    outcome.rows("line", ("net", "draw", "point", "gradient"), rows)
    outcome.rows(
        "line_autocorrelation",
        ("net", "lag", "mean", "deviation"),
        [
            (name, lag, curve[:, lag].mean(), curve[:, lag].std(ddof=1))
            for name, curve in curves.items()
            for lag in range(LAGS + 1)
        ],
    )
    outcome.figure("line", _figure(gradients, curves))
    at_one = {name: float(curve[:, 1].mean()) for name, curve in curves.items()}
    for subject, label in zip(subjects, labels, strict=True):
        outcome.finding(
            f"{subject.name}: autocorrelation of the gradient at lag 1 of {shattering.POINTS} points between two "
            f"images {at_one[label]:.3f}, at lag {LAGS} {curves[label][:, LAGS].mean():.3f}, means of "
            f"{arguments.draws} pairs; brown noise {at_one['brown noise']:.3f}, white noise "
            f"{at_one['white noise']:.3f} at lag 1",
            lag_1=at_one[label],
            autocorrelation=curves[label].mean(0),
            brown=at_one["brown noise"],
            white=at_one["white noise"],
        )


def _gradients(subject: Subject, arguments: argparse.Namespace, saved: Saved) -> np.ndarray:
    """Along a line for each draw, (draws, points): between images in turn, of the first one's label."""
    x, labels = one_batch(subject, 2 * arguments.draws)
    model = subject.settled()
    pairs = list(zip(x[0::2], x[1::2], labels[0::2].tolist(), strict=False))
    found = []
    for number, pair in enumerate(tracked(pairs, f"lines of {subject.name}")):
        found.append(
            saved.once(f"{subject.name} {number}", partial(shattering.line_gradients, model, *pair, shattering.POINTS))
        )
    return np.array(found)


def _figure(gradients: dict[str, np.ndarray], curves: dict[str, np.ndarray]) -> Figure:
    """The first line's gradients, and the autocorrelation of all."""
    figure = new_figure(1.5 + 1.2 * len(gradients), 7.5)
    grid = figure.add_gridspec(len(gradients), 2)
    right = figure.add_subplot(grid[:, 1])
    colours = cycle(COLOURS)
    for row, (name, g) in enumerate(gradients.items()):
        left, color = figure.add_subplot(grid[row, 0]), next(colours)
        left.plot(np.linspace(0, 1, g.shape[1]), g[0], color=color, linewidth=0.7)
        left.set(title=name, ylabel="df/dt")
        mean_and_deviation(right, curves[name], label=name, color=color)
    left.set_xlabel("from one image to the other")
    for name, style in (("brown noise", "--"), ("white noise", ":")):
        mean_and_deviation(right, curves[name], label=name, color=GREY, linestyle=style)
    right.set(xlabel="lag", ylabel="autocorrelation (mean ± s.d.)", ylim=(-0.45, 1.05))
    right.legend(fontsize=7)
    return figure
