"""How gates route: sparse for a sample, selective across samples and classes (Srivastava et al. 2015, Fig. 2 and 3).

Arrays are (layers, blocks) or (images, layers), as those of `gates`, a block being a hidden unit or a feature map.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor

from deepnets.analysis.gates import biases, gates_of, padded, responses
from deepnets.analysis.walk import Walk

OPEN = 0.5  # a gate above it takes more of H(x) than of x


@dataclass(frozen=True)
class Routing:
    """What is known of the gates of a net on a set of images.

    By block: `bias`; `mean`, over images; `lifetime`, the sparseness of its gate over images; `between`, the share of
    its variance over images that lies between classes. By image: `opened`, the share of a layer's gates above one half;
    `population`, the sparseness over a layer's blocks; `change`, ||y - x|| / (||x|| + ||y||) of a
    layer's state.
    """

    bias: np.ndarray
    mean: np.ndarray
    lifetime: np.ndarray
    between: np.ndarray
    opened: np.ndarray
    population: np.ndarray
    change: np.ndarray


def routing_of(walk: Walk, batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Routing:
    """The routing over all batches (x (N, C, H, W), y (N,)). Raises a UserError for a net without gates."""
    bias, shortcuts = biases(walk), gates_of(walk)
    moments: list[Tensor] = []  # of each layer, sums of g and g^2 by class, (classes, 2, blocks)
    images = torch.zeros(classes, dtype=torch.float64)
    by_image: list[np.ndarray] = []
    for x, labels in batches:
        member = torch.nn.functional.one_hot(labels, classes).double()
        images += member.sum(0).cpu()
        found, rows = [], []
        with torch.inference_mode():
            for gate, _, change in responses(walk, shortcuts, x):
                found.append(torch.einsum("nc,nmb->cmb", member, torch.stack((gate, gate**2), 1)).cpu())
                rows.append(torch.stack(((gate > OPEN).double().mean(1), sparseness(gate, 1), change)).cpu().numpy())
        moments = [total + more for total, more in zip(moments, found, strict=True)] if moments else found
        by_image.append(np.stack(rows, 2))
    count = images.sum()
    mean, square = ([layer.sum(0)[index] / count for layer in moments] for index in (0, 1))
    opened, population, change = np.concatenate(by_image, 1)
    return Routing(
        bias=bias,
        mean=padded(mean),
        lifetime=padded([_sparseness(m, s) for m, s in zip(mean, square, strict=True)]),
        between=padded(
            [_between(layer[:, 0], m, s, images) for layer, m, s in zip(moments, mean, square, strict=True)]
        ),
        opened=opened,
        population=population,
        change=change,
    )


def sparseness(values: Tensor, dim: int) -> Tensor:
    """1 - <g>^2 / <g^2> over a dimension: 0 where all are equal, 1 - 1/n where one of n is on.

    Treves and Rolls 1991.
    """
    return _sparseness(values.mean(dim), values.square().mean(dim))


def _sparseness(mean: Tensor, square: Tensor) -> Tensor:
    return 1 - mean.square() / square


def _between(sums: Tensor, mean: Tensor, square: Tensor, images: Tensor) -> Tensor:
    """The variance of the class means over that of all images, (blocks,); 0 where nothing varies."""
    there = images > 0
    means = sums[there] / images[there, None]
    of_classes = (images[there, None] * (means - mean).square()).sum(0) / images.sum()
    variance = square - mean.square()
    varies = variance > 1e-12 * square
    return torch.where(varies, of_classes / torch.where(varies, variance, 1.0), 0.0)


def interval(
    statistic: Callable[..., float], *samples: np.ndarray, resamples: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """A statistic of paired samples, and its bootstrap 95 % interval over them (percentiles); NaN where it is none."""
    value = float(statistic(*samples))
    if np.isnan(value):
        return value, value, value
    found = bootstrap(
        samples, statistic, paired=True, vectorized=False, n_resamples=resamples, method="percentile", rng=seed
    ).confidence_interval
    return value, float(found.low), float(found.high)
