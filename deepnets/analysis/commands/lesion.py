"""Delete units and re-order them, and measure the error (Veit et al. 2016, Fig. 3 to 5).

The errors after random deletions are compared with the number of surviving paths, of all lengths or of effective ones.

A unit with exclusive gates is deleted by forcing its gates to 0. If all units have such gates, the net is measured on
the training set unless --split says otherwise: Srivastava et al. 2015, Fig. 4. Several run folders, e.g. of a residual
and a plain network, are drawn in one figure.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau, pearsonr, spearmanr

from deepnets.analysis import lesion, paths
from deepnets.analysis.commands.output import Output, Saved
from deepnets.analysis.commands.subject import Subject, names_apart, one_batch, subjects_of
from deepnets.analysis.lesion import Scores, Variant
from deepnets.analysis.walk import walk_of
from deepnets.command import count, number, whole
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, from_zero, line, mark_stages, mean_and_range, new_figure
from deepnets.system.printing import with_progress
from deepnets.training.hardware import choose_precision

CACHED_VALUES = 2**20  # a unit's input of this size stays in a processor's cache: such batches are the fastest
POINTS = 10  # how many numbers of deletions or swaps are tried, besides 0
PATH_DRAWS = 10  # the effective lengths are found from so many paths of each length, each on an image of its own
COUNTED = {"deleted": "units deleted", "surviving": "surviving paths", "effective": "surviving effective paths"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--only", choices=PARTS, help="run one of the three experiments (default: all)")
    parser.add_argument("--images", type=number, help="use this many random images (default: all)")
    parser.add_argument(
        "--split",
        choices=("train", "test"),
        help="source of the images (default: train if all gates are exclusive, else test)",
    )
    parser.add_argument(
        "--most", type=count, default=20, help="largest number of units deleted or pairs swapped (default: 20)"
    )
    parser.add_argument("--draws", type=count, default=5, help="draws for each number of units or swaps (default: 5)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the draws (default: 0)")


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
        left_out += [f"{part} is left out for {reason}" for reason in reasons]
    models = [subject.model for subject in subjects]
    with Output("lesion", subjects[0].folder, arguments) as output, output.saved(*models) as saved:
        for net in nets:
            net.saved = saved
        for part, chosen in able.items():
            if chosen:
                PARTS[part](chosen, output, arguments)
        for reason in left_out:
            output.finding(reason)


class Lesioned:
    """One net of a figure, with its colour and its images.

    They are the test set, or the training set if a deletion closes gates; `--split` overrides this.
    """

    def __init__(self, subject: Subject, color: str, arguments: argparse.Namespace) -> None:
        self.subject, self.name, self.label, self.color = subject, subject.name, subject.name, color
        self.walk = walk_of(subject.settled())
        self.precision = choose_precision(subject.config.precision, subject.device)  # auto: by this device
        self.split = arguments.split or ("train" if lesion.closes_gates(self.walk) else "test")
        images = subject.batches(self.split, arguments.images)
        self.sample = next(iter(images))[0][:1]
        if subject.device.type == "cpu":
            values = max(state.numel() for state in self.walk.inputs(self.sample))
            images.batch_size = min(max(CACHED_VALUES // values, 1), 4096)
        self.batches = images
        self.generator = np.random.default_rng(arguments.seed)
        self.asked = 0  # sets of variants scored so far; part of the keys in `saved`
        self.saved: Saved  # stores the sums; `run` sets it when the output folder is open

    def scores(self, variants: Sequence[Variant]) -> Scores:
        """Score the variants on all images; the sums of each batch are saved as soon as they are known."""
        self.asked += 1
        sums, images = np.zeros((len(variants), 2)), 0
        for x, labels in with_progress(self.batches, f"{len(variants)} variants of {self.name}"):
            key = f"{self.name} {self.asked} {images}"
            values = self.saved.once(key, partial(lesion.sums_of, self.walk, x, labels, variants, self.precision))
            sums += np.reshape(values, sums.shape)
            images += len(labels)
        return lesion.scored(sums, images)

    def score_draws(
        self, most: int, draws: int, draw: Callable[[int], Variant]
    ) -> tuple[np.ndarray, list[Variant], Scores]:
        """Draw `draws` variants for each number of changes: 0, and up to POINTS numbers from 1 to `most`.

        Returns how many changes each variant has, the variants and their scores.
        """
        changes = np.repeat([0, *np.unique(np.linspace(1, most, POINTS).round().astype(int))], draws)
        variants = [draw(count) for count in changes]
        return changes, variants, self.scores(variants)


def _name_apart(nets: Sequence[Lesioned]) -> None:
    """Label each net by the part of its name that is not shared by all, and by its split if the splits differ."""
    for net, label in zip(nets, names_apart([net.subject for net in nets]), strict=True):
        net.label = label
        if len({other.split for other in nets}) > 1:
            net.label += f" ({net.split})"


def _able(part: str, nets: Sequence[Lesioned]) -> tuple[list[Lesioned], list[str]]:
    """Return the nets that this part can measure, and for each other net the reason why it cannot."""
    able, reasons = [], []
    for net in nets:
        try:
            CANDIDATES[part](net.walk, net.sample)
            able.append(net)
        except UserError as error:
            reasons.append(f"{net.name}: {error}")
    return able, reasons


def _single(nets: Sequence[Lesioned], output: Output, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2)
    axes = figure.subplots()
    rows = []
    for net in nets:
        units = lesion.deletable(net.walk, net.sample)
        variants = [lesion.intact(net.walk), *(lesion.with_deleted(net.walk, [unit]) for unit in units)]
        scores = net.scores(variants)
        whole, errors = scores.error[0], scores.error[1:]
        stages = [net.walk.stages[unit] + 1 for unit in units]
        keeping = {*lesion.keeping_shape(net.walk, net.sample)}
        keeps = [int(unit in keeping) for unit in units]
        rows.append((net.name, 0, 0, 0, whole, scores.loss[0]))
        rows += [
            (net.name, unit + 1, *rest)
            for unit, *rest in zip(units, stages, keeps, errors, scores.loss[1:], strict=True)
        ]
        line(axes, errors, np.add(units, 1), color=net.color, label=net.label)
        axes.axhline(whole, color=net.color, linestyle="--", linewidth=1)
        worst = int(errors.argmax())
        sentence = (
            f"{net.name}: the whole net has {whole:.2f}% {net.split} error; without one of {len(units)} units it has "
            f"{np.median(errors):.2f}% in the median, {errors[worst]:.2f}% at worst (unit {units[worst] + 1} of "
            f"{len(net.walk)}, stage {stages[worst]})"
        )
        if missing := len(net.walk) - len(units):
            sentence += f"; {missing} plain units that change the shape cannot be taken out"
        output.finding(sentence, whole=whole, median=np.median(errors), worst=errors[worst], unit=units[worst] + 1)
    mark_stages(axes, (net.walk.stages for net in nets))
    x, columns = "deleted unit (dashed: none; dots: stages)", ("run", "unit", "stage", "keeps_shape")
    _write(output, "single", nets, figure, x, columns, rows)


def _random(nets: Sequence[Lesioned], output: Output, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2, 5)
    axes = figure.subplots()
    rows = []
    for net in nets:
        units = lesion.deletable(net.walk, net.sample)
        draw = partial(lesion.random_deletions, net.walk, units, generator=net.generator)
        deleted, _, scores = net.score_draws(min(arguments.most, len(units)), arguments.draws, draw)
        rows += [(net.name, *row) for row in zip(deleted, scores.error, scores.loss, strict=True)]
        counts, errors = deleted[:: arguments.draws], scores.error.reshape(-1, arguments.draws)
        mean_and_range(axes, counts, errors, color=net.color, label=net.label)
        output.finding(
            f"{net.name}: the whole net has {errors[0, 0]:.2f}% {net.split} error; without {counts[1]} random units it "
            f"has {errors[1].mean():.2f}%, without {counts[-1]} {errors[-1].mean():.2f}%, means of {arguments.draws} "
            "draws",
            deleted=counts,
            error=errors.mean(1),
        )
    axes.locator_params(axis="x", integer=True)
    x = f"units deleted (mean and range of {arguments.draws} draws)"
    _write(output, "random", nets, figure, x, ("run", "deleted"), rows)
    _count_paths([net for net in nets if not any(unit.is_plain for unit in net.walk.units)], rows, output)


def _count_paths(nets: Sequence[Lesioned], rows: Sequence[tuple[Any, ...]], output: Output) -> None:
    """Correlate the errors with units deleted, paths left and effective paths left (Veit et al. 2016, first claim).

    `rows` are (run, deleted, error, loss). The lengths that carry 95 % of the gradient are measured on each whole net.
    Both numbers of paths fall as more units are deleted. So the rank correlations agree up to the sign, as long as an
    effective path survives; the linear correlations differ.
    """
    if not nets:
        return
    figure = new_figure(3.2, 7.5)
    panels = dict(zip(("surviving", "effective"), figure.subplots(1, 2, sharey=True), strict=True))
    written: list[tuple[Any, ...]] = []
    for net in nets:
        lengths = _effective_lengths(net)
        deleted, error = (np.array([row[place] for row in rows if row[0] == net.name], dtype=float) for place in (1, 2))
        units = len(net.walk)
        counts = {
            "deleted": deleted,
            "surviving": np.array([float(paths.surviving_paths(units, int(k))) for k in deleted]),
            "effective": np.array([float(paths.surviving_paths(units, int(k), lengths)) for k in deleted]),
        }
        for name, axes in panels.items():
            axes.scatter(counts[name], error, s=12, color=net.color, alpha=0.7, linewidth=0, label=net.label)
        written += [(net.name, *values) for values in zip(*counts.values(), error, strict=True)]
        if np.ptp(error) == 0:
            output.finding(f"{net.name}: the error is {error[0]:.2f}% no matter which units are deleted")
            continue
        ranks = {name: spearmanr(values, error).statistic for name, values in counts.items()}
        linear = {name: pearsonr(values, error).statistic for name, values in counts.items()}
        correlations = ", ".join(f"{COUNTED[name]} {ranks[name]:.2f} (linear {linear[name]:.2f})" for name in counts)
        output.finding(
            f"{net.name}: rank correlation of the error with {correlations}; the effective lengths are "
            f"{lengths[0]} to {lengths[1]} of {units}",
            lengths=lengths,
            **{f"rank_{name}": value for name, value in ranks.items()},
            **{f"linear_{name}": value for name, value in linear.items()},
        )
    for name, axes in panels.items():
        axes.set_xlabel(COUNTED[name])
        digits = len(f"{axes.dataLim.x1:.0f}")
        if axes.dataLim.x1 <= 1000:
            axes.locator_params(axis="x", integer=True)
        elif axes.dataLim.x0 > 0:
            axes.set_xscale("log")
        else:  # a place for 0
            axes.set_xscale("symlog", linthresh=1)
            axes.set(
                xlim=(-0.5, 2 * axes.dataLim.x1),
                xticks=[0, *(10**power for power in range(0, digits, max(1, digits // 5)))],
            )
        from_zero(axes)
    panels["surviving"].set_ylabel("error (%)")
    figure.legend(*panels["surviving"].get_legend_handles_labels(), loc="outside upper left", fontsize=7)
    output.rows("paths", ("run", "deleted", "surviving_paths", "effective_paths", "error"), written)
    output.figure("paths", figure)


def _effective_lengths(net: Lesioned) -> tuple[int, int]:
    walk = net.walk
    x, labels = one_batch(net.subject, PATH_DRAWS, net.split)
    lengths = np.arange(len(walk) + 1)
    generator = torch.Generator().manual_seed(0)
    norms = paths.norms_by_length(walk, x, labels, lengths.tolist(), PATH_DRAWS, generator)
    return paths.effective_lengths(paths.path_share(len(walk), lengths) * norms.mean(1))


def _order(nets: Sequence[Lesioned], output: Output, arguments: argparse.Namespace) -> None:
    figure = new_figure(3.2, 5)
    axes = figure.subplots()
    rows = []
    for net in nets:
        pairs = lesion.swappable(net.walk, net.sample)
        draw = partial(lesion.reordering, net.walk, pairs, generator=net.generator)
        swaps, variants, scores = net.score_draws(arguments.most, arguments.draws, draw)
        taus = [kendalltau(range(len(net.walk)), [place.unit for place in variant]).statistic for variant in variants]
        rows += [(net.name, *row) for row in zip(swaps, taus, scores.error, scores.loss, strict=True)]
        axes.scatter(taus, scores.error, s=12, color=net.color, alpha=0.7, linewidth=0, label=net.label)
        least = int(np.argmin(taus))
        output.finding(
            f"{net.name}: {net.split} error {scores.error[0]:.2f}% in order, {scores.error[least]:.2f}% at the least "
            f"Kendall tau reached, {taus[least]:.2f}",
            ordered=scores.error[0],
            error=scores.error[least],
            tau=taus[least],
        )
    axes.invert_xaxis()
    x = "Kendall tau of the order of units (1: as trained)"
    _write(output, "order", nets, figure, x, ("run", "swaps", "kendall_tau"), rows)


PARTS = {"single": _single, "random": _random, "order": _order}
# These functions return the units or pairs that a part chooses from, and raise a UserError if a net has none.
CANDIDATES = {"single": lesion.deletable, "random": lesion.deletable, "order": lesion.swappable}


def _write(
    output: Output,
    name: str,
    nets: Sequence[Lesioned],
    figure: Figure,
    x: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Label the figure and write it with its numbers; the last two values of a row are error and loss."""
    splits, errors = {net.split for net in nets}, [row[-2] for row in rows]
    (axes,) = figure.axes
    axes.set(xlabel=x, ylabel=f"{'' if len(splits) > 1 else nets[0].split} error (%)".lstrip())
    if min(errors) > 0 and max(errors) > 30 * min(errors):
        axes.set_yscale("log")
    else:
        from_zero(axes)
    figure.legend(loc="outside upper left", fontsize=7)
    output.rows(name, (*columns, "error", "loss"), rows)
    output.figure(name, figure)
