"""The residual unit: y = h(x) + b F(x), x' = f(y)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepnets.models.layers import Conv, Layers, channels_behind
from deepnets.models.ordering import Ordering
from deepnets.models.recomputation import Branch
from deepnets.models.resize import Resize, ShortcutShape
from deepnets.models.shortcuts import Scaled


class Unit(nn.Module):
    """x' = f(h(x) + b F(x)), with F the `branch`, f what comes `after`, and `shortcut` how h joins F.

    `before` acts in front of the split, so that shortcut and branch both see it. He et al. 2016, Eq. 1 and 2.

    b is 1, but with stochastic depth 0 or 1 in training and a probability at test: Huang et al. 2016, Eq. 2 and 5. For
    b = 0, F is not computed, its batch statistics stay as they are, and its parameters get gradients of zero.
    """

    def __init__(self, *, before: nn.Module, branch: Branch, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before = before
        self.branch = branch
        self.shortcut = shortcut
        self.after = after

    @property
    def is_plain(self) -> bool:
        """Whether x reaches x' through F only."""
        return isinstance(self.shortcut, Scaled) and self.shortcut.shortcut_scale == 0

    def forward(self, x: Tensor, b: float = 1.0) -> Tensor:
        x = self.before(x)
        y = self.shortcut(*self._terms(x, b))
        return self.after(y)

    def _terms(self, x: Tensor, b: float) -> tuple[Tensor, Tensor]:
        """x and b F(x)."""
        if b == 0:
            return Idle.apply(x, *self.branch.parameters()), x.new_zeros(())
        r = self.branch(x)
        return x, r if b == 1 else b * r


class Idle(torch.autograd.Function):
    """x as it is; the parameters, which had no part in it, get gradients of zero.

    Without a gradient an optimiser would pass them over; the authors' code lets momentum and weight decay act on them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *map(torch.zeros_like, ctx.saved_tensors)


@dataclass(frozen=True)
class UnitDesign:
    """What all units of a net have in common."""

    ordering: Ordering
    layers: Layers
    shortcut: Callable[..., nn.Module]
    resize: Resize

    def unit(
        self, inputs: int, convs: Sequence[Conv], *, first_of_stage: bool = False, activated: bool = False
    ) -> Unit:
        """The unit on `inputs` channels whose branch holds `convs`.

        A stage's first unit activates in front of the split, unless what precedes it is `activated`: a stem in full.
        """
        before = self.ordering.before if first_of_stage else ()
        branch = self.ordering.branch(len(convs))[len(before) :]
        before = () if activated else before
        split = channels_behind(before, inputs)
        outputs = channels_behind(branch, split, convs)
        ends = ShortcutShape(split, outputs, tuple(convs), self.resize, self.ordering.projection, self.layers)
        return Unit(
            before=self.layers.sequence(before, inputs),
            branch=Branch(*self.layers.sequence(branch, split, convs)),
            shortcut=self.shortcut(ends=ends),
            after=self.layers.sequence(self.ordering.after, outputs),
        )

    def channels_behind(self, inputs: int, convs: Sequence[Conv]) -> int:
        """The channels of x', where x has `inputs`."""
        return channels_behind(self.ordering.layer * len(convs), inputs, convs)
