"""Gradients of the parameters in one arithmetic beside another: how far rounding carries them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis.gradients import BATCH
from deepnets.analysis.walk import Walk

Images = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Agreement:
    """Of a gradient g with the reference r: cosine g r / |g| |r| and relative difference |g - r| / |r|.

    `cosines` and `differences` have an entry per unit, `cosine` and `difference` are over all parameters. NaN where one
    of the two is 0.
    """

    cosines: np.ndarray
    differences: np.ndarray
    cosine: float
    difference: float


def parameter_gradients(
    model: nn.Module, x: Tensor, labels: Tensor, precision: torch.dtype, *, float32_stream: bool = False
) -> list[Tensor]:
    """dL/dw of each parameter, L the mean cross-entropy of images x (N, C, H, W), as training computes it.

    More than BATCH images are several batches, whose gradients are added.
    With `float32_stream` what the stem hands to the units is float32 under autocast, and so is all that is only added
    to it; the branches compute in bfloat16 as before.
    """
    with ExitStack() as held:
        if float32_stream:
            stem = model.get_submodule("stem")
            held.callback(stem.register_forward_hook(lambda module, given, output: output.float()).remove)
        count = ceil(len(x) / BATCH)
        found = []
        for images, own in zip(x.tensor_split(count), labels.tensor_split(count), strict=True):
            with torch.enable_grad():
                with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
                    logits = model(images).float()
                loss = cross_entropy(logits, own) * (len(own) / len(labels))
                found.append(torch.autograd.grad(loss, list(model.parameters())))
        return [torch.stack(parts).sum(0) for parts in zip(*found, strict=True)]


def agreement(model: nn.Module, walk: Walk, gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> Agreement:
    """Of the `gradients` of all parameters of `model` with the `reference`, by the units of its walk and in whole."""
    index = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    units = [[index[id(parameter)] for parameter in unit.parameters()] for unit in walk.units]
    parts = [_compared(gradients, reference, places) for places in [*units, range(len(reference))]]
    cosines, differences = np.array(parts).T
    return Agreement(cosines[:-1], differences[:-1], cosines[-1], differences[-1])


def perturbed(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """x and Gaussian noise of `share` times its norm."""
    noise = torch.randn(x.shape, generator=generator).to(x)
    return x + share * x.norm() / noise.norm() * noise


def _compared(gradients: Sequence[Tensor], reference: Sequence[Tensor], places: Sequence[int]) -> tuple[float, float]:
    g, r = (torch.cat([part[place].flatten() for place in places]).double() for part in (gradients, reference))
    return (g @ r / (g.norm() * r.norm())).item(), ((g - r).norm() / r.norm()).item()
