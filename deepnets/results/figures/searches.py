"""What a random search found: the best trial of each depth, and the losses of all (Srivastava et al. 2015, Fig. 1)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from deepnets.monitor.style import look, name_lines, new_panels
from deepnets.results.figures.points import WIDE
from deepnets.results.search import LOSS, Net, final_loss
from deepnets.results.series import DEPTH, lines_over


def best_curves(nets: Mapping[str, Net]) -> Figure | None:
    """The training loss of each depth's best trial over the epochs, a panel for each kind of net (Fig. 1 left).

    None unless two depths were trained.
    """
    runs = {name: best for name, net in nets.items() if (best := net.example)}
    lines = lines_over(DEPTH, runs)
    if not lines:
        return None
    figure, panels = new_panels(3.2, 1, len(lines))
    depths = sorted({depth for places in lines.values() for depth in places})
    for axes, (name, places) in zip(panels, lines.items(), strict=True):
        for depth, net in places.items():
            epochs = [epoch for epoch in runs[net].history if LOSS in epoch]
            x, y = [epoch["epoch"] for epoch in epochs], [epoch[LOSS] for epoch in epochs]
            axes.plot(x, y, label=f"{depth:g} layers", **look(depths.index(depth)))
        axes.set(title=name, yscale="log")
        axes.locator_params(axis="x", integer=True)
    name_lines(figure, *panels)
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("training loss of the best trial", fontsize=9)
    return figure


def losses_over_depth(nets: Mapping[str, Net]) -> Figure | None:
    """Final training losses over depth: every trial that did not diverge a point, the mean of the best tenth a line
    (Fig. 1 right).

    None unless two depths were trained.
    """
    lines = lines_over(DEPTH, {name: net.trials[0] for name, net in nets.items() if net.example})
    if not lines:
        return None
    figure, (axes,) = new_panels(3.2)
    for index, (name, places) in enumerate(lines.items()):
        beside = 1 + 0.06 * (index - (len(lines) - 1) / 2)  # a factor, as the scale is logarithmic
        for depth, net in places.items():
            losses = nets[net].losses
            axes.plot([depth * beside] * len(losses), losses, ".", color=look(index)["color"], alpha=0.5)
        means = [nets[net].best_tenth for net in places.values()]
        axes.plot([depth * beside for depth in places], means, marker="o", markersize=5, label=name, **look(index))
    depths = sorted({depth for places in lines.values() for depth in places})
    axes.set(xlabel="depth (layers)", xscale="log")
    axes.set_xticks(depths, [f"{depth:g}" for depth in depths])
    axes.xaxis.set_minor_locator(NullLocator())
    _scale(figure, axes)
    return figure


def losses_over(key: str, nets: Mapping[str, Net]) -> Figure:
    """Final training losses over a number that was searched, a point for each trial that did not diverge."""
    figure, (axes,) = new_panels(3.2)
    values = []
    for index, (name, net) in enumerate(nets.items()):
        trials = [(run.settings[key], final_loss(run)) for run in net.trials if key in run.settings]
        values += [value for value, _ in trials]
        if trials:
            axes.plot(*zip(*trials, strict=True), ".", color=look(index)["color"], label=name)
    axes.set_xlabel(key)
    if min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
    _scale(figure, axes)
    return figure


def _scale(figure: Figure, axes: Axes) -> None:
    axes.set(ylabel="final training loss", yscale="log")
    name_lines(figure, axes)
