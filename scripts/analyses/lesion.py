"""Delete units and re-order them, and measure the error (Veit et al. 2016, Fig. 3 to 5).

Gates that are exclusive are forced to 0 instead, on the training set: Srivastava et al. 2015, Fig. 4. Several run
folders make one figure, for contrast: say a residual network and a plain one.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from analyses.outcome import COLORS, GREY, Outcome, new_figure, progress
from analyses.subject import Subject, names_apart, subjects_of
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.stats import kendalltau

from deepnets.analysis import lesion
from deepnets.analysis.lesion import Scores, Variant
from deepnets.analysis.walk import walk_of
from deepnets.errors import UserError

CACHED_VALUES = 2**20  # of a unit's input, which stay in a processor's cache: the fastest batch, whatever the net
POINTS = 10  # numbers of deletions and of swaps that are tried


class Lesioned:
    """A subject whose units are deleted and moved, and the images on which that is judged."""

    def __init__(self, subject: Subject, arguments: argparse.Namespace) -> None:
        self.name, self.label, self.walk = subject.name, subject.name, walk_of(subject.settled())
        self.split = arguments.split or ("train" if lesion.closes_gates(self.walk) else "test")
        images = subject.batches(self.split, arguments.images)
        self.sample = next(iter(images))[0][:1]
        if subject.device.type == "cpu":
            values = max(state.numel() for state in self.walk.inputs(self.sample))
            images.batch_size = min(max(CACHED_VALUES // values, 1), 4096)
        self.batches = images
        self.generator = np.random.default_rng(arguments.seed)

    def scores(self, variants: Sequence[Variant]) -> Scores:
        return lesion.scores(self.walk, progress(self.batches, f"{len(variants)} variants of {self.name}"), variants)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--only", choices=PARTS, help="one of the three experiments (default: all)")
    parser.add_argument("--images", type=int, help="how many images, drawn once (default: all)")
    parser.add_argument("--split", choices=("train", "test"), help="default: test; train where gates are closed")
    parser.add_argument("--most", type=int, default=20, help="units deleted, or pairs swapped, at most (default: 20)")
    parser.add_argument("--draws", type=int, default=5, help="draws of each number of units (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write and tell; returns the exit code."""
    if arguments.most < 1 or arguments.draws < 1:
        raise UserError(f"--most {arguments.most} --draws {arguments.draws}: both must be at least 1")
    subjects = subjects_of(arguments)
    nets = [Lesioned(subject, arguments) for subject in subjects]
    _name_apart(nets)
    with Outcome("lesion", subjects[0].folder, arguments) as outcome:
        for part in [arguments.only] if arguments.only else PARTS:
            for finding in PARTS[part](nets, outcome, arguments):
                outcome.tell(finding)
    return 0


def _single(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> list[str]:
    figure = new_figure(7.5, 3.2)
    axes = figure.subplots()
    rows, findings = [], []
    for net, color in zip(nets, COLORS, strict=False):
        units = lesion.deletable(net.walk, net.sample)
        variants = [lesion.intact(net.walk), *(lesion.with_deleted(net.walk, [unit]) for unit in units)]
        found = net.scores(variants)
        whole, errors = found.error[0], found.error[1:]
        stages = [net.walk.stages[unit] + 1 for unit in units]
        rows.append((net.name, 0, 0, whole, found.loss[0]))
        rows += [(net.name, unit + 1, *rest) for unit, *rest in zip(units, stages, errors, found.loss[1:], strict=True)]
        axes.plot(np.add(units, 1), errors, "o-", color=color, markersize=3, linewidth=1, label=net.label)
        axes.axhline(whole, color=color, linestyle="--", linewidth=1)
        worst = int(errors.argmax())
        findings.append(
            f"{net.name}: {net.split} error {whole:.2f}% whole; without one of {len(units)} units "
            f"{np.median(errors):.2f}% in the median, {errors[worst]:.2f}% at worst (unit {units[worst] + 1} of "
            f"{len(net.walk)}, stage {stages[worst]})"
        )
        if missing := len(net.walk) - len(units):
            findings[-1] += f"; {missing} plain units that change the shape cannot be taken out"
    _mark_stages(axes, nets)
    _label(axes, nets, "unit that is deleted (dashed: none)", [row[3] for row in rows])
    outcome.table("single", dict(zip(("run", "unit", "stage", "error", "loss"), zip(*rows, strict=True), strict=True)))
    outcome.figure("single", figure)
    return findings


def _random(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> list[str]:
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    rows, findings = [], []
    for net, color in zip(nets, COLORS, strict=False):
        units = lesion.deletable(net.walk, net.sample)
        counts = np.array([0, *_spaced(min(arguments.most, len(units)))])
        drawn = np.repeat(counts, arguments.draws)
        variants = [lesion.random_deletions(net.walk, units, count, net.generator) for count in drawn]
        found = net.scores(variants)
        rows += [(net.name, *row) for row in zip(drawn, found.error, found.loss, strict=True)]
        errors = found.error.reshape(len(counts), arguments.draws)
        axes.plot(counts, errors.mean(1), "o-", color=color, markersize=3, label=net.label)
        axes.fill_between(counts, errors.min(1), errors.max(1), color=color, alpha=0.2, linewidth=0)
        findings.append(
            f"{net.name}: {net.split} error {errors[0, 0]:.2f}% whole, {errors[1].mean():.2f}% without {counts[1]} and "
            f"{errors[-1].mean():.2f}% without {counts[-1]} random units, means of {arguments.draws} draws"
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label(axes, nets, f"units deleted (mean and range of {arguments.draws} draws)", [row[2] for row in rows])
    outcome.table("random", dict(zip(("run", "deleted", "error", "loss"), zip(*rows, strict=True), strict=True)))
    outcome.figure("random", figure)
    return findings


def _order(nets: Sequence[Lesioned], outcome: Outcome, arguments: argparse.Namespace) -> list[str]:
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    rows, findings = [], []
    for net, color in zip(nets, COLORS, strict=False):
        keeping = lesion.keeping_shape(net.walk, net.sample)
        drawn = np.repeat([0, *_spaced(arguments.most)], arguments.draws)
        variants = [lesion.reordering(net.walk, keeping, swaps, net.generator) for swaps in drawn]
        found = net.scores(variants)
        taus = [kendalltau(range(len(net.walk)), [place.unit for place in variant]).statistic for variant in variants]
        rows += [(net.name, *row) for row in zip(drawn, taus, found.error, found.loss, strict=True)]
        axes.scatter(taus, found.error, s=12, color=color, alpha=0.7, linewidth=0, label=net.label)
        least = int(np.argmin(taus))
        findings.append(
            f"{net.name}: {net.split} error {found.error[0]:.2f}% in order, {found.error[least]:.2f}% at the least "
            f"Kendall tau reached, {taus[least]:.2f}"
        )
    axes.invert_xaxis()
    _label(axes, nets, "Kendall tau of the order of units (1: as trained)", [row[3] for row in rows])
    columns = ("run", "swaps", "kendall_tau", "error", "loss")
    outcome.table("order", dict(zip(columns, zip(*rows, strict=True), strict=True)))
    outcome.figure("order", figure)
    return findings


PARTS = {"single": _single, "random": _random, "order": _order}


def _spaced(most: int) -> list[int]:
    """At most POINTS numbers from 1 to `most`."""
    return sorted({round(count) for count in np.linspace(1, most, POINTS)})


def _name_apart(nets: Sequence[Lesioned]) -> None:
    """Label each net by what not all of them have in their names, and by its split where these differ."""
    for net, label in zip(nets, names_apart([net.name for net in nets]), strict=True):
        net.label = label
        if len({other.split for other in nets}) > 1:
            net.label += f" ({net.split})"


def _mark_stages(axes: Axes, nets: Sequence[Lesioned]) -> None:
    """A line where a stage begins, of the first net."""
    stages = nets[0].walk.stages
    for unit in range(1, len(stages)):
        if stages[unit] != stages[unit - 1]:
            axes.axvline(unit + 0.5, color=GREY, linewidth=0.5, linestyle=":")


def _label(axes: Axes, nets: Sequence[Lesioned], x: str, errors: Sequence[float]) -> None:
    splits = {net.split for net in nets}
    axes.set(xlabel=x, ylabel=f"{'' if len(splits) > 1 else nets[0].split} error (%)".lstrip())
    if min(errors) > 0 and max(errors) > 30 * min(errors):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.figure.legend(loc="outside upper left", fontsize=7)
