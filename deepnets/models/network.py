"""The base class of networks that consist of a stem, stages of units, a tail and a head.

To save memory, the backward pass can compute again the activations that the forward pass did not store. `divide`
prepares a network for batches that several processes share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from deepnets.models.batchnorm import BatchNorm, GhostBatchNorm, SynchronizedBatchNorm
from deepnets.models.gates import Delta
from deepnets.models.initialization import Initialization, initialize
from deepnets.models.parallel import Dropout, Share
from deepnets.models.shortcuts import Dropped
from deepnets.models.survival import Survival, own_generator
from deepnets.models.unit import Unit
from deepnets.system.settings import Memory

OURS = {"deepnets", "torch", "builtins", "abc", "typing"}  # the packages of classes that are nobody's own


class UnitNetwork(nn.Module):
    """logits = head(pool(tail(units(stem(x))))); `survival` gives each unit the b of x' = f(h(x) + b F(x)).

    A family of networks sets `stem`, `stages`, `tail` and `head` in its constructor, and then calls `complete`. A stage
    may hold other layers besides units. Stochastic depth and recomputation are the same in all families.
    """

    stem: nn.Module
    stages: nn.Sequential
    tail: nn.Module
    head: nn.Linear

    @property
    def units(self) -> list[Unit]:
        """All units, from the stem to the head."""
        return [unit for stage in self.stages for unit in stage.children() if isinstance(unit, Unit)]

    @property
    def parts(self) -> list[Callable[[Tensor], Tensor]]:
        """The functions that an image passes, from the first to the last; the stages among them contain the units."""
        return [self.stem, *self.stages, self.tail, self.pool, self.head]

    def complete(self, survival: Survival | None, initialization: Initialization | str) -> None:
        """Set `survival` and draw all parameters, after the constructor has built the layers.

        Raises ValueError if stochastic depth could skip the branch of a plain unit, or if a shortcut reads only the
        direction of F(x), or if `survival` or `initialize` raises it.
        """
        self.survival = survival
        self.keep(Memory.full)
        if survival is not None:
            survival.expected(len(self.units))
            if any(unit.is_plain for unit in self.units):
                raise ValueError(
                    "a plain unit computes nothing without its branch: choose a shortcut, or survival none"
                )
            if any(type(unit.shortcut) is Delta for unit in self.units):
                raise ValueError(
                    "deep_delta reads the direction of F(x) alone, which p F(x) has too: choose survival none"
                )
        initialize(self, self.head, initialization)
        self.generator = own_generator() if survival else None

    def keep(self, memory: Memory) -> None:
        """Choose the tensors that the forward pass stores; the backward pass computes the others again.

        full, the default, stores all; recompute_activations stores the outputs of the convolutions; recompute_units
        stores the input of every unit; recompute_segments stores the inputs of about sqrt(3 L) of the L units. The
        gradients are the same, on a CPU bit by bit.
        """
        self.memory = memory
        branch = RecomputedBranch if memory == Memory.recompute_activations else nn.Sequential
        for unit in self.units:
            if type(unit.branch) in (nn.Sequential, RecomputedBranch):
                unit.branch = branch(*unit.branch)

    def forward(self, x: Tensor) -> Tensor:
        layers = [layer for stage in self.stages for layer in stage.children()]
        survival = iter(self._survival())
        factors = [next(survival) if isinstance(layer, Unit) else None for layer in layers]
        x = _through(layers, factors, self.stem(x), self.memory)
        return self.head(self.pool(self.tail(x)))

    def pool(self, x: Tensor) -> Tensor:
        """Average the tail's maps (N, C, H, W) for the head: (N, C)."""
        return x.mean((2, 3))

    def _survival(self) -> list[float]:
        """Return b of each unit: in training a new draw at each call, at test the expected value."""
        units = len(self.units)
        if self.survival is None:
            return [1.0] * units
        return self.survival.drawn(units, self.generator) if self.training else self.survival.expected(units)


def divide(model: nn.Module, share: Share) -> None:
    """Give `share` to all layers that draw random numbers, or whose output depends on more than one image.

    Torch's BatchNorm2d and Dropout inside a user's own layer get it too. A user's layer that itself computes statistics
    or draws random numbers gets no share: it works on this process's part of the batch alone.
    """
    for module in list(model.modules()):
        if isinstance(module, GhostBatchNorm | Dropped):
            module.share = share
            continue  # GhostBatchNorm computes the statistics for the BatchNorm2d inside it
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d) and type(child) in (nn.BatchNorm2d, BatchNorm):
                setattr(module, name, SynchronizedBatchNorm(child, share))
            elif type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p, share))


class RecomputedBranch(nn.Sequential):
    """A branch that stores only the convolutions' outputs for the backward pass.

    The backward pass computes the batch normalisation and ReLU in front of each convolution again. It does not repeat
    the convolution, because the gradients need only the convolution's input.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        for part in _parts(self):
            x = recomputed(part, x, within=part)
        return x


def recomputed(function: Callable[..., Tensor], *arguments: Any, within: nn.Module) -> Tensor:
    """Call `function(*arguments)` and store only the arguments; the backward pass calls it again.

    The second call draws the same random numbers, and changes neither the statistics of batch normalisation in `within`
    nor the buffers of the user's own modules. So a plain call gives the same gradients, statistics and later random
    numbers; on a CPU they agree bit by bit.
    """
    modules = [*within.modules()]
    own = {inner: None for module in modules if is_own(module) for inner in module.modules()}
    before = {
        module: {name: None if value is None else value.clone() for name, value in module._buffers.items()}
        for module in own
        if not isinstance(module, _BatchNorm)
    }
    return checkpoint(
        function,
        *arguments,
        use_reentrant=False,
        preserve_rng_state=any(draws(module) or is_own(module) for module in modules),
        context_fn=lambda: (nullcontext(), _still(within, before)),
    )


def draws(module: nn.Module) -> bool:
    """Return whether the module draws random numbers in training; `is_own` modules may, too."""
    return isinstance(module, Dropped) or (isinstance(module, _DropoutNd) and module.p > 0)


def is_own(module: nn.Module) -> bool:
    """Return whether the module is of a user's own class, which may draw random numbers and keep statistics."""
    return not {each.__module__.partition(".")[0] for each in type(module).__mro__} <= OURS


def _through(units: Sequence[nn.Module], survival: Sequence[float | None], x: Tensor, memory: Memory) -> Tensor:
    """Pass x through `units`; `survival` holds the b of each unit, or None for a layer that is not a unit.

    With "recompute_units" the forward pass stores the input of every unit. With "recompute_segments" it stores only the
    input of each segment of units: Chen et al. 2016, "Training deep nets with sublinear memory cost".
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
def _still(within: nn.Module, before: Mapping[nn.Module, Mapping[str, Tensor | None]]) -> Iterator[None]:
    """Let batch normalisation in `within` normalise as always, but not change its running statistics.

    Modules in the user's own see the buffers that they had `before` the first call, and change nothing that stays.
    """
    norms = [module for module in within.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    buffers = [{**module._buffers} for module in before]
    for norm in norms:
        norm.momentum = 0.0
        norm.num_batches_tracked = None
    for module, values in before.items():
        module._buffers.update(values)
    try:
        yield
    finally:
        for module, values in zip(before, buffers, strict=True):
            module._buffers.update(values)
        for norm, (momentum, batches) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


def _parts(layers: nn.Sequential) -> list[nn.Sequential]:
    """Cut the sequence after each convolution or linear layer.

    The parts are plain nn.Sequential: a slice of a RecomputedBranch would be a RecomputedBranch, which cuts again.
    """
    ends = [index + 1 for index, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
    bounds = [0, *ends, *([len(layers)] if ends[-1:] != [len(layers)] else [])]
    return [nn.Sequential(*list(layers)[first:last]) for first, last in pairwise(bounds)]
