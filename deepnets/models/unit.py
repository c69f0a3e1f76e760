"""The residual unit: y = h(x) + b F(x), x' = f(y). An ordering of layers and a block of kernels define it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from deepnets.models.layers import SUBLAYERS, WEIGHTS, Conv, Layers, channels_after
from deepnets.models.resize import Resize, ShortcutShape
from deepnets.models.scales import PerUnit
from deepnets.models.shortcuts import Scaled

CENTRES = (*WEIGHTS, *SUBLAYERS)  # `Ordering.layer` holds exactly one of these


class Unit(nn.Module):
    """x' = f(h(x) + b F(x)), where F is the `branch`, f is `after`, and the `shortcut` computes h(x) and joins it to F.

    `before` acts in front of the split, so shortcut and branch both read its output. He et al. 2016, Eq. 1 and 2.

    Without stochastic depth b is 1. With it, b is 0 or 1 in training and a probability at test (Huang et al. 2016, Eq.
    2 and 5). If b = 0, F is not computed, its batch statistics do not change, and its parameters get zero gradients.
    """

    def __init__(
        self,
        *,
        before: nn.Module,
        branch: nn.Sequential,
        shortcut: nn.Module,
        after: nn.Module,
        channels: int,
        ends: ShortcutShape | None = None,
    ) -> None:
        super().__init__()
        self.before = before
        self.branch = branch
        self.shortcut = shortcut
        self.after = after
        self.channels = channels  # of x'
        self.ends = ends

    @property
    def is_plain(self) -> bool:
        """Whether x reaches x' only through F."""
        return isinstance(self.shortcut, Scaled | PerUnit) and self.shortcut.shortcut_scale == 0

    def forward(self, x: Tensor, b: float = 1.0) -> Tensor:
        x = self.before(x)
        y = self.shortcut(*self._terms(x, b))
        return self.after(y)

    def _terms(self, x: Tensor, b: float) -> tuple[Tensor, Tensor]:
        """Return x and b F(x)."""
        if b == 0:
            return Idle.apply(x, *self.branch.parameters()), self.zero(x)
        r = self.branch(x)
        return x, r if b == 1 else b * r

    def zero(self, x: Tensor) -> Tensor:
        """Return a 0 to call the shortcut with in place of F(x), which is not computed.

        It has the shape of F(x), but no dimensions for a shortcut of deepnets, or if the unit does not know its `ends`.
        """
        ends = self.ends
        if ends is None or type(self.shortcut).__module__.startswith("deepnets."):
            return x.new_zeros(())
        if ends.inputs == ends.outputs and ends.stride == 1:
            return torch.zeros_like(x)
        return x.new_zeros(len(x), ends.outputs, *(ceil(side / ends.stride) for side in x.shape[2:]))


class Idle(torch.autograd.Function):
    """Returns x unchanged, and gives `parameters` gradients of zero, although x does not depend on them.

    An optimiser skips parameters without a gradient. In the authors' code momentum and weight decay still change the
    parameters of a skipped branch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *map(torch.zeros_like, ctx.saved_tensors)


@dataclass(frozen=True)
class Ordering:
    """Says in which order the layers of F and f act: F repeats `layer` once per kernel.

    The last repetition ends without the layers `after`, because these are f and act after the addition. The five
    orderings of He et al. 2016, Fig. 4, are in `conf/model/ordering/`. Raises ValueError unless `layer` holds exactly
    one conv, linear or sublayer, and the layers behind it end in `after`.
    """

    layer: tuple[str, ...]
    after: tuple[str, ...]

    def __post_init__(self) -> None:
        if sum(name in CENTRES for name in self.layer) != 1:
            raise ValueError(
                f"layer is {list(self.layer)}; it must hold exactly one conv or linear, e.g. [conv, bn, relu]"
            )
        after_conv = self.layer[self._conv + 1 :]
        if self.after != after_conv[len(after_conv) - len(self.after) :]:
            suffixes = [list(after_conv[start:]) for start in range(len(after_conv) + 1)]
            raise ValueError(
                f"after is {list(self.after)}, which is not how layer {list(self.layer)} ends after its conv; "
                f"choose one of {', '.join(map(str, suffixes))}"
            )

    @property
    def _conv(self) -> int:
        return next(index for index, name in enumerate(self.layer) if name in CENTRES)

    @property
    def stem(self) -> tuple[str, ...]:
        """The conv of `layer` and all layers behind it; a network without a stem of its own begins with them."""
        return self.layer[self._conv :]

    @property
    def before(self) -> tuple[str, ...]:
        """The part of `layer` in front of its conv.

        The first unit of a stage applies it before the split, and the net's tail applies it after the last unit.
        He et al. 2016, appendix, activate before the first split and after the last addition; fb.resnet.torch's
        preresnet activates before the split in the first unit of every stage.
        """
        return self.layer[: self._conv]

    def branch(self, kernels: int) -> tuple[str, ...]:
        """Return the layers of F for a block with this number of kernels."""
        layers = self.layer * kernels
        return layers[: len(layers) - len(self.after)]

    @property
    def projection(self) -> tuple[str, ...]:
        """The layers of a projection shortcut: a conv, and batch normalisation if it follows the last conv of F."""
        if self.layer[self._conv] in SUBLAYERS:
            return ("linear",)
        return tuple(name for name in self.branch(1)[self._conv :] if name in (*WEIGHTS, "bn"))


@dataclass(frozen=True)
class Block:
    """The convolutions of a unit: one for each of `kernels`, the last with `expansion` times the width.

    The convolution at index `strided_kernel` has the unit's stride: the first (0) in He et al.'s released models of
    2015, the bottleneck's 3x3 (1) in fb.resnet.torch and torchvision. Convolutions with a kernel larger than 1 divide
    their channels into `groups`: Xie et al. 2017, "Aggregated residual transformations" (ResNeXt). Raises ValueError
    for an even kernel, and for a `strided_kernel` that is not an index of `kernels`.
    """

    kernels: tuple[int, ...]
    expansion: int
    strided_kernel: int
    groups: int = 1

    def __post_init__(self) -> None:
        if not self.kernels or any(kernel % 2 == 0 for kernel in self.kernels):
            raise ValueError(f"kernels are {list(self.kernels)}; choose one or more odd numbers, e.g. [3, 3]")
        if not 0 <= self.strided_kernel < len(self.kernels):
            raise ValueError(
                f"strided_kernel is {self.strided_kernel}; it must be an index of kernels {list(self.kernels)}, "
                f"0 to {len(self.kernels) - 1}"
            )

    def convs(self, width: int, stride: int) -> list[Conv]:
        """Return the convolutions of a unit whose inner layers have `width` channels."""
        last = len(self.kernels) - 1
        return [
            Conv(
                outputs=width * self.expansion if index == last else width,
                kernel=kernel,
                stride=stride if index == self.strided_kernel else 1,
                groups=self.groups if kernel > 1 else 1,
            )
            for index, kernel in enumerate(self.kernels)
        ]


@dataclass(frozen=True)
class UnitDesign:
    """The design that all units of a net share; `units` is their number.

    y has as many channels as F(x), unless the shortcut has a static method `channels`, which computes the channels of y
    from the channels of x and F(x). Only a net that `grows` accepts a y with more or fewer channels than F(x). With
    `drops`, dropout precedes each convolution of the branch except the first.
    """

    ordering: Ordering
    layers: Layers
    shortcut: Callable[..., nn.Module]
    resize: Resize
    units: int
    grows: bool = False
    drops: bool = False

    def unit(
        self, index: int, inputs: int, convs: Sequence[Conv], *, opens_stage: bool = False, activated: bool = False
    ) -> Unit:
        """Build unit `index`, counted from 1, whose x has `inputs` channels and whose branch holds `convs`.

        A unit that opens a stage activates x before the split, unless the stem has already `activated` it. Raises
        ValueError if the shortcut changes the number of channels, but the net does not grow.
        """
        before = self.ordering.before if opens_stage else ()
        branch = self.ordering.branch(len(convs))[len(before) :]
        if self.drops:
            branch = self._with_dropout(branch)
        before = () if activated else before
        split = channels_after(before, inputs)
        outputs = channels_after(branch, split, convs)
        ends = ShortcutShape(
            split, outputs, tuple(convs), self.resize, self.ordering.projection, self.layers, index, self.units
        )
        joined = self._joined(split, outputs)
        return Unit(
            before=self.layers.sequence(before, inputs),
            branch=self.layers.sequence(branch, split, convs),
            shortcut=self.shortcut(ends=ends),
            after=self.layers.sequence(self.ordering.after, joined),
            channels=channels_after(self.ordering.after, joined),
            ends=ends,
        )

    @staticmethod
    def _with_dropout(branch: tuple[str, ...]) -> tuple[str, ...]:
        first = next(place for place, name in enumerate(branch, 1) if name in WEIGHTS)
        following = (("dropout", name) if name in WEIGHTS else (name,) for name in branch[first:])
        return (*branch[:first], *chain.from_iterable(following))

    def _joined(self, split: int, outputs: int) -> int:
        """Return the number of channels of y."""
        declared = getattr(getattr(self.shortcut, "func", self.shortcut), "channels", None)
        joined = declared(split, outputs) if declared else outputs
        if joined != outputs and not self.grows:
            raise ValueError(
                f"this shortcut makes {joined} channels of {split} and {outputs}, but the width of this net is fixed: "
                "choose a shortcut that adds, such as identity, or a net that grows, such as model=densenet40_12"
            )
        return joined
