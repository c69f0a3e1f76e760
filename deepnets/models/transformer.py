"""Vision transformers: each patch of an image is a token, and the branches of the units are attention and MLP in turn.

Vaswani et al. 2017, "Attention is all you need"; Dosovitskiy et al. 2021, "An image is worth 16x16 words".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from deepnets.models.initialization import Initialization
from deepnets.models.layers import Conv, Layers
from deepnets.models.network import UnitNetwork
from deepnets.models.survival import Survival
from deepnets.models.unit import Ordering, UnitDesign
from deepnets.system.settings import Depth, Kernel, Positive, Rate, Size

Activation = Literal["gelu", "relu"]
Readout = Literal["class_token", "mean"]


class Transformer(UnitNetwork):
    """`depth` units on the patches of an image, attention and MLP in turn, and a linear head.

    `layer` and `after` are an ordering in which "sublayer" stands for attention or MLP. Pre-norm has layer
    [ln, sublayer], after [], and a norm in front of the head. Post-norm has layer [sublayer, ln], after [ln], and no
    norm in front of the head. The head reads the class token or the mean of all tokens; if `representation` is given, a
    linear layer of this width and tanh precede the head. The net maps images (N, C, H, W) to logits (N, classes).
    Dosovitskiy et al. 2021; Xiong et al. 2020.

    Raises ValueError if the depth is odd, if `layer` is not one sublayer and norms, if patches do not divide the image,
    or if Ordering, Attention, UnitDesign or UnitNetwork.complete raises it.
    """

    def __init__(
        self,
        *,
        depth: Depth,
        width: Size,
        heads: Size,
        mlp_ratio: Size,
        patch: Kernel,
        layer: Sequence[str],
        after: Sequence[str],
        activation: Activation,
        norm_eps: Positive,
        qkv_bias: bool,
        dropout: Rate,
        readout: Readout,
        representation: Size | None,
        shortcut: Callable[..., nn.Module],
        survival: Survival | None,
        initialization: Initialization | str,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        if depth < 2 or depth % 2:
            nearest = "the smallest is 2" if depth < 2 else f"the nearest are {depth - 1} and {depth + 1}"
            raise ValueError(f"depth is {depth}; attention and MLP take turns, so it must be even: {nearest}")
        _check_layer(layer)
        further: dict[str, Callable[[int], nn.Module]] = {
            "ln": partial(nn.LayerNorm, eps=norm_eps),
            "attention": partial(Attention, heads=heads, bias=qkv_bias, dropout=dropout),
            "mlp": partial(MLP, ratio=mlp_ratio, activation=activation, dropout=dropout),
        }
        layers = Layers(conv_bias=True, batchnorm_images=None, dropout=dropout, further=further)
        orderings = [_around(sublayer, layer, after) for sublayer in ("attention", "mlp")]
        designs = [UnitDesign(ordering, layers, shortcut, "zero_padding", units=depth) for ordering in orderings]
        convs = [Conv(width, kernel=1, stride=1)]  # a gated shortcut builds a linear layer of this width
        self.stem = Tokens(width, patch=patch, class_token=readout == "class_token", dropout=dropout, shape=shape)
        units = [designs[index % 2].unit(index + 1, width, convs) for index in range(depth)]
        self.stages = nn.Sequential(nn.Sequential(*units))
        self.tail = layers.sequence(orderings[0].before, width)
        self.readout = readout
        self.representation = (
            nn.Identity() if representation is None else nn.Sequential(nn.Linear(width, representation), nn.Tanh())
        )
        self.head = nn.Linear(representation or width, classes)
        self.complete(survival, initialization)

    def pool(self, x: Tensor) -> Tensor:
        """Reduce the tail's tokens (N, T, d) to the head's input: (N, d), or (N, representation)."""
        return self.representation(x[:, 0] if self.readout == "class_token" else x.mean(1))


class Tokens(nn.Module):
    """Maps images (N, C, H, W) to tokens (N, T, d): a linear map of each patch, plus a learned vector for its position.

    With `class_token`, a learned token precedes them; it starts at 0. The position vectors are drawn from
    N(0, 0.02^2), truncated at +-2. Raises ValueError for patches that do not divide the image.
    """

    def __init__(
        self, width: int, *, patch: int, class_token: bool, dropout: float, shape: tuple[int, int, int]
    ) -> None:
        super().__init__()
        channels, *size = shape
        if any(side % patch for side in size):
            legal = [str(n) for n in range(1, min(size) + 1) if not any(side % n for side in size)]
            raise ValueError(
                f"patch is {patch}, which does not divide images of {size[0]}x{size[1]}: choose from {', '.join(legal)}"
            )
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        tokens = (size[0] // patch) * (size[1] // patch) + class_token
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, width), std=0.02))
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            # Not len(x), which torch.export would store as a constant.
            x = torch.cat((self.class_token.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1)
        if x.shape[1] != self.positions.shape[1]:
            raise ValueError(
                f"this net has {self.positions.shape[1]} positions, but these images have {x.shape[1]} tokens"
            )
        return self.dropout(x + self.positions)


class Attention(nn.Module):
    """Multi-head self-attention on tokens (N, T, d), followed by dropout.

    `bias` says whether queries, keys and values have a bias. Raises ValueError if `heads` does not divide the width.
    """

    def __init__(self, width: int, *, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        if width % heads:
            legal = ", ".join(str(number) for number in range(1, width + 1) if width % number == 0)
            raise ValueError(f"heads is {heads}, which does not divide the width {width}: choose from {legal}")
        self.heads = heads
        self.qkv = Packed(width, parts=3, bias=bias)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.dropout(self.output(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))

    def values_and_outputs(self) -> tuple[Tensor, ...]:
        """Return the weights that `initialization.DeepNorm` scales."""
        return self.qkv.weight.chunk(3)[2], self.output.weight


class Packed(nn.Linear):
    """`parts` linear maps of one input, their weights stacked in W (parts * d, d); each is initialised separately."""

    def __init__(self, width: int, *, parts: int, bias: bool) -> None:
        super().__init__(width, parts * width, bias)
        self.parts = parts


class MLP(nn.Module):
    """Maps each token x of (N, T, d) to dropout(W2 activation(W1 x + b1) + b2), where W1 x has `ratio` * d values."""

    def __init__(self, width: int, *, ratio: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, ratio * width)
        self.activation = nn.GELU() if activation == "gelu" else nn.ReLU()
        self.output = nn.Linear(ratio * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.output(self.activation(self.inner(x))))

    def values_and_outputs(self) -> tuple[Tensor, ...]:
        """Return the weights that `initialization.DeepNorm` scales."""
        return self.inner.weight, self.output.weight


def _check_layer(layer: Sequence[str]) -> None:
    if list(layer).count("sublayer") != 1 or "ln" not in layer or set(layer) - {"ln", "sublayer"}:
        raise ValueError(
            f"layer is {list(layer)}; a transformer needs one sublayer and its norm, [ln, sublayer] or [sublayer, ln]: "
            "choose model/ordering=pre_norm or post_norm"
        )


def _around(sublayer: str, layer: Sequence[str], after: Sequence[str]) -> Ordering:
    return Ordering(tuple(sublayer if name == "sublayer" else name for name in layer), tuple(after))
