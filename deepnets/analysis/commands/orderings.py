"""Gradients of fresh networks that differ in depth and in the ordering of their activations."""

import argparse
from typing import Any

import numpy as np

from deepnets.analysis.commands import gradient_figures as figures
from deepnets.analysis.commands.outcome import Outcome, whole_numbers
from deepnets.analysis.commands.subject import Subject, one_batch
from deepnets.analysis.commands.variants import chosen, fresh
from deepnets.analysis.gradients import first_to_last, gradient_norms, with_batch_statistics
from deepnets.analysis.walk import walk_of
from deepnets.errors import UserError
from deepnets.models.resnet import ResNet


def compared(arguments: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], list[int]]:
    """The orderings, each as it stands in a model's node, and the units per stage; a UserError for what is none."""
    sizes = sorted(set(whole_numbers("--sizes", arguments.sizes)))
    return {name: chosen("ordering", name) for name in arguments.orderings.split(",")}, sizes


def compare(
    subject: Subject,
    orderings: dict[str, dict[str, Any]],
    sizes: list[int],
    arguments: argparse.Namespace,
    outcome: Outcome,
) -> None:
    """Fresh networks like the subject, of several depths and orderings; a UserError where they cannot be."""
    if not isinstance(subject.model, ResNet):
        raise UserError("only networks of model=resnet have them")
    x, labels = one_batch(subject, arguments.images)
    stages = len(subject.config.model["widths"])
    found: dict[str, dict[int, np.ndarray]] = {}
    for name, ordering in orderings.items():
        for size in sizes:
            # A number of surviving units would not suit all depths, and all units take part before training anyway.
            changes = {**ordering, "depth": None, "units": [size] * stages, "survival": None}
            drawn = []
            for seed in range(arguments.draws):
                model = fresh(subject.config, changes, seed).to(subject.device).requires_grad_(False)
                drawn.append(gradient_norms(walk_of(with_batch_statistics(model)), x, labels))
            found.setdefault(name, {})[size * stages] = np.array(drawn)
    rows = [
        (name, units, draw, unit + 1, norm)
        for name, by_units in found.items()
        for units, norms in by_units.items()
        for (draw, unit), norm in np.ndenumerate(norms)
    ]
    names = ("ordering", "units", "draw", "unit", "gradient_norm")
    outcome.rows("depth", names, rows)
    outcome.figure("depth", figures.depth(found))
    for name, by_units in found.items():
        ratios = {units: np.mean([first_to_last(row) for row in norms]) for units, norms in by_units.items()}
        listed = ", ".join(f"{ratio:.3g} of {units}" for units, ratio in ratios.items())
        outcome.finding(
            f"{name}, at initialisation: first unit's gradient over the last one's {listed} units",
            units=list(ratios),
            ratios=list(ratios.values()),
        )
