"""x = (u - mean) * scale of the pixels u in 0..255, with constants fitted to the training images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

CHUNK = 256  # images: 256 * 255**2 < 2**24, so their sums are exact in float32, in any order, on any device

Kind = Literal["channel", "pixel_mean", "unit_interval"]


@dataclass(frozen=True)
class Normalization:
    """`mean` and `scale` (H, W, C) float32, on the device of the images.

    Whole images even where only channels differ: three numbers are too short a row to broadcast fast.
    """

    mean: Tensor
    scale: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Images (n, H, W, C) uint8 to float32."""
        return images.to(torch.float32).sub_(self.mean).mul_(self.scale)


def fit(kind: Kind, images: Tensor) -> Normalization:
    """The normalisation of that kind for `images` (N, H, W, C) uint8, the training images after the hold-out."""
    mean, scale = KINDS[kind](images)
    return Normalization(
        *(torch.broadcast_to(x, images.shape[1:]).to(images.device, torch.float32).contiguous() for x in (mean, scale))
    )


def channel(images: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean and unit variance per channel (fb.resnet.torch, datasets/cifar10.lua)."""
    n = images[..., 0].numel()
    sums, squares = ([int(total) for total in power.sum((0, 1)).tolist()] for power in _power_sums(images))
    mean = torch.tensor([s / n for s in sums], dtype=torch.float64)
    variance = torch.tensor([(n * q - s * s) / n**2 for s, q in zip(sums, squares, strict=True)], dtype=torch.float64)
    return mean, variance.sqrt().where(variance > 0, 1).reciprocal()  # a constant channel has nothing to scale


def pixel_mean(images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean image is subtracted, on a 0..1 scale (He 2015, section 4.2)."""
    return _power_sums(images)[0] / len(images), torch.tensor(1 / 255)


def unit_interval(images: Tensor) -> tuple[Tensor, Tensor]:
    """0..255 becomes 0..1, nothing else."""
    return torch.tensor(0.0), torch.tensor(1 / 255)


KINDS: dict[Kind, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "channel": channel,
    "pixel_mean": pixel_mean,
    "unit_interval": unit_interval,
}


def _power_sums(images: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of u and u² over the images, (H, W, C) float64, exact."""
    sums = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    squares = torch.zeros_like(sums)
    for chunk in images.split(CHUNK):
        chunk = chunk.to(torch.float32)
        sums += chunk.sum(0)
        squares += chunk.square_().sum(0)
    return sums, squares
