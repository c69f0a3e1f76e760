"""Brings a shortcut's x to the shape of F(x) by padding with zeros (option A) or by a projection (option B).

Pixels may be averaged before the padding: Huang et al. 2016.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad

from deepnets.models.layers import Conv, Layers

Resize = Literal["zero_padding", "average_pooling", "projection"]


class ZeroPadding(nn.Module):
    """Takes every `stride`-th pixel of x and appends `extra` channels of zeros: option A of He et al. 2015, 3.3.

    Maps (N, C, H, W) to (N, C + extra, ceil(H / stride), ceil(W / stride)), as fb.resnet.torch does.
    """

    def __init__(self, *, extra: int, stride: int) -> None:
        super().__init__()
        self.extra = extra
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))

    def extra_repr(self) -> str:
        return f"extra={self.extra}, stride={self.stride}"


@dataclass(frozen=True)
class ShortcutShape:
    """Describes a shortcut: it leads from x with `inputs` channels to F(x) with `outputs`, past a branch of `convs`.

    It belongs to unit number `unit` of `units`, counted from 1. `projection` names the layers of a projection.
    """

    inputs: int
    outputs: int
    convs: tuple[Conv, ...]
    resize: Resize
    projection: tuple[str, ...]
    layers: Layers
    unit: int = 1
    units: int = 1

    @classmethod
    def between(cls, inputs: int, outputs: int, *, stride: int = 1, unit: int = 1, units: int = 1) -> "ShortcutShape":
        """Describe a shortcut in a user's own network; where the shape changes, `resized` is a 1x1 convolution."""
        layers = Layers(conv_bias=False, batchnorm_images=None)
        return cls(inputs, outputs, (Conv(outputs, 3, stride),), "projection", ("conv",), layers, unit, units)

    @property
    def stride(self) -> int:
        """The factor by which the branch reduces the height and the width of x."""
        return prod(conv.stride for conv in self.convs)

    def resized(self) -> nn.Module:
        """Build the layer that brings x to the shape of F(x): the identity if x has this shape already.

        Raises ValueError if zero padding would have to remove channels.
        """
        if self.inputs == self.outputs and self.stride == 1:
            return nn.Identity()
        if self.resize == "projection":
            return self.projected()
        if self.outputs < self.inputs:
            raise ValueError(
                f"zero padding cannot bring {self.inputs} channels to {self.outputs}; "
                "choose widths that do not shrink, or resize: projection"
            )
        extra = self.outputs - self.inputs
        if self.resize == "average_pooling":
            # Huang et al. 2016 average 2x2 pixels; option A would take one of the four.
            pooling = nn.AvgPool2d(self.stride, ceil_mode=True)
            return nn.Sequential(pooling, ZeroPadding(extra=extra, stride=1))
        return ZeroPadding(extra=extra, stride=self.stride)

    def projected(self) -> nn.Module:
        """Build the projection W x, a 1x1 convolution or a linear layer.

        If batch normalisation follows F's last convolution, it also follows W x.
        """
        return self.layers.sequence(self.projection, self.inputs, [Conv(self.outputs, kernel=1, stride=self.stride)])
