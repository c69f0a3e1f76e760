"""Gradients, signals and responses over depth, post- against pre-activation (He et al. 2015, Fig. 7; 2016, section 4).

Measured at initialisation and, of a run folder, as trained; with --epochs also while it trains. Several run folders
make one figure.
"""

import argparse
from dataclasses import replace

import numpy as np

from deepnets.analysis import gradients
from deepnets.analysis.commands import gradient_figures as figures
from deepnets.analysis.commands.bypass import bypass_of
from deepnets.analysis.commands.gradient_figures import State
from deepnets.analysis.commands.orderings import compare, compared
from deepnets.analysis.commands.outcome import Outcome, tracked
from deepnets.analysis.commands.subject import Subject, names_apart, one_batch, subjects_of
from deepnets.analysis.commands.variants import fresh
from deepnets.analysis.gradients import first_to_last, with_batch_statistics
from deepnets.analysis.signals import clipped, responses, signals
from deepnets.analysis.walk import walk_of
from deepnets.command import count, number, whole
from deepnets.errors import UserError
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.hardware import choose_precision


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen besides the subject."""
    parser.add_argument("--images", type=number, default=128, help="training images of the one batch (default: 128)")
    parser.add_argument("--test-images", type=number, help="images for responses and clipped shares (default: all)")
    parser.add_argument(
        "--epochs", type=number, default=0, help="epochs of the one run to repeat and measure (default: 0)"
    )
    parser.add_argument(
        "--orderings", default="original,full_preactivation", help="compared in fresh nets (default: %(default)s)"
    )
    parser.add_argument(
        "--sizes", default="1,3,6,12", help="units per stage of what is compared (default: %(default)s)"
    )
    parser.add_argument("--draws", type=count, default=3, help="fresh networks of each of these (default: 3)")
    parser.add_argument("--seed", type=whole, default=0, help="of the random gradients (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    orderings, sizes = compared(arguments)
    subjects = subjects_of(arguments)
    if arguments.epochs > 0 and len(subjects) > 1:
        raise UserError(f"--epochs {arguments.epochs}: repeats one run, but {len(subjects)} are named")
    with Outcome("gradients", subjects[0].folder, arguments) as outcome:
        labels = names_apart([subject.name for subject in subjects])
        pairs = zip(subjects, labels, strict=True)
        states = [state for subject, label in pairs for state in _states(subject, label, arguments)]
        _write_states(states, outcome)
        for subject in subjects:
            measured = [state for state in states if state.run == subject.name]
            ratios = {f"ratio_{state.time}": first_to_last(state.norms) for state in measured}
            outcome.finding(_finding(subject, measured), **ratios, **measured[0].bypass.numbers)
        if arguments.epochs > 0:
            _follow(subjects[0], arguments, outcome)
        try:
            compare(subjects[0], orderings, sizes, arguments, outcome)
        except UserError as error:
            outcome.finding(f"orderings are not compared: {error}")


def _states(subject: Subject, label: str, arguments: argparse.Namespace) -> list[State]:
    x, labels = one_batch(subject, arguments.images)
    times = {"initial": fresh(subject.config, {}, subject.config.seed).to(subject.device).requires_grad_(False)}
    if subject.trained:
        times["trained"] = subject.model
    states = []
    for time, model in times.items():
        as_in_training = with_batch_statistics(model)
        walk = walk_of(as_in_training)
        # A fresh net's own statistics are none: only a trained one is tested with them.
        tested = model if time == "trained" else as_in_training
        batches = subject.batches("test", arguments.test_images)
        try:
            below, values = clipped(walk_of(tested), tracked(batches, f"clipping in {subject.name}"))
        except UserError:
            below = values = np.zeros(len(walk))
        states.append(
            State(
                run=subject.name,
                label=label,
                time=time,
                walk=walk,
                norms=gradients.gradient_norms(walk, x, labels),
                signals=signals(walk, x),
                bypass=bypass_of(walk, x, arguments.seed),
                below=below,
                values=values,
                responses=responses(tested, tracked(batches, f"responses of {subject.name}")),
            )
        )
    return states


def _write_states(states: list[State], outcome: Outcome) -> None:
    columns: dict[str, list[object]] = {}
    for state in states:
        units = len(state.walk)
        values = {
            "run": [state.run] * units,
            "time": [state.time] * units,
            "unit": range(1, units + 1),
            "stage": [stage + 1 for stage in state.walk.stages],
            "gradient_norm": state.norms,
            "shortcut_factor": state.bypass.shortcut,
            "shortcut_formula": state.bypass.formula,
            "bypass_factor": state.bypass.whole,
            "clipped_share": state.clipped,
        }
        values |= {f"signal_{name}": array for name, array in vars(state.signals).items()}
        for name, column in values.items():
            columns.setdefault(name, []).extend(column)
    outcome.table("units", columns)
    layers = [
        (state.run, state.time, number, *response)
        for state in states
        for number, response in enumerate(state.responses.items(), 1)
    ]
    outcome.rows("responses", ("run", "time", "layer", "name", "deviation"), layers)
    outcome.figure("units", figures.units(states))
    latest = {state.label: list(state.responses.values()) for state in states}
    outcome.figure("responses", figures.responses(latest))


def _finding(subject: Subject, states: list[State]) -> str:
    ratios = " and ".join(f"{first_to_last(state.norms):.3g} {_when(state)}" for state in states)
    start, state = states[0], states[-1]
    text = f"{subject.name}: gradient of the first of {len(state.walk)} units over that of the last {ratios}; "
    text += start.bypass.sentence(_when(start))
    if state.values.any():
        share = 100 * state.clipped
        total = 100 * state.below.sum() / state.values.sum()
        text += f"; ReLUs behind the additions clip {total:.1f}% of all values {_when(state)}, "
        text += f"{np.nanmin(share):.1f}% to {np.nanmax(share):.1f}% by unit"
    else:
        text += "; no ReLU behind the additions clips anything"
    return text


def _when(state: State) -> str:
    return "at initialisation" if state.time == "initial" else "trained"


def _follow(subject: Subject, arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Train as the run was, but on one device, in memory, and measure before it and behind each of the first epochs."""
    x, labels = one_batch(subject, arguments.images)
    precision = choose_precision(subject.config.precision, subject.device)
    training = prepare(replace(subject.config, devices=1), subject.device, precision)
    found = [gradients.gradient_norms(walk_of(with_batch_statistics(training.model)), x, labels)]
    for state in fit(training):
        if state.completed:
            found.append(gradients.gradient_norms(walk_of(with_batch_statistics(state.model)), x, labels))
            if state.epoch == arguments.epochs:
                break
    norms = np.array(found)
    epoch, unit = np.indices(norms.shape)
    outcome.table("training", {"epoch": epoch.ravel(), "unit": unit.ravel() + 1, "gradient_norm": norms.ravel()})
    outcome.figure("training", figures.training(norms))
    ratios = [first_to_last(row) for row in norms]
    outcome.finding(
        f"{subject.name}: in {len(norms) - 1} epochs that ratio went from {ratios[0]:.3g} to {ratios[-1]:.3g}, "
        f"between {min(ratios):.3g} and {max(ratios):.3g}",
        ratios=ratios,
    )
