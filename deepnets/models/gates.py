"""More shortcuts: separate gates for x and r, updates that depend on the direction of r, and concatenation.

The usual gate of highway networks, (1 - g) x + g r, is `shortcuts.Gated`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from deepnets.models.layers import Conv
from deepnets.models.resize import ShortcutShape, ZeroPadding
from deepnets.system.settings import Kernel, NotNegative, Real


class SeparatelyGated(nn.Module):
    """y = C(x) x + T(x) r with carry gate C and transform gate T, both sigmoid(W x + b) for each channel and pixel.

    This is the general form of Srivastava et al. 2015, whose usual case is C = 1 - T. Each W is a convolution of size
    `kernel` with the unit's stride. If `kernel` is None, W is a sequence of convolutions or linear layers like the
    branch's, with ReLU between them, as in `shortcuts.Gated`. The last bias of each gate starts at `carry_bias` or
    `transform_bias`. Raises ValueError for an even kernel.
    """

    def __init__(
        self,
        *,
        transform_bias: Real,
        carry_bias: Real,
        kernel: Kernel | None = 1,  # older config.yaml files lack it
        ends: ShortcutShape,
    ) -> None:
        super().__init__()
        if kernel is not None and kernel % 2 == 0:
            raise ValueError(f"a gate's kernel is {kernel}; it must be odd, or null for the branch's kernels")
        self.transform_bias, self.carry_bias = transform_bias, carry_bias
        self.resize = ends.resized()
        convs = ends.convs if kernel is None else (Conv(ends.outputs, kernel, ends.stride),)
        self.transform, self.carry = _linears(ends, convs), _linears(ends, convs)

    @property
    def bias(self) -> float:
        """The initial bias of the transform gate."""
        return self.transform_bias

    @property
    def gate_bias(self) -> Tensor:
        """The current bias of the transform gate (channels,)."""
        return _last_bias(self.transform)

    def gate(self, x: Tensor) -> Tensor:
        """Return the transform gate T(x), where x is the unit's input; `shortcuts.Gated` calls it g."""
        return torch.sigmoid(self.transform(x))

    def reset_bias(self) -> None:
        """Set the gates' biases to their initial values."""
        nn.init.constant_(_last_bias(self.transform), self.transform_bias)
        nn.init.constant_(_last_bias(self.carry), self.carry_bias)

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return torch.sigmoid(self.carry(x)) * self.resize(x) + self.gate(x) * r

    def extra_repr(self) -> str:
        return f"transform_bias={self.transform_bias}, carry_bias={self.carry_bias}"


class Orthogonal(nn.Module):
    """y = x + r - (<x, r> / (|x|^2 + eps)) x adds the part of r orthogonal to x: Oh et al. 2025 (2505.11881).

    With `feature_wise`, <x, r> and |x|^2 are sums over the channels at each position, otherwise over all numbers of an
    image. For inputs in half precision they are computed in float32.
    """

    def __init__(self, *, feature_wise: bool, eps: NotNegative, ends: ShortcutShape) -> None:
        super().__init__()
        self.feature_wise, self.eps = feature_wise, eps
        self.resize = ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        x = self.resize(x)
        exact, update = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, r))
        over = _channels(x) if self.feature_wise else tuple(range(1, x.dim()))
        factor = (exact * update).sum(over, keepdim=True) / (exact.square().sum(over, keepdim=True) + self.eps)
        return x + r - (factor * exact).to(x.dtype)

    def extra_repr(self) -> str:
        return f"feature_wise={self.feature_wise}, eps={self.eps}"


class Delta(nn.Module):
    """y = x + b k (v - k'x), where k = r / |r| and b = 2 sigmoid(W x + bias): Deep Delta (2601.00417).

    Each position has one b, one v and one norm |r| over its channels. The factor 1 - b kk' of x is the identity for
    b = 0, a projection for b = 1 and a reflection for b = 2. Here W x and v are linear in the unit's input; we do not
    know which layers the authors use.
    """

    def __init__(self, *, bias: Real, ends: ShortcutShape) -> None:
        super().__init__()
        self.bias = bias
        self.resize = ends.resized()
        convs = (Conv(outputs=1, kernel=1, stride=ends.stride),)
        self.b, self.v = _linears(ends, convs), _linears(ends, convs)

    def reset_bias(self) -> None:
        """Set b's bias to its initial value."""
        nn.init.constant_(_last_bias(self.b), self.bias)

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        b, v, x = 2 * torch.sigmoid(self.b(x)), self.v(x), self.resize(x)
        k = normalize(r.expand_as(x), dim=_channels(x))
        return x + b * k * (v - (k * x).sum(_channels(x), keepdim=True))

    def extra_repr(self) -> str:
        return f"bias={self.bias}"


class Concatenated(nn.Module):
    """y = (x, r), where the channels of r follow those of x: Huang et al. 2017 (DenseNet)."""

    def __init__(self, *, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize = ZeroPadding(extra=0, stride=ends.stride) if ends.stride > 1 else nn.Identity()
        self.added = ends.outputs

    @staticmethod
    def channels(x: int, r: int) -> int:
        """Return the number of channels of y, from the numbers of channels of x and of r."""
        return x + r

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        x = self.resize(x)
        if r.dim() == 0:  # stochastic depth skipped the branch, so r is a single 0
            r = r.expand(len(x), self.added, *x.shape[2:])
        return torch.cat((x, r), dim=1)


def _linears(ends: ShortcutShape, convs: Sequence[Conv]) -> nn.Module:
    """Build layers W x + b that read the unit's input: "conv" or "linear" as in the branch, with ReLU between them."""
    layers = replace(ends.layers, conv_bias=True)
    names = (ends.projection[0], "relu") * len(convs)
    sequence = layers.sequence(names[:-1], ends.inputs, convs)
    return sequence if len(convs) > 1 else sequence[0]


def _last_bias(layers: nn.Module) -> Tensor:
    bias = (layers[-1] if isinstance(layers, nn.Sequential) else layers).bias
    assert isinstance(bias, Tensor)
    return bias


def _channels(x: Tensor) -> int:
    """Return the dimension of the channels: 1 for maps (N, C, H, W), -1 for tokens (N, T, d) and features."""
    return 1 if x.dim() == 4 else -1
