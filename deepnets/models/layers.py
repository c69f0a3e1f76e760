"""Builds the layers that a configuration names, such as "conv", "bn" and "relu"."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from deepnets.models.batchnorm import BatchNorm, GhostBatchNorm

WEIGHTS = ("conv", "linear")
LAYERS = (*WEIGHTS, "bn", "relu", "crelu", "tanh", "shift", "dropout", "avg_pool", "max_pool")
SUBLAYERS = ("sublayer", "attention", "mlp")  # layers of transformers; "sublayer" stands for "attention" or "mlp"


@dataclass(frozen=True)
class Conv:
    """Describes a convolution that `Layers.sequence` builds; `padding` None stands for kernel // 2.

    Its channels are divided into `groups`, as in ResNeXt. A "linear" layer uses only `outputs`.
    """

    outputs: int
    kernel: int
    stride: int
    padding: int | None = None
    groups: int = 1


class Shift(nn.Module):
    """x + b with one learned number b, 0 at first: the scalar bias of Zhang et al. 2019, "Fixup initialization"."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b


class CReLU(nn.Module):
    """(relu(x), relu(-x)), which has twice the channels of x: Balduzzi et al. 2017, section 4."""

    def forward(self, x: Tensor) -> Tensor:
        return relu(torch.cat((x, -x), dim=1))


class StridedPointwiseConv(nn.Conv2d):
    """A 1x1 convolution with a stride, which reads every stride-th pixel of each row and column.

    On a CPU, if the channels do not fill oneDNN's vectors, it takes these pixels first and convolves them without a
    stride. With a stride, oneDNN would write past its buffer when it computes the gradient of the weights in
    channels_last, which crashes the process or silently changes other tensors
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """

    VECTOR = 16  # float32 numbers in a register of AVX-512; AVX2 has 8

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, outputs, ceil(H / stride), ceil(W / stride))."""
        if x.device.type != "cpu" or self.in_channels % self.VECTOR == 0:
            return super().forward(x)
        rows, columns = self.stride
        return conv2d(x[..., ::rows, ::columns], self.weight, self.bias, groups=self.groups)


def channels_after(names: Sequence[str], channels: int, convs: Sequence[Conv] = ()) -> int:
    """Return the number of channels behind the named layers, if the first of them gets `channels`."""
    following = iter(convs)
    for name in names:
        if name in WEIGHTS:
            channels = next(following).outputs
        elif name == "crelu":
            channels *= 2
    return channels


@dataclass(frozen=True)
class Layers:
    """Builds layers by their names, with settings that all layers of a net share.

    `conv_bias` says whether convolutions have a bias. In front of batch normalisation it has no effect; fb.resnet.torch
    omits it, others keep it. "bn" normalises groups of at most `batchnorm_images` images, or the whole batch if None.
    `dropout` is the rate of "dropout". `further` holds other layers, of one family of nets or of the user: it maps a
    layer's name to a function that builds the layer for a number of channels, and may replace a layer of `LAYERS`.
    """

    conv_bias: bool
    batchnorm_images: int | None
    dropout: float = 0.0
    further: Mapping[str, Callable[[int], nn.Module]] = field(default_factory=dict)

    def sequence(self, names: Sequence[str], channels: int, convs: Sequence[Conv] = ()) -> nn.Sequential:
        """Build the named layers in order; each "conv" or "linear" takes the next of `convs`.

        The sequence maps (N, `channels`, H, W) to (N, C, H', W'), or (N, `channels`) to (N, C); `channels_after`
        returns C. If no layer pools, and kernels are odd with the default padding, H' is ceil(H / s) and W' is
        ceil(W / s), where s is the product of the strides. Raises ValueError for an unknown name, and for groups that
        do not divide the channels.
        """
        following = iter(convs)
        modules: list[nn.Module] = []
        for name in names:
            taken = [next(following)] if name in WEIGHTS else []
            modules.append(self._weights(name, channels, *taken) if taken else self._layer(name, channels))
            channels = channels_after([name], channels, taken)
        return nn.Sequential(*modules)

    def _weights(self, name: str, channels: int, conv: Conv) -> nn.Module:
        if name == "linear":
            return nn.Linear(channels, conv.outputs)
        padding = conv.kernel // 2 if conv.padding is None else conv.padding
        if channels % conv.groups or conv.outputs % conv.groups:
            raise ValueError(f"groups is {conv.groups}, which does not divide {channels} and {conv.outputs} channels")
        shape = channels, conv.outputs, conv.kernel, conv.stride, padding
        is_strided_pointwise = conv.kernel == 1 and conv.stride > 1 and padding == 0
        convolution = StridedPointwiseConv if is_strided_pointwise else nn.Conv2d
        return convolution(*shape, groups=conv.groups, bias=self.conv_bias)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise ValueError if a layer has none of these names."""
        if unknown := [name for name in names if name not in {*WEIGHTS, *self._builders}]:
            raise self._unknown("sublayer" if "sublayer" in unknown else unknown[0])

    @property
    def _builders(self) -> dict[str, Callable[[int], nn.Module]]:
        """How to build each layer without weights, by its name, for a number of channels."""
        return {
            "bn": self._normalisation,
            # Not in place: a shortcut or a hook may hold the input, and a measurement showed no gain.
            "relu": lambda _: nn.ReLU(),
            "crelu": lambda _: CReLU(),
            "tanh": lambda _: nn.Tanh(),
            "shift": lambda _: Shift(),
            "dropout": lambda _: nn.Dropout(self.dropout),
            "avg_pool": lambda _: nn.AvgPool2d(2),
            # He et al. 2015, Table 1; padding as fb.resnet.torch
            "max_pool": lambda _: nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            **self.further,
        }

    def _normalisation(self, channels: int) -> nn.Module:
        images = self.batchnorm_images
        return BatchNorm(channels) if images is None else GhostBatchNorm(channels, images=images)

    def _layer(self, name: str, channels: int) -> nn.Module:
        builders = self._builders
        if name not in builders:
            raise self._unknown(name)
        return builders[name](channels)

    def _unknown(self, name: str) -> ValueError:
        if name == "sublayer":
            return ValueError(
                "layer 'sublayer' stands for attention or MLP: only transformers (model=vit) have them; choose a "
                "model/ordering other than pre_norm and post_norm"
            )
        return ValueError(f"unknown layer {name!r}; choose from {', '.join({**dict.fromkeys(LAYERS), **self.further})}")


def own_layers_of(nodes: Mapping[str, Any]) -> dict[str, Callable[[int], nn.Module]]:
    """Return how to build each layer of the user's own classes for a number of channels.

    A module is copied for each place in which it stands; a `partial` is called there with `channels`. Such a layer must
    keep the shape of its input. Raises ValueError for anything else, and for a name whose layers change the shape.
    """
    for name, node in nodes.items():
        if name in (*WEIGHTS, *SUBLAYERS, "crelu"):
            raise ValueError(f"own_layers.{name}: this layer cannot be replaced; choose another name")
        if not isinstance(node, nn.Module | partial):
            raise ValueError(f"own_layers.{name} is {node!r}; it must be a node whose _target_ is a class of modules")
        if isinstance(node, partial) and not _takes_channels(node):
            called = getattr(node.func, "__name__", node.func)
            raise ValueError(
                f"own_layers.{name}: {called} must take `channels`, with which deepnets calls it; leave "
                "out `_partial_: true` if the layer does not need their number, or if the node gives it"
            )
    return {name: partial(_own_layer, node) for name, node in nodes.items()}


def _takes_channels(node: partial[Any]) -> bool:
    parameters = inspect.signature(node.func).parameters
    if "channels" in node.keywords:
        return False
    return "channels" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _own_layer(node: nn.Module | partial[nn.Module], channels: int) -> nn.Module:
    copy = deepcopy(node)  # of a partial too, whose arguments may hold a module
    return copy if isinstance(copy, nn.Module) else copy(channels=channels)
