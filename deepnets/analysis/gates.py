"""Transform gates: their biases, how far they open, and how they route (Srivastava et al. 2015, section 4, Fig. 2, 3).

A gate has one value per block. A block is a hidden unit of a fully connected layer, or a feature map, over whose pixels
the gate is averaged. Arrays are (layers, blocks), where a layer is a unit with gates; NaN fills up the narrower layers.
If a net has separate carry gates, only its transform gates are measured.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor

from deepnets.analysis.walk import Walk
from deepnets.errors import UserError
from deepnets.models.gates import SeparatelyGated
from deepnets.models.shortcuts import Gated

OPEN = 0.5  # a gate above 0.5 passes more of H(x) than of x


@dataclass(frozen=True)
class Routing:
    """The gates of a net on a set of images.

    By block, (layers, blocks): `bias`; `mean`, the mean gate over images (Fig. 2, second column); `lifetime`, the
    sparseness of the gate over images; `between`, the share of the gate's variance over images that lies between
    classes. `by_class` (classes, layers, blocks) is the mean gate over the images of each class; `images` (classes,) is
    the number of these images. By image, (images, layers): `opened`, the share of a layer's gates above one half;
    `population`, the sparseness over a layer's blocks; `change`, ||y - x|| / (||x|| + ||y||) of a layer's state.
    """

    bias: np.ndarray
    mean: np.ndarray
    by_class: np.ndarray
    images: np.ndarray
    lifetime: np.ndarray
    between: np.ndarray
    opened: np.ndarray
    population: np.ndarray
    change: np.ndarray

    @property
    def of_classes(self) -> np.ndarray:
        """The mean gate of each class minus the mean gate of all images, (classes, layers, blocks): Fig. 3."""
        return self.by_class - self.mean


def routing_of(walk: Walk, batches: Iterable[tuple[Tensor, Tensor]], classes: int) -> Routing:
    """Measure the routing over all batches (x (N, C, H, W), y (N,)). Raises a UserError for a net without gates."""
    bias, shortcuts = biases(walk), gates_of(walk)
    moments: list[Tensor] = []  # of each layer: the sums of g and of g^2 by class, (classes, 2, blocks)
    images = torch.zeros(classes, dtype=torch.float64)
    by_image: list[np.ndarray] = []
    for x, labels in batches:
        member = torch.nn.functional.one_hot(labels, classes).double()
        images += member.sum(0).cpu()
        sums, rows = [], []
        with torch.inference_mode():
            for gate, _, change in _unit_states(walk, shortcuts, x):
                sums.append(torch.einsum("nc,nmb->cmb", member, torch.stack((gate, gate**2), 1)).cpu())
                rows.append(torch.stack(((gate > OPEN).double().mean(1), sparseness(gate, 1), change)).cpu().numpy())
        moments = [total + more for total, more in zip(moments, sums, strict=True)] if moments else sums
        by_image.append(np.stack(rows, 2))
    count = images.sum()
    mean, square = ([layer.sum(0)[index] / count for layer in moments] for index in (0, 1))
    opened, population, change = np.concatenate(by_image, 1)
    return Routing(
        bias=bias,
        mean=_padded(mean),
        by_class=np.stack(
            [_padded([layer[label, 0] / images[label] for layer in moments]) for label in range(classes)]
        ),
        images=images.numpy(),
        lifetime=_padded([_sparseness(m, s) for m, s in zip(mean, square, strict=True)]),
        between=_padded(
            [_between(layer[:, 0], m, s, images) for layer, m, s in zip(moments, mean, square, strict=True)]
        ),
        opened=opened,
        population=population,
        change=change,
    )


def sparseness(values: Tensor, dim: int) -> Tensor:
    """Compute 1 - <g>^2 / <g^2> over a dimension: 0 if all values are equal, 1 - 1/n if one of n is on.

    Treves and Rolls 1991.
    """
    return _sparseness(values.mean(dim), values.square().mean(dim))


def _sparseness(mean: Tensor, square: Tensor) -> Tensor:
    return 1 - mean.square() / square


def _between(sums: Tensor, mean: Tensor, square: Tensor, images: Tensor) -> Tensor:
    """Divide the variance of the class means by the variance over all images, (blocks,); 0 for constant gates."""
    seen = images > 0
    means = sums[seen] / images[seen, None]
    of_classes = (images[seen, None] * (means - mean).square()).sum(0) / images.sum()
    variance = square - mean.square()
    varies = variance > 1e-12 * square
    return torch.where(varies, of_classes / torch.where(varies, variance, 1.0), 0.0)


def interval(
    statistic: Callable[..., float], *samples: np.ndarray, resamples: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Return a statistic of paired samples and the ends of its 95 % bootstrap percentile interval.

    All three are NaN if the statistic is NaN.
    """
    value = float(statistic(*samples))
    if np.isnan(value):
        return value, value, value
    ends = bootstrap(
        samples, statistic, paired=True, vectorized=False, n_resamples=resamples, method="percentile", rng=seed
    ).confidence_interval
    return value, float(ends.low), float(ends.high)


def biases(walk: Walk) -> np.ndarray:
    """Return the current bias of every block's gate. Raises a UserError for a net without gates."""
    return _padded([shortcut.gate_bias for shortcut in gates_of(walk)])


def of_one_image(walk: Walk, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the gates and the outputs y of each block for one image x (1, C, H, W): Fig. 2, third and fourth column.

    Raises a UserError for a net without gates.
    """
    with torch.inference_mode():
        states = list(_unit_states(walk, gates_of(walk), x))
    gates, outputs = ([each[side][0] for each in states] for side in (0, 1))
    return _padded(gates), _padded(outputs)


def gates_of(walk: Walk) -> list[Gated | SeparatelyGated]:
    """Return the gated shortcut of every unit. Raises a UserError for a net without gates."""
    shortcuts = [unit.shortcut for unit in walk.units if isinstance(unit.shortcut, Gated | SeparatelyGated)]
    if len(shortcuts) < len(walk.units):
        kinds = ", ".join(sorted({type(unit.shortcut).__name__ for unit in walk.units}))
        raise UserError(
            f"this network has shortcuts without gates ({kinds}): choose for example model/shortcut=highway_b2; of "
            "your own shortcuts only subclasses of deepnets.models.shortcuts.Gated count"
        )
    return shortcuts


def _unit_states(
    walk: Walk, shortcuts: Sequence[Gated | SeparatelyGated], x: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the gates and the output y of each unit, averaged over pixels, (N, blocks), and its change of state, (N,).

    The change is ||y - x|| / (||x|| + ||y||): 0 if x is copied, and at most 1. Here x is the resized input.
    """
    for unit, before, b, shortcut in zip(walk.units, walk.before, walk.b, shortcuts, strict=True):
        x = before(x)
        split = unit.before(x)
        gates, start = shortcut.gate(split), shortcut.resize(split)
        x = unit(x, b)
        moved, *sizes = (state.double().flatten(1).norm(dim=1) for state in (x - start, x, start))
        change = moved / sum(sizes).clamp_min(torch.finfo(torch.float64).tiny)
        yield _over_pixels(gates), _over_pixels(x), change


def _over_pixels(values: Tensor) -> Tensor:
    return values.double().flatten(2).mean(2) if values.dim() > 2 else values.double()


def _padded(layers: Sequence[Tensor]) -> np.ndarray:
    """Stack layers (blocks,) as the rows of one array; NaN fills up the shorter rows."""
    array = np.full((len(layers), max(len(layer) for layer in layers)), np.nan)
    for row, layer in zip(array, layers, strict=True):
        row[: len(layer)] = layer.detach().cpu().numpy()
    return array
