"""How many paths have each length, and which lengths carry the gradient (Veit et al. 2016, sections 4 and 5)."""

from collections.abc import Sequence
from math import comb

import numpy as np
from scipy.stats import binom

from deepnets.errors import UserError


def path_share(units: int, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Which share of all 2^n paths has each length: Fig. 6a, Binomial(n, 1/2)."""
    return binom.pmf(lengths, units, 0.5)


def surviving_paths(units: int, deleted: int, lengths: tuple[int, int] | None = None) -> int:
    """How many of the 2^units paths are left without `deleted` branches, 2^(units - deleted); of `lengths` only.

    Both ends count. Veit et al. 2016, section 4.2.
    """
    left = units - deleted
    first, last = lengths or (0, left)
    return sum(comb(left, length) for length in range(first, last + 1))


def effective_lengths(products: np.ndarray, share: float = 0.95) -> tuple[int, int]:
    """The shortest range of indices, both ends included, that holds that share of the sum of `products`.

    Raises:
        UserError: they are not finite.
    """
    if not np.isfinite(products).all():
        raise UserError("the gradients of this network are not finite: it diverged or overflows; use another")
    sums = np.concatenate(([0.0], np.cumsum(products)))
    ranges = [
        (last - first, first, last)
        for first in range(len(products))
        for last in range(first, len(products))
        if sums[last + 1] - sums[first] >= share * sums[-1]
    ]
    _, first, last = min(ranges)
    return first, last


def effective_paths(
    means: np.ndarray, share_of_paths: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Which share of all paths has an effective length, and its bootstrap 95 % interval over the images.

    `means` (lengths, images) are of `means_by_image`, `share_of_paths` is of the same lengths. Gradients differ so much
    between images that a few of them may decide. Raises a UserError where they are not finite.
    """

    def share(means: np.ndarray) -> float:
        first, last = effective_lengths(share_of_paths * means.mean(1))
        return share_of_paths[first : last + 1].sum()

    images = means.shape[1]
    resampled = [share(means[:, rng.integers(images, size=images)]) for _ in range(resamples)]
    low, high = np.quantile(resampled, (0.025, 0.975))
    return share(means), (low, high)


def means_by_image(norms: np.ndarray, images: int) -> np.ndarray:
    """Each image's mean of `norms_by_length`, (lengths, images): draws of one image are not independent, images are."""
    return np.stack([norms[:, image::images].mean(1) for image in range(images)], axis=1)
