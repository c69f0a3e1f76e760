"""Gradients over a grid of inputs, between brown and white noise (Balduzzi et al. 2017, Fig. 1 and 2).

Without SUBJECT, random nets of the paper's kinds are measured. With a SUBJECT, its gradients are measured along lines
between two images; a killed analysis of a subject resumes by the same command.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from deepnets.analysis import shattering
from deepnets.analysis.commands.output import Output, Saved, whole_numbers
from deepnets.analysis.commands.subject import Subject, names_apart, one_batch, subjects_of
from deepnets.analysis.shattering import GradientMoments, Kind, Net
from deepnets.command import count, number, whole
from deepnets.config.project import home
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, GREY, mean_and_deviation, new_figure, show_array
from deepnets.system.printing import with_progress

Key = tuple[Kind, float, int]  # a kind of net, its beta and depth

LAGS = 15
FAR_POINTS = 256  # inputs whose gradients are correlated with one another
LOWEST = 2e-4  # smaller correlations are lost in the noise of the draws; a triangle stands for them
NAMES = {"feedforward": "centred feed-forward", "resnet": "resnet", "resnet_centred": "resnet without BN"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; depths, beta and --literal concern only the paper's nets."""
    parser.add_argument(
        "--depths", default="2,4,10,24,50", help="depths of the nets in the curves (default: %(default)s)"
    )
    parser.add_argument(
        "--feedforward-depth", type=count, default=24, help="depth of the feed-forward net in the picture (default: 24)"
    )
    parser.add_argument(
        "--resnet-depth", type=count, default=50, help="depth of the resnets in the picture (default: 50)"
    )
    parser.add_argument("--beta", type=float, default=0.1, help="factor on the branches of resnets (default: 0.1)")
    parser.add_argument(
        "--draws", type=number, default=20, help="networks of each kind and depth, or pairs of images (default: 20)"
    )
    parser.add_argument("--literal", action="store_true", help="draw Fig. 1a also with the paper's biases N(0, 1/N)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the draws (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    depths = _depths(arguments)
    if arguments.subject:
        _measure_subjects(arguments)
    else:
        _measure_drawn_nets(arguments, depths)


def _depths(arguments: argparse.Namespace) -> list[int]:
    if arguments.draws < 2:
        raise UserError(f"--draws {arguments.draws}: must be at least 2, for a standard deviation")
    return sorted(set(whole_numbers("--depths", arguments.depths)))


def _measure_drawn_nets(arguments: argparse.Namespace, depths: Sequence[int]) -> None:
    """Measure random nets: gradients over a grid, their autocorrelation, and their correlation at far inputs."""
    started = time.monotonic()
    arguments.output = arguments.output or home() / "outputs" / "analysis" / "shattering"
    pictures, curves, noise, correlations = _measured(arguments, depths)
    seconds = time.monotonic() - started
    with Output("shattering", arguments.output, arguments) as output:
        x = shattering.grid()[:, 0].numpy()
        output.table("gradients", {"x": x.astype(float)} | pictures)
        lines: list[tuple[Any, Any, Any, np.ndarray]] = [(*key, curve) for key, curve in curves.items()]
        lines += [(name, "", "", curve) for name, curve in noise.items()]
        rows = [
            (net, beta, depth, lag, float(curve[:, lag].mean()), float(curve[:, lag].std(ddof=1)))
            for net, beta, depth, curve in lines
            for lag in range(LAGS + 1)
        ]
        output.rows("autocorrelation", ("net", "beta", "depth", "lag", "mean", "deviation"), rows)
        theory = [shattering.THEORY[kind](depth, beta) for kind, beta, depth in correlations]
        keys = zip(*correlations, strict=True)
        columns: dict[str, Sequence[Any]] = dict(zip(("net", "beta", "depth"), keys, strict=True))
        for name in ("variance", "covariance", "correlation"):
            columns[name] = [getattr(moments, name) for moments in correlations.values()]
            columns[f"{name}_theory"] = [getattr(moments, name) for moments in theory]
        output.table("correlation", columns)
        output.figure("gradients", _pictures_figure(x, pictures))
        output.figure("autocorrelation", _autocorrelations_figure(curves, noise))
        output.figure("correlation", _correlations_figure(correlations))
        deepest = max(depths)
        first = {(kind, beta): curve[:, 1].mean() for (kind, beta, depth), curve in curves.items() if depth == deepest}
        beside = {name: curve[:, 1].mean() for name, curve in noise.items()}
        residual = [f", resnet with beta {beta:g} {r:.2f}" for (kind, beta), r in first.items() if kind == "resnet"]
        output.finding(
            f"autocorrelation of the gradient at lag 1, mean of {arguments.draws} nets of {deepest} layers: centred "
            f"feed-forward {first['feedforward', 1.0]:.2f}{''.join(residual)}; looks-linear nets of "
            f"{arguments.resnet_depth} layers {beside['looks-linear']:.2f}; white noise {beside['white']:.2f}, brown "
            f"noise {beside['brown']:.2f} ({seconds:.0f} s)",
            depth=deepest,
            **{f"{kind}_{beta:g}": mean for (kind, beta), mean in first.items()},
            **{name.replace("-", "_"): mean for name, mean in beside.items()},
        )


def _measured(
    arguments: argparse.Namespace, depths: Sequence[int]
) -> tuple[dict[str, np.ndarray], dict[Key, np.ndarray], dict[str, np.ndarray], dict[Key, GradientMoments]]:
    """Return gradients over the grid, autocorrelations of nets and of noise, and moments at far inputs."""
    generator, draws, grid = torch.Generator().manual_seed(arguments.seed), arguments.draws, shattering.grid()

    def gradients(net: Net, inputs: torch.Tensor = grid, count: int = draws) -> np.ndarray:
        return shattering.gradients(net, inputs, count, generator)

    brown, white = shattering.brown_noise(draws, generator), shattering.white_noise(draws, generator)
    looks_linear = Net("looks_linear", arguments.resnet_depth)
    pictured = {
        "one layer, biases N(0, 1)": Net("one_layer"),  # with the paper's N(0, 1 / N) most of the grid has no kink
        f"centred feed-forward, {arguments.feedforward_depth} layers": Net("feedforward", arguments.feedforward_depth),
        f"resnet, {arguments.resnet_depth} layers": Net("resnet", arguments.resnet_depth, arguments.beta),
        f"looks-linear, {arguments.resnet_depth} layers": looks_linear,
    }
    if arguments.literal:
        pictured["one layer, biases N(0, 1/N)"] = Net("one_layer_literal")
    pictures = {name: gradients(net, count=1)[0, :, 0].astype(np.float64) for name, net in pictured.items()}
    pictures |= {"brown noise": brown[0], "white noise": white[0]}
    residual: list[tuple[Kind, float]] = [("resnet", beta) for beta in dict.fromkeys((1.0, arguments.beta))]
    by_lag: list[tuple[Kind, float]] = [("feedforward", 1.0), *residual]
    by_depth: list[tuple[Kind, float]] = [("feedforward", 1.0), ("resnet_centred", 1.0), *residual]
    curves = {
        (kind, beta, depth): shattering.autocorrelation(gradients(Net(kind, depth, beta))[..., 0], LAGS)
        for kind, beta in by_lag
        for depth in depths
    }
    noise = {name: shattering.autocorrelation(g, LAGS) for name, g in (("brown", brown), ("white", white))}
    noise["looks-linear"] = shattering.autocorrelation(gradients(looks_linear)[..., 0], LAGS)
    far = shattering.far_inputs(FAR_POINTS, generator)
    correlations = {
        (kind, beta, depth): shattering.moments(gradients(Net(kind, depth, beta), far))
        for kind, beta in by_depth
        for depth in depths
    }
    return pictures, curves, noise, correlations


def _pictures_figure(x: np.ndarray, pictures: Mapping[str, np.ndarray]) -> Figure:
    figure = new_figure(3.9, 2.1 * len(pictures))
    upper, lower = figure.subplots(2, len(pictures), squeeze=False)
    for index, (name, g) in enumerate(pictures.items()):
        is_net = "noise" not in name
        top, bottom = upper[index], lower[index]
        top.plot(x if is_net else np.arange(len(g)), g, color=COLOURS[0] if is_net else GREY, linewidth=0.7)
        top.set(title=name, xlabel="x" if is_net else "step")
        top.ticklabel_format(useOffset=False)
        if np.ptp(g) < 1e-5 * np.abs(g).max():  # do not zoom into rounding errors
            top.set_ylim(sorted((0, 2 * g.mean())))
            top.text(0.5, 0.75, "constant", transform=top.transAxes, ha="center")
            bottom.text(0.5, 0.5, "no variance", transform=bottom.transAxes, ha="center", va="center")
            bottom.set_facecolor("0.9")
        else:
            extent = (x[0], x[-1], x[-1], x[0]) if is_net else (0, len(g), len(g), 0)
            show_array(bottom, shattering.covariance_picture(g), cmap="magma", vmin=0, vmax=3, extent=extent)
        bottom.set(xticks=[], yticks=[])
        bottom.set_box_aspect(1)
    upper[0].set_ylabel("df/dx")
    lower[0].set_ylabel("covariance, absolute")
    return figure


def _autocorrelations_figure(curves: Mapping[Key, np.ndarray], noise: Mapping[str, np.ndarray]) -> Figure:
    panels: dict[str, dict[str, np.ndarray]] = {}
    for (kind, beta, depth), curve in curves.items():
        name = "centred feed-forward" if kind == "feedforward" else f"resnet, β = {beta:g}"
        panels.setdefault(name, {})[str(depth)] = curve
    panels["noise, and a looks-linear net"] = dict(noise)
    figure = new_figure(2.9, 2.6 * len(panels))
    for axes, (name, lines) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for (label, curve), color in zip(lines.items(), cycle(COLOURS), strict=False):
            mean_and_deviation(axes, curve, label=label, color=color)
        axes.set(title=name, xlabel="lag", xlim=(0, LAGS), ylim=(-0.45, 1.05))
        axes.axhline(0, color=GREY, linewidth=0.5)
        axes.legend(
            title=None if "noise" in name else "layers", fontsize=7, title_fontsize=7, loc="lower left", ncols=2
        )
    figure.axes[0].set_ylabel("autocorrelation (mean ± s.d.)")
    return figure


def _correlations_figure(correlations: Mapping[Key, GradientMoments]) -> Figure:
    figure = new_figure(3.4, 5.5)
    axes = figure.subplots()
    families = list(dict.fromkeys((kind, beta) for kind, beta, _ in correlations))
    depths = sorted({depth for _, _, depth in correlations})
    every = np.arange(1, max(depths) + 1)
    for index, ((kind, beta), color) in enumerate(zip(families, COLOURS, strict=False)):
        label = NAMES[kind] + (f", β = {beta:g}" if kind != "feedforward" else "")
        measured = np.array([correlations[kind, beta, depth].correlation for depth in depths])
        is_lost = measured < LOWEST
        axes.plot(np.array(depths)[~is_lost], measured[~is_lost], "o", color=color, markersize=4)
        lost = np.array(depths)[is_lost]
        size = 5 + 2 * index  # so that all triangles in one place are seen
        axes.plot(lost, [LOWEST] * len(lost), "v", color=color, fillstyle="none", markersize=size, clip_on=False)
        theory = [shattering.THEORY[kind](int(depth), beta).correlation for depth in every]
        axes.plot(every, theory, color=color, linewidth=1, label=label)
    axes.set(xlabel="depth L", ylabel="correlation at two far inputs", xscale="log", yscale="log", ylim=(LOWEST, 1.3))
    axes.set_xticks(depths, [str(depth) for depth in depths], minor=False)
    axes.minorticks_off()
    title = f"dots: measured\n(triangles: below {LOWEST:g})\nlines: theory"
    axes.legend(fontsize=7, loc="lower left", title=title, title_fontsize=7)
    return figure


def _measure_subjects(arguments: argparse.Namespace) -> None:
    """Measure the subjects' gradients along lines between two images, and compare them with noise."""
    subjects = subjects_of(arguments)
    labels = names_apart(subjects)
    with Output("shattering", subjects[0].folder, arguments) as output:
        with output.saved(*(subject.settled() for subject in subjects)) as saved:
            gradients = [_line_gradients(subject, arguments, saved) for subject in subjects]
        _write_lines(subjects, labels, dict(zip(labels, gradients, strict=True)), arguments, output)


def _write_lines(
    subjects: Sequence[Subject],
    labels: Sequence[str],
    gradients: Mapping[str, np.ndarray],
    arguments: argparse.Namespace,
    output: Output,
) -> None:
    """Write tables, a figure and findings that compare the gradients, by subject label, with noise."""
    generator = torch.Generator().manual_seed(arguments.seed)
    noise = {
        "brown noise": shattering.brown_noise(arguments.draws, generator),
        "white noise": shattering.white_noise(arguments.draws, generator),
    }
    curves = {name: shattering.autocorrelation(g, LAGS) for name, g in {**gradients, **noise}.items()}
    rows = [(name, draw, point, value) for name, g in gradients.items() for (draw, point), value in np.ndenumerate(g)]
    output.rows("line", ("net", "draw", "point", "gradient"), rows)
    output.rows(
        "line_autocorrelation",
        ("net", "lag", "mean", "deviation"),
        [
            (name, lag, curve[:, lag].mean(), curve[:, lag].std(ddof=1))
            for name, curve in curves.items()
            for lag in range(LAGS + 1)
        ],
    )
    output.figure("line", _lines_figure(gradients, curves))
    at_one = {name: float(curve[:, 1].mean()) for name, curve in curves.items()}
    for subject, label in zip(subjects, labels, strict=True):
        output.finding(
            f"{subject.name}: autocorrelation of the gradient at lag 1 of {shattering.POINTS} points between two "
            f"images {at_one[label]:.3f}, at lag {LAGS} {curves[label][:, LAGS].mean():.3f}, means of "
            f"{arguments.draws} pairs; brown noise {at_one['brown noise']:.3f}, white noise "
            f"{at_one['white noise']:.3f} at lag 1",
            lag_1=at_one[label],
            autocorrelation=curves[label].mean(0),
            brown=at_one["brown noise"],
            white=at_one["white noise"],
        )


def _line_gradients(subject: Subject, arguments: argparse.Namespace, saved: Saved) -> np.ndarray:
    """Compute the gradients of a logit along a line for each draw, (draws, points).

    A line joins two random images; the logit is the one of the first image's label.
    """
    x, labels = one_batch(subject, 2 * arguments.draws)
    model = subject.settled()
    pairs = list(zip(x[0::2], x[1::2], labels[0::2].tolist(), strict=False))
    lines = []
    for index, pair in enumerate(with_progress(pairs, f"lines of {subject.name}")):
        one_line = partial(shattering.line_gradients, model, *pair, shattering.POINTS)
        lines.append(saved.once(f"{subject.name} {index}", one_line))
    return np.array(lines)


def _lines_figure(gradients: Mapping[str, np.ndarray], curves: Mapping[str, np.ndarray]) -> Figure:
    """Draw the gradients along each subject's first line, and the autocorrelation over all lines."""
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
