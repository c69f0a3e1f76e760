"""A random search: how well the best of its draws are optimised (Srivastava et al. 2015, 3.1 and Fig. 1)."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from deepnets.results.figures.style import look, name_lines, new_figure
from deepnets.results.read import Run, example
from deepnets.results.series import DEPTH, SETTING, lines_over
from deepnets.results.sheet import NOTHING, Sheet, percent
from deepnets.runs.status import FINISHED

SHARE = 10  # the mean is that of the best tenth: of 10 among 100 draws, as in the paper
LOSS = "train_loss"
SEARCHED = ("net", "draws", "best", "its setting", "its test error", "mean of best tenth", "median of all", "state")


def is_search(runs: Iterable[Run]) -> bool:
    """Whether the rows of a table are draws: whether `setting` is one of its axes."""
    return any(SETTING in run.sweep.get("axes", []) for run in runs)


def search_sheet(title: str, rows: Mapping[str, Sequence[Run]]) -> Sheet:
    """A line for each net: the final training losses of its best draw, of its best tenth and of all."""
    nets: dict[str, list[str]] = defaultdict(list)
    for row, runs in rows.items():
        nets[_net(row, runs[0])].append(row)
    lines = tuple((net, *_summary([rows[row] for row in draws])) for net, draws in nets.items())
    note = "Training loss of the last epoch, by which the best draw is chosen; test error in percent."
    if any(len(runs) > 1 for runs in rows.values()):
        note += " Of several seeds of a draw the run of median loss counts, of two the worse."
    return Sheet(title, SEARCHED, lines, frozenset(SEARCHED[1:-1]), note)


def best_curves(runs: Mapping[str, Run]) -> Figure | None:
    """The training loss of each depth's best draw over the epochs, a panel for each kind of net (Fig. 1 left).

    None unless draws were made at two depths.
    """
    lines = lines_over(DEPTH, runs)
    if not lines:
        return None
    figure, panels = new_figure(3.2, 1, len(lines))
    depths = sorted({depth for places in lines.values() for depth in places})
    for axes, (name, places) in zip(panels, lines.items(), strict=True):
        for depth, draws in places.items():
            best = min((runs[row] for row in draws), key=final_loss)
            if math.isinf(final_loss(best)):
                continue
            epochs = [epoch for epoch in best.history if LOSS in epoch]
            x, y = [epoch["epoch"] for epoch in epochs], [epoch[LOSS] for epoch in epochs]
            axes.plot(x, y, label=f"{depth:g} layers", **look(depths.index(depth)))
        axes.set(title=name, yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [name for depth in depths if (name := f"{depth:g} layers") in handles]
    figure.legend([handles[name] for name in names], names, loc="outside upper left", ncols=len(depths))
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("training loss of the best draw", fontsize=9)
    return figure


def losses_over_depth(runs: Mapping[str, Run]) -> Figure | None:
    """Final training losses over depth: every draw that did not diverge a point, the mean of the best tenth a line
    (Fig. 1 right).

    None unless draws were made at two depths.
    """
    lines = lines_over(DEPTH, runs)
    if not lines:
        return None
    figure, (axes,) = new_figure(3.2)
    for index, (name, places) in enumerate(lines.items()):
        beside = 1 + 0.06 * (index - (len(lines) - 1) / 2)  # a factor, as the scale is logarithmic
        means = []
        for depth, draws in places.items():
            losses = sorted(final_loss(runs[row]) for row in draws)
            axes.plot([depth * beside] * len(losses), losses, ".", color=look(index)["color"], alpha=0.5)
            means.append(_mean_of_best(losses))
        axes.plot([depth * beside for depth in places], means, marker="o", markersize=5, label=name, **look(index))
    depths = sorted({depth for places in lines.values() for depth in places})
    axes.set(xlabel="depth (layers)", ylabel="final training loss", xscale="log", yscale="log")
    axes.set_xticks(depths, [f"{depth:g}" for depth in depths])
    axes.xaxis.set_minor_locator(NullLocator())
    name_lines(figure, axes)
    return figure


def final_loss(run: Run) -> float:
    """Mean training loss of the last epoch; infinite where the run diverged or has no epoch."""
    if run.error is None or math.isinf(run.error):
        return math.inf
    loss = run.history[-1].get(LOSS, math.inf) if run.history else math.inf
    return loss if math.isfinite(loss) else math.inf


def _summary(draws: Sequence[Sequence[Run]]) -> tuple[str, ...]:
    states = Counter(run.state.name for runs in draws for run in runs if run.state.name != FINISHED)
    state = ", ".join(f"{count} {name}" for name, count in states.items())
    ended = sorted((run for runs in draws if (run := example(runs, final_loss)).error is not None), key=final_loss)
    losses = [final_loss(run) for run in ended]
    if not ended:
        return "0", *[NOTHING] * 5, state
    which = (str(ended[0].config[SETTING]), percent(ended[0].error)) if math.isfinite(losses[0]) else (NOTHING,) * 2
    return str(len(ended)), _loss(losses[0]), *which, _loss(_mean_of_best(losses)), _loss(median(losses)), state


def _mean_of_best(losses: Sequence[float]) -> float:
    """Of losses in rising order."""
    return fmean(losses[: max(1, len(losses) // SHARE)])


def _net(row: str, run: Run) -> str:
    """The row's name without the number of its draw."""
    axes, parts = run.sweep.get("axes", []), row.split(",")
    if SETTING in axes and len(parts) == len(axes):
        parts.pop(axes.index(SETTING))
    return ",".join(parts) or "draws"


def _loss(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"
