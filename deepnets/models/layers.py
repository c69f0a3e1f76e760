"""The vocabulary of layers: names, as written in YAML, to modules."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Conv:
    """One convolution to come: its output channels, its odd kernel, its stride."""

    outputs: int
    kernel: int
    stride: int


def sequence(names: Sequence[str], channels: int, convs: Sequence[Conv] = ()) -> nn.Sequential:
    """The named layers in order, each "conv" the next of `convs`; no name at all is the identity.

    Maps (N, `channels`, H, W) to (N, C, ceil(H / s), ceil(W / s)), with C the last convolution's outputs and s the
    product of the strides. Convolutions have no bias: batch normalisation shifts (fb.resnet.torch).

    Raises ValueError for a name outside the vocabulary.
    """
    coming = iter(convs)
    modules: list[nn.Module] = []
    for name in names:
        match name:
            case "conv":
                conv = next(coming)
                padding = conv.kernel // 2
                modules.append(nn.Conv2d(channels, conv.outputs, conv.kernel, conv.stride, padding, bias=False))
                channels = conv.outputs
            case "bn":
                modules.append(nn.BatchNorm2d(channels))
            case "relu":
                # Not in place: a shortcut or a hook may hold its input, and overwriting measured no faster.
                modules.append(nn.ReLU())
            case _:
                raise ValueError(f"unknown layer {name!r}; a layer is made of conv, bn and relu")
    return nn.Sequential(*modules)
