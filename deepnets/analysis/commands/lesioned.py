"""A subject whose units are deleted and moved, and the images on which that is judged."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from deepnets.analysis import lesion
from deepnets.analysis.commands.outcome import Saved, tracked
from deepnets.analysis.commands.subject import Subject
from deepnets.analysis.lesion import Scores, Variant
from deepnets.analysis.walk import walk_of
from deepnets.training.hardware import choose_precision

CACHED_VALUES = 2**20  # of a unit's input, which stay in a processor's cache: the fastest batch, whatever the net
POINTS = 10  # numbers of deletions and of swaps that are tried


class Lesioned:
    """One net of a figure, with its colour and its images: the training set where deleting means to close gates."""

    def __init__(self, subject: Subject, color: str, arguments: argparse.Namespace) -> None:
        self.subject, self.name, self.label, self.color = subject, subject.name, subject.name, color
        self.walk = walk_of(subject.settled())
        self.precision = choose_precision(subject.config.precision, subject.device)  # its test error is measured in it
        self.split = arguments.split or ("train" if lesion.closes_gates(self.walk) else "test")
        images = subject.batches(self.split, arguments.images)
        self.sample = next(iter(images))[0][:1]
        if subject.device.type == "cpu":
            values = max(state.numel() for state in self.walk.inputs(self.sample))
            images.batch_size = min(max(CACHED_VALUES // values, 1), 4096)
        self.batches = images
        self.generator = np.random.default_rng(arguments.seed)
        self.asked = 0  # how many sets of variants
        self.saved: Saved  # where their sums go, once the results have a folder

    def scores(self, variants: Sequence[Variant]) -> Scores:
        """The scores on all images; each batch is saved as soon as it is done."""
        self.asked += 1
        sums, images = np.zeros((len(variants), 2)), 0
        for x, labels in tracked(self.batches, f"{len(variants)} variants of {self.name}"):
            key = f"{self.name} {self.asked} {images}"
            found = self.saved.once(key, partial(lesion.sums_of, self.walk, x, labels, variants, self.precision))
            sums += np.reshape(found, sums.shape)
            images += len(labels)
        return lesion.scored(sums, images)

    def drawn(self, most: int, draws: int, draw: Callable[[int], Variant]) -> tuple[np.ndarray, list[Variant], Scores]:
        """`draws` variants of 0 and of each of up to POINTS numbers of changes: these numbers, variants, scores."""
        changes = np.repeat([0, *np.unique(np.linspace(1, most, POINTS).round().astype(int))], draws)
        variants = [draw(count) for count in changes]
        return changes, variants, self.scores(variants)
