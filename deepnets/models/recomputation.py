"""Saves memory: the backward pass computes again the activations that the forward pass did not store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from deepnets.models.settings import Memory
from deepnets.models.shortcuts import Dropped


class Branch(nn.Sequential):
    """A sequence of layers; with `recompute`, it stores only the convolutions' outputs for the backward pass.

    The backward pass computes the batch normalisation and ReLU in front of each convolution again, but not the
    convolution itself: it stops at the convolution's input, the last tensor that it needs.
    """

    recompute = False

    def forward(self, x: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return super().forward(x)
        for part in _parts(self):
            x = recomputed(part, x, within=part)
        return x


def recomputed(function: Callable[..., Tensor], *arguments: Any, within: nn.Module) -> Tensor:
    """Call `function(*arguments)` and store only the arguments; the backward pass calls it again.

    The second call draws the same random numbers and does not change the statistics of batch normalisation in `within`.
    So gradients, statistics and later random numbers equal those of a plain call, on a CPU bit by bit.
    """
    return checkpoint(
        function,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=any(map(draws, within.modules())),
        context_fn=lambda: (nullcontext(), _still(within)),
    )


def through(units: Sequence[nn.Module], survival: Sequence[float | None], x: Tensor, memory: Memory) -> Tensor:
    """Pass x through `units`; `survival` has the b of each, or None for a layer that is not a unit.

    "recompute_units" stores the input of each, "recompute_segments" only of the first in each segment: Chen et al.
    2016, "Training deep nets with sublinear memory cost".
    """
    if memory not in (Memory.recompute_units, Memory.recompute_segments) or not torch.is_grad_enabled():
        return _plainly(units, survival, x)
    # A unit stores about three times the size of its input, so segments of sqrt(L / 3) units take the least memory.
    length = 1 if memory == Memory.recompute_units else max(1, round(sqrt(len(units) / 3)))
    for first in range(0, len(units), length):
        segment = units[first : first + length]
        x = recomputed(_plainly, segment, survival[first : first + length], x, within=nn.ModuleList(segment))
    return x


def _plainly(units: Sequence[nn.Module], survival: Sequence[float | None], x: Tensor) -> Tensor:
    for unit, b in zip(units, survival, strict=True):
        x = unit(x) if b is None else unit(x, b)
    return x


@contextmanager
def _still(within: nn.Module) -> Iterator[None]:
    """Let batch normalisation in `within` normalise as always, but not change its running statistics."""
    norms = [module for module in within.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


def _parts(layers: nn.Sequential) -> list[nn.Sequential]:
    """Cut the sequence after each convolution or linear layer."""
    ends = [index + 1 for index, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
    bounds = [0, *ends, *([len(layers)] if ends[-1:] != [len(layers)] else [])]
    return [layers[first:last] for first, last in pairwise(bounds)]


def draws(module: nn.Module) -> bool:
    """Return whether the module draws random numbers in training."""
    return isinstance(module, Dropped) or (isinstance(module, nn.Dropout) and module.p > 0)
