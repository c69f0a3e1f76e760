"""Draws all pictures of a report for which there are numbers: final errors in this module, the rest in `curves.py`.

Final errors are drawn for each row beside the published value, over depth or another number, and as the difference that
a claim is about. For a search, final losses are drawn.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from deepnets.config.claim import Relation
from deepnets.monitor.style import COLOURS, INK, PAPER, line_style, name_lines, new_panels, styled, wrapped
from deepnets.results.cell import TRIAL, Cell, Net, final_loss
from deepnets.results.claims import findings_of
from deepnets.results.columns import DEPTH, FULL, lines_over, swept, varying
from deepnets.results.figures.curves import (
    MOST_IN_PANEL,
    MOST_PANELS,
    best_curves,
    degradation,
    learning_rates,
    training_curves,
)
from deepnets.results.finding import LOOKS, PairFinding
from deepnets.results.page import Picture
from deepnets.results.published import FAIL
from deepnets.results.read import Run
from deepnets.results.statistics import WORST_ERROR
from deepnets.results.table import Table

MOST_SWEPT = 4
Drawn = Iterator[tuple[str, str, Figure | None]]  # name, caption, figure if there are numbers for it
MOST_BARS = 60
MOST_CLAIMS = 40
LOOK_COLOURS = dict(zip(LOOKS, COLOURS, strict=False))
CLOSE = 0.06  # share of the axis; labels of closer values would overlap
WIDE = 50  # an axis is logarithmic if its greatest value is more than 50 times its smallest


def pictures_of(tables: Sequence[Table], logarithmic: bool = False) -> list[Picture]:
    """Draw all pictures of a report, each with a file name of its own."""
    named: dict[str, Picture] = {}
    with styled():
        for picture in (*_of_depth(tables, logarithmic), *_of_tables(tables, logarithmic)):
            name, number = picture.name, 2
            while name in named:
                name, number = f"{picture.name}-{number}", number + 1
            named[name] = replace(picture, name=name)
    return list(named.values())


def bars(cells: Mapping[str, Cell]) -> Figure | None:
    """Draw each row's median error and the published one, with a 95% interval or, below 3 seeds, all its errors.

    A row that fails has a bar up to the edge, on which its median is written. Return None without errors or with too
    many rows.
    """
    cells = {row: cell for row, cell in cells.items() if cell.errors or cell.published.test_error is not None}
    if not any(cell.errors for cell in cells.values()) or len(cells) > MOST_BARS:
        return None
    names = [wrapped(row) for row in cells]
    lines = max(name.count("\n") + 1 for name in names)
    figure, (axes,) = new_panels(1.1 + max(0.27, 0.16 * lines) * len(cells))
    edge = 1.15 * max(_numbers(cells), default=100.0) or 1.0  # 1 if all rows are perfect
    for place, cell in enumerate(cells.values()):
        measured, published = cell.compared_median, cell.published.test_error
        if measured is not None:
            drawn = edge if cell.is_fail else measured
            axes.barh(place, drawn, height=0.62, color=COLOURS[4], alpha=0.45 if cell.is_fail else 0.8, zorder=2)
        if cell.is_fail:
            number = f"{measured:.1f}".replace("inf", "diverged")
            axes.text(edge * 0.985, place, f"fail: {number}", ha="right", va="center", fontsize=8, zorder=5)
        elif cell.interval:
            low, high = (min(end, edge) for end in cell.interval)
            axes.hlines(place, low, high, color=INK, linewidth=1.4, zorder=4)
            axes.plot([low, high], [place] * 2, "|", color=INK, markersize=7, zorder=4)
        elif measured is not None:
            points = [error for error in cell.compared if math.isfinite(error)]
            axes.plot(points, [place] * len(points), "o", color=INK, markersize=3, zorder=4)
        if isinstance(published, int | float):
            axes.plot(published, place, "D", color=COLOURS[1], markeredgecolor=PAPER, markersize=6, zorder=6)
        elif published == FAIL:
            axes.plot(edge, place, ">", color=COLOURS[1], markersize=7, zorder=6, clip_on=False)
    axes.plot([], [], color=COLOURS[4], alpha=0.8, linewidth=8, label="median")
    axes.plot([], [], color=INK, marker="|", markersize=7, label="95% interval (points: single runs)")
    if any(isinstance(cell.published.test_error, int | float) for cell in cells.values()):
        axes.plot([], [], "D", color=COLOURS[1], markersize=6, label=_published(cells))
    if any(cell.published.test_error == FAIL for cell in cells.values()):
        axes.plot([], [], ">", color=COLOURS[1], markersize=7, label="published: fail")
    axes.set(xlim=(0, edge), xlabel="test error (%)", ylim=(len(cells) - 0.4, -0.6))
    axes.set_yticks(range(len(cells)), names)
    axes.grid(axis="y", visible=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3, columnspacing=1)
    return figure


def error_over(key: str, runs: Mapping[str, Run], cells: Mapping[str, Cell]) -> Figure | None:
    """Draw median errors over a number, with 95% intervals and published values.

    A line joins the rows that differ only in this number. A row that diverged is a triangle at `WORST_ERROR`. Return
    None if the ended rows make no line.
    """
    lines = lines_over(key, {row: run for row, run in runs.items() if cells[row].errors})
    if not lines:
        return None
    figure, (axes,) = new_panels(3.4)
    is_published = False
    for index, (name, places) in enumerate(lines.items()):
        style = line_style(index)
        compared = {value: cells[row].compared_median for value, row in places.items()}
        medians = {value: min(median, WORST_ERROR) for value, median in compared.items() if median is not None}
        failed = [value for value, median in compared.items() if median is not None and math.isinf(median)]
        axes.plot(list(medians), list(medians.values()), marker="o", markersize=4, label=name, **style)
        if failed:
            axes.plot(failed, [WORST_ERROR] * len(failed), "^", color=style["color"], markersize=9)
        for value, row in places.items():
            if interval := cells[row].interval:
                axes.vlines(value, *interval, color=style["color"], linewidth=1.2)
        errors = {value: cells[row].published.test_error for value, row in places.items()}
        printed = {value: error for value, error in errors.items() if isinstance(error, int | float)}
        axes.plot(list(printed), list(printed.values()), "D", color=PAPER, markeredgecolor=style["color"], markersize=6)
        is_published = is_published or bool(printed)
    if is_published:
        axes.plot([], [], "D", color=PAPER, markeredgecolor=INK, markersize=6, label=_published(cells))
    values = sorted({value for places in lines.values() for value in places})
    axes.set(xlabel="depth (layers)" if key == DEPTH else key, ylabel="test error (%)")
    if values[0] > 0 and values[-1] > WIDE * values[0]:
        axes.set_xscale("log")
    elif len(values) > 1 and min(b - a for a, b in pairwise(values)) > CLOSE * (values[-1] - values[0]):
        axes.set_xticks(values, [f"{value:g}" for value in values])
    name_lines(figure, axes)
    return figure


def looks_of_claims(findings: Sequence[PairFinding]) -> Figure | None:
    """Draw each claim's difference of mean errors, with bounds, at every look; a claim's first look is on top.

    The side that the paper claims is shaded, the margin dotted. Return None if no claim has had a look.
    """
    shown = [finding for finding in findings if finding.looks][:MOST_CLAIMS]
    if not shown:
        return None
    figure, (axes,) = new_panels(0.9 + 0.42 * len(shown))
    looks = [look for finding in shown for look in finding.looks]
    ends = [abs(end) for look in looks for end in (look.low, look.difference, look.high) if math.isfinite(end)]
    edge = 1.05 * min(max(ends) or WORST_ERROR, WORST_ERROR)
    for place, finding in enumerate(shown):
        is_below = finding.claim.relation is Relation.below
        axes.barh(place, -edge if is_below else edge, height=0.9, color=COLOURS[2], alpha=0.12, zorder=1)
        for offset, (one_look, color) in enumerate(zip(finding.looks, LOOK_COLOURS.values(), strict=False), start=-1):
            y = place + 0.24 * offset
            axes.hlines(y, max(one_look.low, -edge), min(one_look.high, edge), color=color, linewidth=1.6, zorder=3)
            axes.plot(one_look.difference, y, "o", color=color, markersize=4, zorder=4)
        if finding.margin is not None:
            axes.vlines([-finding.margin, finding.margin], place - 0.45, place + 0.45, color=INK, linestyle=":")
        axes.text(edge, place, f" {finding.outcome}", va="center", fontsize=7)
    for seeds, color in LOOK_COLOURS.items():
        axes.plot([], [], "o-", color=color, markersize=4, label=f"look at {seeds} seeds")
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlim=(-edge, edge), ylim=(len(shown) - 0.4, -0.6), xlabel="difference of mean errors (percent points)")
    axes.set_yticks(range(len(shown)), [wrapped(finding.text) for finding in shown], fontsize=7)
    name_lines(figure, axes)
    return figure


def losses_over_depth(nets: Mapping[str, Net]) -> Figure | None:
    """Draw the final losses of a search over depth (Srivastava et al. 2015, Fig. 1 right).

    Each trial that did not diverge is a point, the mean of the best tenth a line. Return None unless two depths were
    trained.
    """
    lines = lines_over(DEPTH, {name: net.trials[0] for name, net in nets.items() if net.example})
    if not lines:
        return None
    figure, (axes,) = new_panels(3.2)
    for index, (name, places) in enumerate(lines.items()):
        shift = 1 + 0.06 * (index - (len(lines) - 1) / 2)  # a factor, as the scale is logarithmic
        for depth, net in places.items():
            losses = nets[net].losses
            axes.plot([depth * shift] * len(losses), losses, ".", color=line_style(index)["color"], alpha=0.5)
        means = [nets[net].best_tenth for net in places.values()]
        axes.plot([depth * shift for depth in places], means, marker="o", markersize=5, label=name, **line_style(index))
    depths = sorted({depth for places in lines.values() for depth in places})
    axes.set(xlabel="depth (layers)", xscale="log")
    axes.set_xticks(depths, [f"{depth:g}" for depth in depths])
    axes.xaxis.set_minor_locator(NullLocator())
    _scale_of_losses(figure, axes)
    return figure


def losses_over(key: str, nets: Mapping[str, Net]) -> Figure:
    """Draw the final losses over a number that was searched, a point for each trial that did not diverge."""
    figure, (axes,) = new_panels(3.2)
    values = []
    for index, (name, net) in enumerate(nets.items()):
        trials = [(run.settings[key], final_loss(run)) for run in net.trials if key in run.settings]
        values += [value for value, _ in trials]
        if trials:
            axes.plot(*zip(*trials, strict=True), ".", color=line_style(index)["color"], label=name)
    axes.set_xlabel(key)
    if min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
    _scale_of_losses(figure, axes)
    return figure


def _of_tables(tables: Sequence[Table], logarithmic: bool) -> Iterator[Picture]:
    for table in tables:
        for index, column in enumerate(table.columns):
            for what, caption, figure in _of_column(table, index, logarithmic):
                if figure is not None:
                    name = _file_name(what, column.label if len(table.columns) > 1 else FULL)
                    prefix = f"{_file_name(table.name)}-" if len(tables) > 1 else ""
                    yield Picture(prefix + name, f"{table.title(index)}: {caption}", figure)


def _of_column(table: Table, index: int, logarithmic: bool) -> Drawn:
    cells = table.column(index)
    nets = {row: cell for row, cell in cells.items() if isinstance(cell, Net)}
    runs = {row: run for row, cell in cells.items() if (run := cell.example)}
    trained = {row: run for row, run in runs.items() if run.history}
    curves = _best(trained, cells, MOST_IN_PANEL if nets else MOST_PANELS)
    if not nets:
        is_published = any(cell.published.test_error is not None for cell in cells.values())
        yield "bars", "final test errors" + " and the published values" * is_published, bars(cells)
    if curves:
        which = "best trial" if nets else "run of median result (of two the worse)"
        rest = f"; the best {len(curves)} of {len(trained)} rows" if len(curves) < len(trained) else ""
        yield "curves", f"error of each row's {which}{rest}", training_curves(curves, logarithmic)
    if nets:
        searched = varying(run for net in nets.values() for run in net.trials)
        for key in [key for key in searched if key not in (DEPTH, TRIAL)][:MOST_SWEPT]:
            yield key.replace(".", "-"), f"final training loss over {key}", losses_over(key, nets)
    else:
        for key in (DEPTH, *swept(runs)[:MOST_SWEPT]):
            what = "depth" if key == DEPTH else key
            caption = f"median test error over {what}, bars: 95% intervals"
            drawn = sum(
                map(len, lines_over(key, {row: run for row, run in runs.items() if cells[row].errors}).values())
            )
            if left := sum(bool(cells[row].errors) for row in runs) - drawn:
                caption += f"; not drawn: {left} row{'s' * (left > 1)} on no line"
            yield what.replace(".", "-"), caption, error_over(key, runs, cells)
    yield "schedule", "learning rate", learning_rates(curves)
    if not nets:
        findings = [each for each in findings_of(table, index, table.sweeps) if isinstance(each, PairFinding)]
        yield "claims", "claims at each look", looks_of_claims(findings)


def _of_depth(tables: Sequence[Table], logarithmic: bool) -> Iterator[Picture]:
    """Draw the columns of one protocol together, because a paper may have plain and residual nets in two tables."""
    columns = [(column.label, table.column(index)) for table in tables for index, column in enumerate(table.columns)]
    labels = list(dict.fromkeys(label for label, _ in columns))
    for label in labels:
        cells = {row: cell for other, column in columns if other == label for row, cell in column.items()}
        nets = {row: cell for row, cell in cells.items() if isinstance(cell, Net)}
        runs = {row: run for row, cell in cells.items() if row not in nets and (run := cell.example) and run.history}
        for what, caption, figure in (
            ("degradation", "plain nets beside nets with shortcuts", degradation(runs, logarithmic)),
            ("search", "training loss of the best trials", best_curves(nets)),
            ("search-depth", "final training loss of trials, and the mean of the best tenth", losses_over_depth(nets)),
        ):
            if figure is not None:
                name = _file_name(what, label if len(labels) > 1 else FULL)
                yield Picture(name, f"Depth: {caption}" + f" ({label})" * (label != FULL), figure)


def _best(runs: dict[str, Run], cells: dict[str, Cell], most: int) -> dict[str, Run]:
    """Choose the rows to draw: all in the table's order, or the `most` with the lowest medians, lowest first."""
    if len(runs) <= most:
        return runs
    medians = {row: math.inf if (median := cells[row].median) is None else median for row in runs}
    return {row: runs[row] for row in sorted(runs, key=medians.__getitem__)[:most]}


def _file_name(what: str, label: str = FULL) -> str:
    return re.sub(r"[^\w.=-]+", "_", what if label == FULL else f"{what}-{label}")[:80]


def _published(cells: Mapping[str, Cell]) -> str:
    if all(cell.is_published_protocol for cell in cells.values()):
        return "published"
    return "published, by its own protocol"


def _numbers(cells: Mapping[str, Cell]) -> list[float]:
    """Return the numbers that must fit on the scale of the bars."""
    shown = [cell for cell in cells.values() if not cell.is_fail and cell.errors]
    measured = [cell.interval[1] if cell.interval else max(filter(math.isfinite, cell.errors)) for cell in shown]
    published = [cell.published.test_error for cell in cells.values()]
    return [*measured, *(value for value in published if isinstance(value, int | float))]


def _scale_of_losses(figure: Figure, axes: Axes) -> None:
    axes.set(ylabel="final training loss", yscale="log")
    name_lines(figure, axes)
