"""Depth in a small memory: what the backward pass needs is computed again instead of being kept."""

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
    """A sequence of layers; with `recompute`, only the convolutions' outputs are kept for the backward pass.

    What stands in front of each, batch normalisation and ReLU, is computed again. The convolution itself is not: it is
    the last to need a tensor, where recomputation stops.
    """

    recompute = False

    def forward(self, x: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return super().forward(x)
        for part in _parts(self):
            x = recomputed(part, x, within=part)
        return x


def recomputed(function: Callable[..., Tensor], *arguments: Any, within: nn.Module) -> Tensor:
    """`function(*arguments)`, of which only the arguments are kept; the backward pass calls it again.

    The second call draws the same random numbers and leaves the statistics of batch normalisation `within` alone, so
    gradients, statistics and whatever is drawn next are those of a plain call, on a CPU bit by bit.
    """
    return checkpoint(
        function,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=any(map(draws, within.modules())),
        context_fn=lambda: (nullcontext(), _still(within)),
    )


def through(units: Sequence[nn.Module], survival: Sequence[float | None], x: Tensor, memory: Memory) -> Tensor:
    """x behind `units`, the b of each from `survival`, None for other layers; for "recompute_units" the input of each
    is kept, for "recompute_segments" that of some: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    if memory not in (Memory.recompute_units, Memory.recompute_segments) or not torch.is_grad_enabled():
        return _plainly(units, survival, x)
    # A unit keeps about three times the size of its input, which makes sqrt(L / 3) the segment of least memory.
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
    """Batch normalisation normalises as ever, but its running statistics stay."""
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
    """The layers up to each convolution, and the rest."""
    ends = [index + 1 for index, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
    bounds = [0, *ends, *([len(layers)] if ends[-1:] != [len(layers)] else [])]
    return [layers[first:last] for first, last in pairwise(bounds)]


def draws(module: nn.Module) -> bool:
    """Whether it takes random numbers as it computes."""
    return isinstance(module, Dropped) or (isinstance(module, nn.Dropout) and module.p > 0)
