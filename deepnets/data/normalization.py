"""Normalisation: x = (g(u) - mean) * scale of pixels u in 0..255, with constants fitted to the training images."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 256  # images: 256 * 255**2 < 2**24, so their sums are exact in float32, in any order, on any device

CONTRAST_BIAS = 10.0  # added to a variance on the 0..255 scale (Coates et al. 2011)


def as_is(x: Tensor) -> Tensor:
    """Return x unchanged: this is g where a normalisation uses only statistics of the data set, not of an image."""
    return x


def global_contrast(x: Tensor) -> Tensor:
    """Subtract from each image its mean and divide by sqrt(10 + its variance), both over all pixels and channels.

    Overwrites x (n, H, W, C) float32. Coates et al. 2011; pylearn2 computes the same with use_std=True, sqrt_bias=10.
    The highway papers name global contrast normalisation without its constants: this form is our choice.
    """
    pixels = x.flatten(1)
    pixels.sub_(pixels.mean(1, keepdim=True))
    variance = torch.linalg.vector_norm(pixels, dim=1, keepdim=True).square_() / max(pixels.shape[1] - 1, 1)
    pixels.div_(variance.add_(CONTRAST_BIAS).sqrt_())
    return pixels.view(x.shape)


@dataclass(frozen=True)
class Normalization:
    """Holds `mean` and `scale`, (H, W, C) float32 on the images' device, and g, `of_each`, which acts on each image.

    `mean` and `scale` are whole images even if only channels differ: rows of three numbers broadcast slowly.
    """

    mean: Tensor
    scale: Tensor
    of_each: Callable[[Tensor], Tensor] = as_is

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (n, H, W, C) uint8 to float32."""
        return self.of_each(images.to(torch.float32)).sub_(self.mean).mul_(self.scale)


def fit(kind: str, images: Tensor) -> Normalization:
    """Fit the normalisation `kind` to `images` (N, H, W, C) uint8, the training images that are not held out."""
    fitted = KINDS[kind](images)
    mean, scale = (
        torch.broadcast_to(x, images.shape[1:]).to(images.device, torch.float32).contiguous()
        for x in (fitted.mean, fitted.scale)
    )
    return Normalization(mean, scale, fitted.of_each)


def channel(images: Tensor) -> Normalization:
    """Give each channel zero mean and unit variance (fb.resnet.torch, datasets/cifar10.lua)."""
    sums, squares = (power.sum((0, 1)) for power in _power_sums(images))
    moments = [_moments(*sums_of_one, images[..., 0].numel()) for sums_of_one in zip(sums, squares, strict=True)]
    mean, std = torch.tensor(moments, dtype=torch.float64).T
    return Normalization(mean, std.reciprocal())


def pixel_mean(images: Tensor) -> Normalization:
    """Subtract the mean image, on a 0..1 scale (He et al. 2015, section 4.2)."""
    return Normalization(_power_sums(images)[0] / len(images), torch.tensor(1 / 255))


def pixel_mean_scalar_std(images: Tensor) -> Normalization:
    """Subtract the mean image, then divide by one number, the standard deviation of all pixel values.

    This is the deviation of the raw values from their overall mean, not from the mean image (Huang et al. 2016,
    cifar-dataset.lua of the released code).
    """
    sums, squares = _power_sums(images)
    _, std = _moments(sums.sum(), squares.sum(), images.numel())
    return Normalization(sums / len(images), torch.tensor(1 / std))


def contrast_mean(images: Tensor) -> Normalization:
    """Apply `global_contrast`, then subtract the mean image (Srivastava et al., 19 layers)."""
    sums = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    for chunk in images.split(CHUNK):
        sums += global_contrast(chunk.to(torch.float32)).sum(0, dtype=torch.float64)
    return Normalization(sums / len(images), torch.tensor(1.0), global_contrast)


def unit_interval(images: Tensor) -> Normalization:
    """Map 0..255 to 0..1, nothing else."""
    return Normalization(torch.tensor(0.0), torch.tensor(1 / 255))


def scaled_256(images: Tensor) -> Normalization:
    """Map u to u / 256, nothing else (Srivastava et al., mnist_network.prototxt of the released code)."""
    return Normalization(torch.tensor(0.0), torch.tensor(1 / 256))


def of_each(kind: str) -> Callable[[Tensor], Tensor]:
    """Return the function g of the normalisation `kind`."""
    return global_contrast if kind == "global_contrast" else as_is


KINDS: dict[str, Callable[[Tensor], Normalization]] = {
    "channel": channel,
    "pixel_mean": pixel_mean,
    "unit_interval": unit_interval,
    "scaled_256": scaled_256,
    "pixel_mean_scalar_std": pixel_mean_scalar_std,
    "global_contrast": contrast_mean,
}


def _moments(values: Tensor, squares: Tensor, count: int) -> tuple[float, float]:
    """Return mean and standard deviation of u from exact sums of u and u²; the deviation of a constant is set to 1."""
    s, q = int(values), int(squares)  # Python's integers: n q - s² of a large data set would round in float64
    variance = (count * q - s * s) / count**2
    return s / count, math.sqrt(variance) if variance > 0 else 1.0


def _power_sums(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact sums of u and u² over the images, (H, W, C) float64."""
    sums = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    squares = torch.zeros_like(sums)
    for chunk in images.split(CHUNK):
        chunk = chunk.to(torch.float32)
        sums += chunk.sum(0)
        squares += chunk.square_().sum(0)
    return sums, squares
