"""Delete units and re-order them, and measure the error (Veit et al. 2016, Fig. 3 to 5).

Random deletions are set beside the paths that survive them, and those of effective lengths.

Gates that are exclusive are forced to 0 instead, on the training set: Srivastava et al. 2015, Fig. 4. Several run
folders make one figure, for contrast: say a residual network and a plain one.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from deepnets.analysis import lesion
from deepnets.analysis.commands.lesioned import Lesioned
from deepnets.analysis.commands.outcome import Outcome
from deepnets.analysis.commands.pathcount import count_paths
from deepnets.analysis.commands.subject import names_apart, subjects_of
from deepnets.command import count, number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, line, mark_stages, mean_and_range, new_figure


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--only", choices=PARTS, help="one of the three experiments (default: all)")
    parser.add_argument("--images", type=number, help="how many images, drawn once (default: all)")
    parser.add_argument("--split", choices=("train", "test"), help="default: test; train where gates are closed")
    parser.add_argument("--most", type=count, default=20, help="units deleted, or pairs swapped, at most (default: 20)")
    parser.add_argument("--draws", type=count, default=5, help="draws of each number of units (default: 5)")
    parser.add_argument("--seed", type=whole, default=0, help="of the draws (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    subjects = subjects_of(arguments)
    nets = [Lesioned(subject, color, arguments) for subject, color in zip(subjects, cycle(COLOURS), strict=False)]
    _name_apart(nets)
    able, left_out = {}, []
    for part in [arguments.only] if arguments.only else PARTS:
        able[part], reasons = _able(part, nets)
        if arguments.only and not able[part]:
            raise UserError("; ".join(reasons))
        left_out += [f"{part} is left out of {reason}" for reason in reasons]
    models = [subject.model for subject in subjects]
    with Outcome("lesion", subjects[0].folder, arguments) as outcome, outcome.saved(*models) as saved:
        for net in nets:
            net.saved = saved
        for part, chosen in able.items():
            if chosen:
                PARTS[part](chosen, outcome, arguments)
        for reason in left_out:
            outcome.finding(reason)


def _able(part: str, nets: Sequence[Lesioned]) -> tuple[list[Lesioned], list[str]]:
    """The nets that this part can be done with, and what keeps it from each of the others."""
    able, reasons = [], []
    for net in nets:
        try:
            CANDIDATES[part](net.walk, net.sample)
            able.append(net)
        except UserError as error:
            reasons.append(f"{net.name}: {error}")
    return able, reasons


def _single(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2)
    axes = figure.subplots()
    rows = []
    for net in nets:
        units = lesion.deletable(net.walk, net.sample)
        variants = [lesion.intact(net.walk), *(lesion.with_deleted(net.walk, [unit]) for unit in units)]
        found = net.scores(variants)
        whole, errors = found.error[0], found.error[1:]
        stages = [net.walk.stages[unit] + 1 for unit in units]
        rows.append((net.name, 0, 0, whole, found.loss[0]))
        rows += [(net.name, unit + 1, *rest) for unit, *rest in zip(units, stages, errors, found.loss[1:], strict=True)]
        line(axes, errors, np.add(units, 1), color=net.color, label=net.label)
        axes.axhline(whole, color=net.color, linestyle="--", linewidth=1)
        worst = int(errors.argmax())
        sentence = (
            f"{net.name}: {net.split} error {whole:.2f}% whole; without one of {len(units)} units "
            f"{np.median(errors):.2f}% in the median, {errors[worst]:.2f}% at worst (unit {units[worst] + 1} of "
            f"{len(net.walk)}, stage {stages[worst]})"
        )
        if missing := len(net.walk) - len(units):
            sentence += f"; {missing} plain units that change the shape cannot be taken out"
        outcome.finding(sentence, whole=whole, median=np.median(errors), worst=errors[worst], unit=units[worst] + 1)
    mark_stages(axes, (net.walk.stages for net in nets))
    _write(outcome, "single", nets, figure, "deleted unit (dashed: none; dots: stages)", ("run", "unit", "stage"), rows)


def _random(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2, 5)
    axes = figure.subplots()
    rows = []
    for net in nets:
        units = lesion.deletable(net.walk, net.sample)
        draw = partial(lesion.random_deletions, net.walk, units, generator=net.generator)
        deleted, _, found = net.drawn(min(arguments.most, len(units)), arguments.draws, draw)
        rows += [(net.name, *row) for row in zip(deleted, found.error, found.loss, strict=True)]
        counts, errors = deleted[:: arguments.draws], found.error.reshape(-1, arguments.draws)
        mean_and_range(axes, counts, errors, color=net.color, label=net.label)
        outcome.finding(
            f"{net.name}: {net.split} error {errors[0, 0]:.2f}% whole, {errors[1].mean():.2f}% without {counts[1]} and "
            f"{errors[-1].mean():.2f}% without {counts[-1]} random units, means of {arguments.draws} draws",
            deleted=counts,
            error=errors.mean(1),
        )
    axes.locator_params(axis="x", integer=True)
    x = f"units deleted (mean and range of {arguments.draws} draws)"
    _write(outcome, "random", nets, figure, x, ("run", "deleted"), rows)
    count_paths([net for net in nets if not any(unit.is_plain for unit in net.walk.units)], rows, outcome)


def _order(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2, 5)
    axes = figure.subplots()
    rows = []
    for net in nets:
        pairs = lesion.swappable(net.walk, net.sample)
        draw = partial(lesion.reordering, net.walk, pairs, generator=net.generator)
        swaps, variants, found = net.drawn(arguments.most, arguments.draws, draw)
        taus = [kendalltau(range(len(net.walk)), [place.unit for place in variant]).statistic for variant in variants]
        rows += [(net.name, *row) for row in zip(swaps, taus, found.error, found.loss, strict=True)]
        axes.scatter(taus, found.error, s=12, color=net.color, alpha=0.7, linewidth=0, label=net.label)
        least = int(np.argmin(taus))
        outcome.finding(
            f"{net.name}: {net.split} error {found.error[0]:.2f}% in order, {found.error[least]:.2f}% at the least "
            f"Kendall tau reached, {taus[least]:.2f}",
            ordered=found.error[0],
            error=found.error[least],
            tau=taus[least],
        )
    axes.invert_xaxis()
    x = "Kendall tau of the order of units (1: as trained)"
    _write(outcome, "order", nets, figure, x, ("run", "swaps", "kendall_tau"), rows)


PARTS = {"single": _single, "random": _random, "order": _order}
# What a part chooses from; each raises a UserError where there is nothing.
CANDIDATES = {"single": lesion.deletable, "random": lesion.deletable, "order": lesion.swappable}


def _write(
    outcome: Outcome,
    name: str,
    nets: Sequence[Lesioned],
    figure: Figure,
    x: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Label the figure and write it beside its numbers, of which the last two are error and loss."""
    splits, errors = {net.split for net in nets}, [row[-2] for row in rows]
    (axes,) = figure.axes
    axes.set(xlabel=x, ylabel=f"{'' if len(splits) > 1 else nets[0].split} error (%)".lstrip())
    if min(errors) > 0 and max(errors) > 30 * min(errors):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", fontsize=7)
    outcome.rows(name, (*columns, "error", "loss"), rows)
    outcome.figure(name, figure)


def _name_apart(nets: Sequence[Lesioned]) -> None:
    """Label each net by what not all of them have in their names, and by its split where these differ."""
    for net, label in zip(nets, names_apart([net.name for net in nets]), strict=True):
        net.label = label
        if len({other.split for other in nets}) > 1:
            net.label += f" ({net.split})"
