"""What differs between trainings of one net: which images each gets wrong (Jordan 2024; Summers and Dinneen 2021)."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Variability:
    """Of runs that were judged on the same images.

    `errors` (runs,) in percent; `share` (images,), that of the runs which get an image wrong; `disagreement` (runs,
    runs), the percentage of images that one of two runs gets wrong and the other right.
    """

    errors: np.ndarray
    share: np.ndarray
    disagreement: np.ndarray

    @property
    def deviation(self) -> float:
        """The standard deviation of the runs' errors, in points."""
        return float(self.errors.std(ddof=1))

    @property
    def independent(self) -> float:
        """The deviation if each image fell by its own chance, whatever the others do: 100 sqrt(sum p (1 - p)) / images.

        p (1 - p) of an image is estimated without bias from its share among the runs.
        """
        runs = len(self.errors)
        variance = self.share * (1 - self.share) * runs / (runs - 1)
        return float(100 * np.sqrt(variance.sum()) / len(self.share))

    @property
    def mean_disagreement(self) -> float:
        """Of all pairs of runs."""
        return float(np.mean([self.disagreement[pair] for pair in combinations(range(len(self.errors)), 2)]))


def variability(wrong: np.ndarray) -> Variability:
    """Of at least two runs (runs, images) of bool: which images each got wrong."""
    one_only = wrong.astype(float) @ ~wrong.T  # images that the first gets wrong and the second right
    return Variability(100 * wrong.mean(1), wrong.mean(0), 100 * (one_only + one_only.T) / wrong.shape[1])
