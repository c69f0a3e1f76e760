"""Shortcuts: each computes y from x, the unit's input, and r = F(x) (He et al. 2016, Fig. 2).

This module has the identity, scaled, gated (highway), projected and dropped shortcuts. `scales` has shortcuts that
scale x or r by learned numbers or by the depth (ReZero, LayerScale, DeepNorm). `gates` has separate gates for x and r,
updates that depend on the direction of r, and the concatenation of DenseNet.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.layers import Conv
from deepnets.models.parallel import Share, dropout
from deepnets.models.resize import ShortcutShape
from deepnets.system.settings import Kernel, Rate, Real


class Identity(nn.Module):
    """y = x + r: He et al. 2015, Eq. 1; 2016, Fig. 2(a)."""

    def __init__(self, *, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize = ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.resize(x) + r


class Scaled(nn.Module):
    """y = a x + b r with constants a and b; (0, 1) is the plain net: He et al. 2016, Fig. 2(b)."""

    def __init__(self, *, shortcut_scale: Real, branch_scale: Real, ends: ShortcutShape) -> None:
        super().__init__()
        self.shortcut_scale = shortcut_scale
        self.branch_scale = branch_scale
        # A plain net would multiply its projections by 0, so they would never learn; it has none.
        self.resize = None if shortcut_scale == 0 else ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        if self.branch_scale != 1:
            r = self.branch_scale * r
        return r if self.resize is None else torch.add(r, self.resize(x), alpha=self.shortcut_scale)

    def extra_repr(self) -> str:
        return f"shortcut_scale={self.shortcut_scale}, branch_scale={self.branch_scale}"


class Gated(nn.Module):
    """y = (1 - g(x)) x + g(x) r if exclusive, else (1 - g(x)) x + r, with g(x) = sigmoid(W x + b).

    g has one value for each output channel and pixel. It reads x before x is resized. W is a convolution of size
    `kernel` with the unit's stride. If `kernel` is None, W is a sequence of convolutions or linear layers like the
    branch's, with ReLU between them. With `batchnorm`, each has batch normalisation instead of a bias. The last bias,
    b, starts at `bias`.

    He et al. 2016, Fig. 2(c) and (d), have kernel 1. An exclusive gate with the branch's receptive field is the highway
    layer of Srivastava et al. 2015. Raises ValueError for an even kernel.
    """

    def __init__(
        self, *, bias: Real, exclusive: bool, kernel: Kernel | None, batchnorm: bool, ends: ShortcutShape
    ) -> None:
        super().__init__()
        if kernel is not None and kernel % 2 == 0:
            raise ValueError(f"a gate's kernel is {kernel}; it must be odd, or null for the branch's kernels")
        self.bias = bias
        self.exclusive = exclusive
        self.resize = ends.resized()
        convs = ends.convs if kernel is None else (Conv(ends.outputs, kernel, ends.stride),)
        weight = ends.projection[0]
        names = ((weight, "bn", "relu") if batchnorm else (weight, "relu")) * len(convs)
        layers = replace(ends.layers, conv_bias=not batchnorm)
        self.gate = layers.sequence(names[:-1], ends.inputs, convs).append(nn.Sigmoid())

    @property
    def gate_bias(self) -> Tensor:
        """The current b (C,): the bias of the last convolution or linear layer, or of its batch normalisation.

        Raises:
            ValueError: a subclass has replaced `gate`, and not this property.
        """
        last = self.gate[-2] if isinstance(self.gate, nn.Sequential) and len(self.gate) > 1 else None
        bias = getattr(last.bn if isinstance(last, GhostBatchNorm) else last, "bias", None)
        if not isinstance(bias, Tensor):
            raise ValueError(
                f"{type(self).__name__} replaces `gate`, so it must replace the property `gate_bias` too, which "
                "returns the bias (C,) of the gate's last layer"
            )
        return bias

    def reset_bias(self) -> None:
        """Set the gate's bias to its initial value."""
        nn.init.constant_(self.gate_bias, self.bias)

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        # Never compute 1 - g: for g = sigmoid(-6), bfloat16 would keep one significant bit of g.
        g, x = self.gate(x), self.resize(x)
        if not self.exclusive:
            return torch.addcmul(x + r, g, x, value=-1)
        wide = torch.promote_types(x.dtype, r.dtype)  # autocast may give x, r and g different types
        return torch.lerp(x.to(wide), r.to(wide), g.to(wide))

    def extra_repr(self) -> str:
        return f"bias={self.bias}, exclusive={self.exclusive}"


class Projected(nn.Module):
    """y = W x + r in every unit: option C of He et al. 2015, 3.3; the 1x1 conv shortcut of 2016, Fig. 2(e)."""

    def __init__(self, *, ends: ShortcutShape) -> None:
        super().__init__()
        self.projection = ends.projected()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.projection(x) + r


class Dropped(nn.Module):
    """y = dropout(x) + r, where dropout drops each element with probability `rate`: He et al. 2016, Fig. 2(f).

    The paper assumes E[dropout(x)] = (1 - rate) x: in training, elements that stay keep their value, and at test x is
    multiplied by 1 - rate. Inverted dropout, as in PyTorch and Caffe, divides elements that stay by 1 - rate in
    training, so that E[dropout(x)] = x.
    """

    def __init__(self, *, rate: Rate, inverted: bool, ends: ShortcutShape) -> None:
        super().__init__()
        self.rate = rate
        self.inverted = inverted
        self.share: Share | None = None
        self.resize = ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        scale = 1.0 if self.inverted else 1.0 - self.rate
        return torch.add(r, dropout(self.resize(x), self.rate, self.training, self.share), alpha=scale)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, inverted={self.inverted}"
