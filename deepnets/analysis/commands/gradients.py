"""Gradients, signals and responses over depth, post- against pre-activation (He et al. 2015, Fig. 7; 2016, section 4).

Networks are measured at initialisation and, for a run folder, after training. With --epochs the run is trained anew and
measured after each of these epochs. Several run folders are drawn in one figure. With --orderings, fresh networks that
differ from the first subject only in ordering and depth are compared.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from torch import nn

from deepnets.analysis.commands.output import Output, whole_numbers
from deepnets.analysis.commands.subject import (
    Subject,
    fresh_network,
    model_option,
    names_apart,
    one_batch,
    subjects_of,
)
from deepnets.analysis.gradients import (
    CANCELLED,
    Bypass,
    Cancelled,
    Signals,
    bypass_of,
    cancelled,
    clipped,
    first_to_last,
    gradient_norms,
    responses,
    signals,
)
from deepnets.analysis.walk import Walk, walk_of, with_batch_statistics
from deepnets.command import count, number, whole
from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.models.resnet import ResNet
from deepnets.monitor.style import (
    COLOURS,
    GREY,
    INK,
    from_zero,
    line,
    mark_stages,
    mean_and_range,
    new_figure,
    show_array,
)
from deepnets.system.printing import with_progress
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.hardware import choose_precision


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images in the batch (default: 128)")
    parser.add_argument(
        "--test-images", type=number, help="test images to measure responses and clipping by ReLUs (default: all)"
    )
    parser.add_argument(
        "--epochs", type=number, default=0, help="repeat the run for this many epochs and measure each (default: 0)"
    )
    parser.add_argument("--orderings", help="orderings of fresh nets to compare, as original,full_preactivation")
    parser.add_argument("--sizes", default="1,3,6,12", help="units per stage of the fresh nets (default: %(default)s)")
    parser.add_argument("--draws", type=count, default=3, help="fresh nets of each ordering and size (default: 3)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the random gradients (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    sizes = sorted(set(whole_numbers("--sizes", arguments.sizes)))
    names = arguments.orderings.split(",") if arguments.orderings else []
    orderings = {name: model_option("ordering", name) for name in names}
    subjects = subjects_of(arguments)
    if arguments.epochs > 0 and len(subjects) > 1:
        raise UserError(f"--epochs {arguments.epochs}: repeats one run, but {len(subjects)} were named")
    if orderings and not isinstance(subjects[0].model, ResNet):
        raise UserError(f"--orderings {arguments.orderings}: only networks of model=resnet have them")
    with Output("gradients", subjects[0].folder, arguments) as output:
        labels = names_apart(subjects)
        pairs = zip(subjects, labels, strict=True)
        snapshots: list[Snapshot] = []
        measured: list[Config] = []  # several iterations of a run share its fresh network
        for subject, label in pairs:
            snapshots += _snapshots(subject, label, arguments, fresh=subject.config not in measured)
            measured.append(subject.config)
        _write_snapshots(snapshots, output)
        for subject in subjects:
            of_subject = [each for each in snapshots if each.run == subject.name]
            ratios = {f"ratio_{each.time}": first_to_last(each.norms) for each in of_subject}
            output.finding(_finding(subject, of_subject), **ratios, **of_subject[0].bypass.numbers)
            if not any(np.isnan(each.cancelled.values).all() for each in of_subject):
                _find_cancelled(subject, of_subject, output)
        if arguments.epochs > 0:
            _follow(subjects[0], arguments, output)
        if orderings:
            _compare_orderings(subjects[0], orderings, sizes, arguments, output)


@dataclass(frozen=True)
class Snapshot:
    """The measurements of one network at one time; arrays have an entry per unit.

    `values` counts the values that enter the ReLU after the addition, and `below` those that it clips to 0. Without
    such a ReLU, both are 0.
    """

    run: str
    label: str
    time: str
    walk: Walk
    norms: np.ndarray
    signals: Signals
    bypass: Bypass
    cancelled: Cancelled
    below: np.ndarray
    values: np.ndarray
    responses: dict[str, float]

    @property
    def clipped(self) -> np.ndarray:
        """The share of values that is clipped; NaN for a unit without a ReLU after the addition."""
        return np.where(self.values > 0, self.below / np.maximum(self.values, 1), np.nan)


def _snapshots(subject: Subject, label: str, arguments: argparse.Namespace, fresh: bool) -> list[Snapshot]:
    x, labels = one_batch(subject, arguments.images)
    times: dict[str, nn.Module] = {}
    if fresh:
        initial = fresh_network(subject.config, {}, subject.config.seed)
        times["initial"] = initial.to(subject.device).requires_grad_(False)
    if subject.trained:
        times["trained"] = subject.model
    snapshots = []
    for time, model in times.items():
        as_in_training = with_batch_statistics(model)
        walk = walk_of(as_in_training)
        # A fresh net has no stored batch statistics yet, so it is tested with those of the batch.
        tested = model if time == "trained" else as_in_training
        batches = subject.batches("test", arguments.test_images)
        try:
            below, values = clipped(walk_of(tested), with_progress(batches, f"clipping in {subject.name}"))
        except UserError:
            below = values = np.zeros(len(walk))
        snapshots.append(
            Snapshot(
                run=subject.name,
                label=label,
                time=time,
                walk=walk,
                norms=gradient_norms(walk, x, labels),
                signals=signals(walk, x),
                bypass=bypass_of(walk, x, arguments.seed),
                cancelled=cancelled(walk, x, labels),
                below=below,
                values=values,
                responses=responses(tested, with_progress(batches, f"responses of {subject.name}")),
            )
        )
    return snapshots


def _write_snapshots(snapshots: list[Snapshot], output: Output) -> None:
    columns: dict[str, list[object]] = {}
    for snapshot in snapshots:
        units = len(snapshot.walk)
        values = {
            "run": [snapshot.run] * units,
            "time": [snapshot.time] * units,
            "unit": range(1, units + 1),
            "stage": [stage + 1 for stage in snapshot.walk.stages],
            "gradient_norm": snapshot.norms,
            "shortcut_factor": snapshot.bypass.shortcut,
            "shortcut_formula": snapshot.bypass.formula,
            "bypass_factor": snapshot.bypass.whole,
            "clipped_share": snapshot.clipped,
        }
        values |= {f"cancelled_{name}": array for name, array in vars(snapshot.cancelled).items()}
        values |= {f"signal_{name}": array for name, array in vars(snapshot.signals).items()}
        for name, column in values.items():
            columns.setdefault(name, []).extend(column)
    output.table("units", columns)
    layers = [
        (snapshot.run, snapshot.time, number, *response)
        for snapshot in snapshots
        for number, response in enumerate(snapshot.responses.items(), 1)
    ]
    output.rows("responses", ("run", "time", "layer", "name", "deviation"), layers)
    output.figure("units", _units_figure(snapshots))
    latest = {snapshot.label: list(snapshot.responses.values()) for snapshot in snapshots}
    output.figure("responses", _responses_figure(latest))


def _finding(subject: Subject, snapshots: list[Snapshot]) -> str:
    ratios = " and ".join(f"{first_to_last(snapshot.norms):.3g} {_when(snapshot)}" for snapshot in snapshots)
    first, last = snapshots[0], snapshots[-1]
    text = f"{subject.name}: first unit's gradient over the last one's ({len(last.walk)} units): {ratios}; "
    text += first.bypass.sentence(_when(first), fresh=first.time == "initial")
    if last.values.any():
        share = 100 * last.clipped
        total = 100 * last.below.sum() / last.values.sum()
        text += f"; ReLUs after the additions clip {total:.1f}% of all values {_when(last)}, "
        text += f"{np.nanmin(share):.1f}% to {np.nanmax(share):.1f}% by unit"
    else:
        text += "; no ReLU follows an addition"
    return text


def _find_cancelled(subject: Subject, snapshots: list[Snapshot], output: Output) -> None:
    shares = " and ".join(each.cancelled.sentence(_when(each)) for each in snapshots)
    numbers = {f"{name}_{each.time}": share for each in snapshots for name, share in each.cancelled.most.items()}
    text = f"a branch cancels its shortcut's gradient, to less than {CANCELLED:g} of it, in at most {shares}"
    output.finding(
        f"{subject.name}: {text}",
        **{f"cancelled_{name}": share for name, share in numbers.items()},
    )


def _when(snapshot: Snapshot) -> str:
    return "at initialisation" if snapshot.time == "initial" else "trained"


def _units_figure(snapshots: Sequence[Snapshot]) -> Figure:
    """Draw by unit the gradient norm, the signal's standard deviation, and the share of values that a ReLU clips."""
    clips = any(not np.isnan(snapshot.clipped).all() for snapshot in snapshots)
    panels = 2 + clips
    figure = new_figure(0.5 + 2.1 * panels, 7.5)
    axes = figure.subplots(panels, 1, sharex=True)
    labels = list(dict.fromkeys(snapshot.label for snapshot in snapshots))
    is_shared = len(labels) > 1 == sum(snapshot.time == "initial" for snapshot in snapshots)
    names = [f"{snapshot.label}, {snapshot.time}" for snapshot in snapshots]
    for place, snapshot in enumerate(snapshots):
        color = COLOURS[labels.index(snapshot.label) % len(COLOURS)]
        style: dict[str, Any] = {"color": color, "linestyle": "-"}
        if snapshot.time == "initial":
            style["linestyle"] = "--"
            if is_shared:
                style["color"], names[place] = INK, "fresh network"
        line(axes[0], snapshot.norms, label=names[place], **style)
        line(axes[1], snapshot.signals.deviation, **style)
        if clips:
            line(axes[2], 100 * snapshot.clipped, **style)
    axes[0].set(ylabel="gradient norm at its output", yscale="log")
    axes[1].set(ylabel="deviation of its output", yscale="log")
    axes[1].yaxis.set(major_formatter=LogFormatter(), minor_formatter=LogFormatter())  # 4, not 4 x 10^0
    if clips:
        from_zero(axes[2])
        axes[2].set_ylabel("clipped after addition (%)")
    axes[-1].set_xlabel("unit")
    for each in axes:
        mark_stages(each, (snapshot.walk.stages for snapshot in snapshots))
    _name_lines(figure, names)
    return figure


def _responses_figure(by_run: Mapping[str, Sequence[float]]) -> Figure:
    """Draw standard deviations of layer responses, in the order of layers and by size: He et al. 2015, Fig. 7."""
    figure = new_figure(4.2, 7.5)
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    for (label, values), color in zip(by_run.items(), COLOURS * len(by_run), strict=False):
        line(upper, values, color=color, label=label)
        line(lower, sorted(values, reverse=True), color=color)
    upper.set(ylabel="deviation of the response", xlabel="layer")
    from_zero(upper)
    lower.set(ylabel="deviation of the response", xlabel="layer, by size of its response")
    upper.locator_params(axis="x", integer=True)
    _name_lines(figure, list(by_run))
    return figure


def _name_lines(figure: Figure, names: Sequence[str]) -> None:
    figure.legend(loc="outside upper left", fontsize=7, ncols=2 if max(map(len, names)) < 50 else 1)


def _follow(subject: Subject, arguments: argparse.Namespace, output: Output) -> None:
    """Repeat the run's first epochs on one device, without files; measure at the start and after each epoch."""
    x, labels = one_batch(subject, arguments.images)
    precision = choose_precision(subject.config.precision, subject.device)
    training = prepare(replace(subject.config, devices=1), subject.device, precision)
    by_epoch = [gradient_norms(walk_of(with_batch_statistics(training.model)), x, labels)]
    for state in fit(training):
        if state.completed:
            by_epoch.append(gradient_norms(walk_of(with_batch_statistics(state.model)), x, labels))
            if state.epoch == arguments.epochs:
                break
    norms = np.array(by_epoch)
    epoch, unit = np.indices(norms.shape)
    output.table("training", {"epoch": epoch.ravel(), "unit": unit.ravel() + 1, "gradient_norm": norms.ravel()})
    output.figure("training", _training_figure(norms))
    ratios = [first_to_last(row) for row in norms]
    output.finding(
        f"{subject.name}: in {len(norms) - 1} epochs the first unit's gradient over the last one's went from "
        f"{ratios[0]:.3g} to {ratios[-1]:.3g}; it lay between {min(ratios):.3g} and {max(ratios):.3g}",
        ratios=ratios,
    )


def _training_figure(norms: np.ndarray) -> Figure:
    """Draw gradient norms (epochs + 1, units) while a run trains, and by epoch the first unit's over the last one's."""
    figure = new_figure(3, 7.5)
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    image = show_array(
        left, np.log10(norms.T), origin="lower", extent=(-0.5, len(norms) - 0.5, 0.5, norms.shape[1] + 0.5)
    )
    left.set(xlabel="epoch", ylabel="unit")
    left.locator_params(integer=True)
    right.locator_params(axis="x", integer=True)
    figure.colorbar(image, ax=left, label="log10 of the gradient norm")
    line(right, [first_to_last(row) for row in norms], np.arange(len(norms)), color=COLOURS[0])
    right.axhline(1, color=GREY, linewidth=0.7, linestyle="--")
    right.set(xlabel="epoch", ylabel="first unit's gradient over the last one's")
    from_zero(right)
    return figure


def _compare_orderings(
    subject: Subject,
    orderings: dict[str, dict[str, Any]],
    sizes: list[int],
    arguments: argparse.Namespace,
    output: Output,
) -> None:
    """Compare fresh networks like the subject, with several orderings and numbers of units per stage.

    Raises:
        UserError: an ordering or a size does not go with the subject.
    """
    x, labels = one_batch(subject, arguments.images)
    stages = len(subject.config.model["widths"])
    norms_of: dict[str, dict[int, np.ndarray]] = {}  # (draws, units), by ordering and number of units
    for name, ordering in orderings.items():
        for size in sizes:
            # A survival rule may demand more units than a size has, so these nets have none: b is 1.
            changes = {**ordering, "depth": None, "units": [size] * stages, "survival": None}
            drawn = []
            for seed in range(arguments.draws):
                model = fresh_network(subject.config, changes, seed).to(subject.device).requires_grad_(False)
                drawn.append(gradient_norms(walk_of(with_batch_statistics(model)), x, labels))
            norms_of.setdefault(name, {})[size * stages] = np.array(drawn)
    rows = [
        (name, units, draw, unit + 1, norm)
        for name, by_units in norms_of.items()
        for units, norms in by_units.items()
        for (draw, unit), norm in np.ndenumerate(norms)
    ]
    names = ("ordering", "units", "draw", "unit", "gradient_norm")
    output.rows("depth", names, rows)
    output.figure("depth", _orderings_figure(norms_of))
    for name, by_units in norms_of.items():
        ratios = {units: np.mean([first_to_last(row) for row in norms]) for units, norms in by_units.items()}
        listed = ", ".join(f"{ratio:.3g} ({units} units)" for units, ratio in ratios.items())
        output.finding(
            f"{name}, at initialisation: first unit's gradient over the last one's: {listed}",
            units=list(ratios),
            ratios=list(ratios.values()),
        )


def _orderings_figure(norms_of: Mapping[str, Mapping[int, np.ndarray]]) -> Figure:
    """Draw gradient norms (draws, units) by ordering and number of units.

    Bars show the norms of the deepest nets, and lines the first unit's norm over the last one's for all sizes.
    """
    figure = new_figure(1 + 1.7 * len(norms_of), 10)
    grid = figure.add_gridspec(len(norms_of), 2, width_ratios=[2, 1])
    right = figure.add_subplot(grid[:, 1])
    deepest = max(units for by_units in norms_of.values() for units in by_units)
    lefts: list[Axes] = []
    for row, ((name, by_units), color) in enumerate(zip(norms_of.items(), COLOURS * len(norms_of), strict=False)):
        shared = lefts[0] if lefts else None
        left = figure.add_subplot(grid[row, 0], sharex=shared, sharey=shared)
        lefts.append(left)
        norms = by_units[deepest]
        left.bar(np.arange(1, deepest + 1), norms.mean(0), color=color)
        left.set(title=f"{name}, {deepest} units", ylabel="gradient norm")
        ratios = np.array([[first_to_last(row) for row in norms] for norms in by_units.values()])
        mean_and_range(right, list(by_units), ratios, color=color, label=name)
    lefts[-1].set_xlabel("unit")
    right.axhline(1, color=GREY, linewidth=0.7, linestyle="--")
    counts = list(next(iter(norms_of.values())))
    right.plot(counts, np.sqrt(counts), color=GREY, linewidth=0.7, linestyle=":", label="√units")
    right.set(xlabel="units", ylabel="first unit's gradient over the last one's", xscale="log", yscale="log")
    right.set_xticks(counts, map(str, counts))
    right.minorticks_off()
    lowest, highest = right.get_ylim()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if lowest <= tick <= highest]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    right.legend(fontsize=7)
    return figure
