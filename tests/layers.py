"""Layers as a user would write them, for `model.own_layers`."""

import torch
from torch import Tensor, nn


class Noisy(nn.Module):
    """Multiplies with random numbers in training, divides by a running mean, and doubles the first batch."""

    def __init__(self, channels: int, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("size", torch.ones(channels, 1, 1))
        self.register_buffer("first", None)
        self.norm = nn.InstanceNorm2d(channels, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.size.lerp_(x.detach().abs().mean((0, 2, 3)).view(-1, 1, 1), 0.1)
            if self.first is None:
                self.first = x.detach().mean()
                x = 2 * x
            x = x * torch.rand_like(x)
        return self.inner(self.norm(x / self.size))


class Squareplus(nn.Module):
    """(x + sqrt(x^2 + b)) / 2."""

    def __init__(self, b: float = 4.0) -> None:
        super().__init__()
        self.b = b

    def forward(self, x: Tensor) -> Tensor:
        return (x + torch.sqrt(x * x + self.b)) / 2


class Features(nn.Module):
    """A class whose constructor does not name its channels as deepnets does."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features))


def number(x: float) -> float:
    return x
