"""The base of networks made of units: stem, stages of units, tail and head; how several processes share a batch."""

from collections.abc import Callable

from torch import Tensor, nn

from deepnets.models.batchnorm import BatchNorm, GhostBatchNorm, SynchronizedBatchNorm
from deepnets.models.initialization import Initialization, initialize
from deepnets.models.parallel import Dropout, Share
from deepnets.models.recomputation import Branch, through
from deepnets.models.settings import Memory
from deepnets.models.shortcuts import Dropped
from deepnets.models.survival import Survival, own_generator
from deepnets.models.unit import Unit


class UnitNetwork(nn.Module):
    """logits = head(average(tail(units(stem(x))))), where each unit gets its b from `survival`.

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
        """The modules that an image passes, in this order; some of them contain the units."""
        return [self.stem, *self.stages, self.tail, self.average, self.head]

    def complete(self, survival: Survival | None, initialization: Initialization | str) -> None:
        """Draw all parameters; raises ValueError if a plain unit may lose its branch, or if `initialize` does."""
        self.survival = survival
        self.keep(Memory.full)
        if survival is not None:
            survival.expected(len(self.units))
            if any(unit.is_plain for unit in self.units):
                raise ValueError(
                    "a plain unit computes nothing without its branch: choose a shortcut, or survival none"
                )
        initialize(self, self.head, initialization)
        self.draws = own_generator() if survival else None

    def keep(self, memory: Memory) -> None:
        """Choose the tensors that the forward pass stores; the backward pass computes the rest again. `full` at first.

        recompute_activations stores the outputs of the convolutions, recompute_units the input of every unit,
        recompute_segments the input of about sqrt(3 L) of L units. The gradients are the same, bit by bit.
        """
        self.memory = memory
        for unit in self.units:
            if isinstance(unit.branch, Branch):
                unit.branch.recompute = memory == Memory.recompute_activations

    def forward(self, x: Tensor) -> Tensor:
        layers = [layer for stage in self.stages for layer in stage.children()]
        survival = iter(self._survival())
        factors = [next(survival) if isinstance(layer, Unit) else None for layer in layers]
        x = through(layers, factors, self.stem(x), self.memory)
        return self.head(self.average(self.tail(x)))

    def average(self, x: Tensor) -> Tensor:
        """Average the tail's maps (N, C, H, W) for the head: (N, C)."""
        return x.mean((2, 3))

    def _survival(self) -> list[float]:
        """Return b of each unit; in training it is drawn anew at each call."""
        units = len(self.units)
        if self.survival is None:
            return [1.0] * units
        return self.survival.drawn(units, self.draws) if self.training else self.survival.expected(units)


def divide(model: nn.Module, share: Share) -> None:
    """Give `share` to all layers that draw random numbers, or whose output depends on more than one image.

    Torch's BatchNorm2d and Dropout inside a user's own layer get it too. If a user's layer itself computes statistics
    or draws random numbers, it does so only for this process's part of the batch.
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
