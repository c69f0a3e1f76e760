"""The two sublayers of a transformer, each on tokens (N, T, d): Vaswani et al. 2017, "Attention is all you need"."""

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Activation = Literal["gelu", "relu"]


class Packed(nn.Linear):
    """Linear maps of one input side by side, each drawn as a layer of its own: W is (parts x d, d)."""

    def __init__(self, width: int, *, parts: int, bias: bool) -> None:
        super().__init__(width, parts * width, bias)
        self.parts = parts


class Attention(nn.Module):
    """Multi-head self-attention; `bias` is that of queries, keys and values, dropout stands behind the output.

    Raises ValueError where `heads` do not divide the width.
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
        return self.qkv.weight.chunk(3)[2], self.output.weight


class MLP(nn.Module):
    """W2 activation(W1 x + b1) + b2 of each token, `ratio` times as wide inside; dropout stands behind it."""

    def __init__(self, width: int, *, ratio: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, ratio * width)
        self.activation = nn.GELU() if activation == "gelu" else nn.ReLU()
        self.output = nn.Linear(ratio * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.output(self.activation(self.inner(x))))

    def values_and_outputs(self) -> tuple[Tensor, ...]:
        return self.inner.weight, self.output.weight
