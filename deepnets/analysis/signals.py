"""Forward signals over depth: what units and layers put out, and what is clipped behind the additions."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from deepnets.analysis.gradients import layers_with_weights
from deepnets.analysis.walk import Walk, terms
from deepnets.errors import UserError


@dataclass(frozen=True)
class Signals:
    """Of each unit's output, over all its values: mean, deviation, 10th and 90th percentile, share below 0; (units,).

    `shortcut` and `branch` are the root mean squares of the two terms of its sum, h(x) and what F(x) adds to it.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    negative: np.ndarray
    shortcut: np.ndarray
    branch: np.ndarray


def signals(walk: Walk, x: Tensor) -> Signals:
    """The signals of images x (N, C, H, W)."""
    rows = []
    with torch.inference_mode():
        for unit, before, b in zip(walk.units, walk.before, walk.b, strict=True):
            h, y = terms(unit, before(x), b)
            x = unit.after(y)
            values = x.double().flatten().cpu().numpy()
            low, high = np.percentile(values, (10, 90))
            rows.append((values.mean(), values.std(), low, high, (values < 0).mean(), _rms(h), _rms(y - h)))
    return Signals(*np.array(rows).T)


def clipped(walk: Walk, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """How many values the ReLU behind each unit's addition sets to 0, and of how many, (units,); 0 where none stands.

    Raises:
        UserError: no unit has one.
    """
    if not any(isinstance(layer, nn.ReLU) for unit in walk.units for layer in unit.after.children()):
        raise UserError("no ReLU stands behind an addition here: choose for example model/ordering=original")
    below, values = np.zeros(len(walk)), np.zeros(len(walk))
    with torch.inference_mode():
        for x, _ in batches:
            for index, (unit, before, b) in enumerate(zip(walk.units, walk.before, walk.b, strict=True)):
                _, x = terms(unit, before(x), b)
                for layer in unit.after.children():
                    if isinstance(layer, nn.ReLU):
                        below[index] += (x < 0).sum().item()
                        values[index] += x.numel()
                    x = layer(x)
    return below, values


def responses(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The standard deviation, over all its values, of what each layer with weights responds: by the layer's name.

    A response is what stands behind the layer's BN, or behind the layer itself where no BN follows, in front of ReLU or
    addition; head and shortcuts are left out. He et al. 2015, section 4.2 and Fig. 7.
    """
    found = layers_with_weights(model)
    sums = {name: np.zeros(3) for name in found}

    def note(total: np.ndarray, _: nn.Module, __: tuple[Tensor, ...], response: Tensor) -> None:
        response = response.double()
        total += (response.numel(), response.sum().item(), (response**2).sum().item())

    observers = [module.register_forward_hook(partial(note, sums[name])) for name, module in found.items()]
    try:
        with torch.inference_mode():
            for x, _ in batches:
                model(x)
    finally:
        for observer in observers:
            observer.remove()
    return {
        name: float(np.sqrt(max(squares / count - (total / count) ** 2, 0.0)))
        for name, (count, total, squares) in sums.items()
    }


def _rms(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()
