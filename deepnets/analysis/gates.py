"""Transform gates: their biases, and how far they open (Srivastava et al. 2015, section 4, Fig. 2 and 3).

A gate has a value per block: a hidden unit of a fully connected layer, or a feature map, averaged over its pixels.
Arrays are (layers, blocks), layers being the units with gates; where layers differ in width, NaN fills the narrow ones.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from deepnets.analysis.walk import Walk
from deepnets.errors import UserError
from deepnets.models.shortcuts import Gated


def biases(walk: Walk) -> np.ndarray:
    """The bias of every block's gate, as it is now. Raises a UserError for a net without gates."""
    return padded([shortcut.gate_bias for shortcut in gates_of(walk)])


def activity_by_class(
    walk: Walk, batches: Iterable[tuple[Tensor, Tensor]], classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The mean gate output over the images of each class, (classes, layers, blocks), and their numbers (classes,).

    Raises a UserError for a net without gates.
    """
    shortcuts = gates_of(walk)
    sums: list[Tensor] = []
    images = torch.zeros(classes, dtype=torch.float64)
    for x, labels in batches:
        member = torch.nn.functional.one_hot(labels, classes).double()
        images += member.sum(0).cpu()
        with torch.inference_mode():
            found = [member.T @ gates for gates, *_ in responses(walk, shortcuts, x)]
            sums = [total + more for total, more in zip(sums, found, strict=True)] if sums else found
    means = [total.cpu() / images[:, None] for total in sums]
    return np.stack([padded([layer[label] for layer in means]) for label in range(classes)]), images.numpy()


def mean_activity(by_class: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The mean gate output over all images: Fig. 2, second column."""
    there = images > 0
    return np.average(by_class[there], axis=0, weights=images[there])


def routing(by_class: np.ndarray, images: np.ndarray) -> np.ndarray:
    """How far the mean over each class lies above that over all images, (classes, layers, blocks): Fig. 3."""
    return by_class - mean_activity(by_class, images)


def of_one(walk: Walk, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The gates and the outputs y of each block for one image x (1, C, H, W): Fig. 2, third and fourth column.

    Raises a UserError for a net without gates.
    """
    with torch.inference_mode():
        found = list(responses(walk, gates_of(walk), x))
    gates, outputs = ([each[side][0] for each in found] for side in (0, 1))
    return padded(gates), padded(outputs)


def gates_of(walk: Walk) -> list[Gated]:
    """The gated shortcut of every unit. Raises a UserError for a net without gates."""
    shortcuts = [unit.shortcut for unit in walk.units if isinstance(unit.shortcut, Gated)]
    if len(shortcuts) < len(walk.units):
        kinds = ", ".join(sorted({type(unit.shortcut).__name__ for unit in walk.units}))
        raise UserError(
            f"this network has shortcuts without gates ({kinds}): choose for example model/shortcut=highway_b2"
        )
    return shortcuts


def responses(walk: Walk, shortcuts: Sequence[Gated], x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each unit in turn, gates and output (N, blocks), averaged over pixels, and how far it changes its state, (N,).

    That is ||y - x|| / (||x|| + ||y||), 0 where x is copied and at most 1; x is taken as the shortcut resizes it.
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


def padded(layers: Sequence[Tensor]) -> np.ndarray:
    """The layers (blocks,) as rows of one array, filled up with NaN."""
    array = np.full((len(layers), max(len(layer) for layer in layers)), np.nan)
    for row, layer in zip(array, layers, strict=True):
        row[: len(layer)] = layer.detach().cpu().numpy()
    return array
