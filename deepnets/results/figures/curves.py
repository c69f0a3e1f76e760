"""Draws curves over the training: errors as in He et al., the effect of depth, learning rates, losses of a search."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from deepnets.monitor.style import FAINT, INK, line_style, name_lines, new_panels, wrapped
from deepnets.results.cell import LOSS, Net
from deepnets.results.columns import DEPTH, is_plain, lines_over
from deepnets.results.read import Run

MOST_IN_PANEL = 6
MOST_PANELS = 24
ACROSS = 3
WORSE = 1.3  # a beginning that is so many times worse than the rest is cut off


def training_curves(runs: Mapping[str, Run], logarithmic: bool) -> Figure:
    """Draw each row's error over the training, thin on training and bold on test images (He et al. 2015, Fig. 6).

    If there are more than six rows, each gets a panel, in which the other rows are faint.
    """
    runs = dict(list(runs.items())[:MOST_PANELS])
    unit = _unit(runs)
    if len(runs) <= MOST_IN_PANEL:
        figure, panels = new_panels(3.6)
        for index, (row, run) in enumerate(runs.items()):
            _errors(panels[0], run, unit, row, **line_style(index))
        name_lines(figure, panels[0])
    else:
        figure, panels = _panels_of(list(runs), 1.35)
        all_x, all_y = (
            [value for run in runs.values() for value in [*_values(run, name), math.nan]]
            for name in (unit, "test_error")
        )
        for axes, (row, run) in zip(panels, runs.items(), strict=True):
            axes.plot(all_x, all_y, color=FAINT, linewidth=0.7, zorder=1)  # one line, broken after each run
            _errors(axes, run, unit, row, **line_style(0))
    _scale(figure, panels, list(runs.values()), unit, logarithmic)
    return figure


def curves_beside(pairs: Mapping[str, tuple[Run, Run]], logarithmic: bool) -> Figure:
    """Draw the errors of the two runs of each row over the training, named A and B; each row gets a panel."""
    pairs = dict(list(pairs.items())[:MOST_PANELS])
    runs = {f"{row} {index}": run for row, both in pairs.items() for index, run in enumerate(both)}
    unit = _unit(runs)
    figure, panels = _panels_of(list(pairs), 1.5)
    for axes, both in zip(panels, pairs.values(), strict=True):
        for index, (name, run) in enumerate(zip("AB", both, strict=True)):
            _errors(axes, run, unit, name, **line_style(index))
    name_lines(figure, panels[0])
    _scale(figure, panels, list(runs.values()), unit, logarithmic)
    return figure


def degradation(runs: Mapping[str, Run], logarithmic: bool) -> Figure | None:
    """Draw the errors of plain nets of several depths beside those of nets with shortcuts (He et al. 2015, Fig. 4, 6).

    Rows that differ only in depth share a panel. Return None unless both plain nets and others have two depths.
    """
    lines = lines_over(DEPTH, runs)
    plain = {name: depths for name, depths in lines.items() if is_plain(runs[next(iter(depths.values()))])}
    others = {name: depths for name, depths in lines.items() if name not in plain}
    if not plain or not others:
        return None
    shown = {**plain, **others}
    titles = [f"{name} (plain)" if name in plain and "plain" not in name else name for name in shown]
    figure, panels = _panels_of(titles, 1.7)
    drawn = {row: runs[row] for depths in shown.values() for row in depths.values()}
    unit = _unit(drawn)
    all_depths = sorted({depth for depths in shown.values() for depth in depths})
    for axes, depths in zip(panels, shown.values(), strict=True):
        for depth, row in depths.items():
            _errors(axes, runs[row], unit, f"{depth:g} layers", **line_style(all_depths.index(depth)))
    name_lines(figure, *panels)
    _scale(figure, panels, list(drawn.values()), unit, logarithmic)
    return figure


def learning_rates(runs: Mapping[str, Run]) -> Figure | None:
    """Draw the learning rate at the end of each epoch, within which it may have fallen.

    Rows with the same rates share a line. Return None without rates.
    """
    runs = {row: run for row, run in runs.items() if run.history and not _lacks(run, "learning_rate")}
    if not runs:
        return None
    unit = _unit(runs)
    groups: list[tuple[Run, list[str]]] = []
    for row, run in sorted(runs.items(), key=lambda item: -len(item[1].history)):
        rates = _values(run, "learning_rate")
        same = [rows for longest, rows in groups if _values(longest, "learning_rate")[: len(rates)] == rates]
        if same:
            same[0].append(row)
        else:
            groups.append((run, [row]))
    figure, (axes,) = new_panels(2.6)
    for index, (run, named) in enumerate(groups[:MOST_PANELS]):
        rates, rows = _values(run, "learning_rate"), [row for row in runs if row in named]
        label = ", ".join(rows) if len(rows) <= 3 else f"{', '.join(rows[:2])} and {len(rows) - 2} more"
        axes.plot(_values(run, unit), rates, marker=".", markersize=4, label=label, **line_style(index))
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel=unit, ylabel="rate at the end of epochs", yscale="log")
    name_lines(figure, axes)
    return figure


def best_curves(nets: Mapping[str, Net]) -> Figure | None:
    """Draw the loss of each depth's best trial, a panel for each kind of net (Srivastava et al. 2015, Fig. 1 left).

    Return None unless two depths were trained.
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
            axes.plot(x, y, label=f"{depth:g} layers", **line_style(depths.index(depth)))
        axes.set(title=name, yscale="log")
        axes.locator_params(axis="x", integer=True)
    name_lines(figure, *panels)
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("training loss of the best trial", fontsize=9)
    return figure


def _errors(axes: Axes, run: Run, unit: str, label: str, **style: Any) -> None:
    x = _values(run, unit)
    for split, width in (("train", 0.7), ("test", 1.8)):
        errors = _values(run, f"{split}_error")
        marker = "." if len(errors) == 1 else ""  # a line of one point would not be seen
        axes.plot(x, errors, linewidth=width, marker=marker, label=label if split == "test" else None, **style)


def _panels_of(rows: Sequence[str], height: float) -> tuple[Figure, list[Axes]]:
    """Make a panel for each row; its title is the row's name, broken after commas."""
    across = min(len(rows), ACROSS)
    down = math.ceil(len(rows) / across)
    figure, panels = new_panels(3.6 if down == 1 else 0.8 + height * down, down, across)
    for axes in panels[len(rows) :]:
        axes.remove()
    for axes in panels[max(0, len(rows) - across) : len(rows)]:
        axes.tick_params(labelbottom=True)  # the panel below it may be gone
    for axes, row in zip(panels, rows, strict=False):
        axes.set_title(wrapped(row))
    return figure, panels[: len(rows)]


def _scale(figure: Figure, panels: list[Axes], runs: Sequence[Run], unit: str, logarithmic: bool) -> None:
    """Set the scale of errors. As in the papers, it cuts off the first tenth of curves if that is much worse."""
    curves = [_values(run, f"{split}_error") for run in runs for split in ("train", "test")]
    curves = [finite for curve in curves if (finite := list(filter(math.isfinite, curve)))]
    ends = [curve[-1] for curve in curves]
    settled = [curve[math.ceil((len(curve) - 1) / 10)] for curve in curves]
    highest = max(map(max, curves), default=1.0)
    if logarithmic:
        panels[0].set_yscale("log", nonpositive="mask")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panels[0].yaxis.set_major_formatter("{x:g}")
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    elif ends:
        enough = max(1.2 * max(ends), 2.5 * median(ends), max(settled))
        panels[0].set_ylim(0, max(1e-3, enough if highest > WORSE * enough else 1.05 * highest))
    last = max((x for run in runs for x in _values(run, unit)[-1:]), default=0)
    panels[0].locator_params(axis="x", integer=True, nbins=6 if last >= 10_000 else "auto")  # long numbers would touch
    figure.supxlabel(f"{unit}   (thin: training, bold: test)", fontsize=9, color=INK)
    figure.supylabel("error (%)", fontsize=9, color=INK)


def _unit(runs: Mapping[str, Run]) -> str:
    """Name the horizontal axis: iterations if every budget counts them, as in the papers, else epochs."""
    return "iteration" if all(run.config.get("iterations") for run in runs.values()) else "epoch"


def _values(run: Run, name: str) -> list[float]:
    """Return a column of metrics.csv, with nan, which is not drawn, for empty fields."""
    return [epoch.get(name, math.nan) for epoch in run.history]


def _lacks(run: Run, name: str) -> bool:
    return any(name not in epoch for epoch in run.history)
