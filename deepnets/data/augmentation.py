"""Crops, mirrors, colours and mixes images: at random in training, and as fixed views in evaluation.

Batches of small images are padded and cropped on the device, and then changed by operations such as Cutout.
Photographs, uint8 (3, H, W), are cropped one by one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepnets.system.settings import Positive, PositiveFactor

Crop = Literal["scale", "aspect_ratio", "none"]
ViewName = Literal["center", "center_320", "ten_crop", "multi_scale"]
Image = Tensor
SHORTER = 256 / 224  # shorter side of the scaled image / side of the crop
LARGEST = 480 / 224  # the same ratio, at most, in scale augmentation
SCALES = (224, 256, 384, 480, 640)  # shorter sides of the fully convolutional test, for crops of 224
# Principal components of ImageNet's colours on a scale of 0 to 1, one a row, and their eigenvalues (Krizhevsky et al.
# 2012; numbers of fb.resnet.torch, datasets/imagenet.lua).
COMPONENTS = torch.tensor([[-0.5675, -0.5808, -0.5836], [0.7192, -0.0045, -0.6948], [0.4009, -0.8140, 0.4203]])
EIGENVALUES = torch.tensor([0.2175, 0.0188, 0.0045])
GREY = torch.tensor([0.299, 0.587, 0.114])  # the weights of red, green and blue in a grey value


def pad_and_crop(x: Tensor, pad: int, mirrored: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Mirror images x (n, H, W, C) where `mirrored` (n,) is 1, pad them by zeros, and crop H x W at (`top`, `left`).

    This is one gather of pixels: the columns of a mirrored image are counted from the right.
    """
    n, height, width, channels = x.shape
    x = functional.pad(x, (0, 0, pad, pad, pad, pad))
    rows, columns = x.shape[1:3]
    row = top[:, None] + torch.arange(height, device=x.device)
    column = left[:, None] + torch.arange(width, device=x.device)
    column = torch.where(mirrored[:, None] == 1, columns - 1 - column, column)
    image = torch.arange(n, device=x.device)[:, None, None]
    pixel = (image * rows + row[:, :, None]) * columns + column[:, None, :]
    return x.flatten(0, 2).index_select(0, pixel.flatten()).view(n, height, width, channels)


class Operation(Protocol):
    """An entry of `dataset.augmentation`: it changes a batch that has been padded, cropped and mirrored."""

    def draw(self, random: np.random.Generator, images: int) -> np.ndarray:
        """Draw all random numbers of an epoch: (images, k), a row for each image in the order of the batches."""

    def __call__(self, x: Tensor, targets: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Change normalised images x (n, C, H, W) and their targets (n, classes), which are probabilities.

        The n images are a whole batch; `draws` (n, k) are their rows of `draw`, on the same device.
        """


class Cutout:
    """Set a square around a random pixel to zero (DeVries and Taylor 2017).

    The sides of the square are `size` times the sides of the image; its part beyond the border is cut off.
    """

    def __init__(self, size: PositiveFactor) -> None:
        self.size = size

    def draw(self, random: np.random.Generator, images: int) -> np.ndarray:
        """Draw the centre of each square, in sides of the image: (images, 2)."""
        return random.random((images, 2))

    def __call__(self, x: Tensor, targets: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = (self._inside(centre, side) for centre, side in zip(draws.unbind(1), x.shape[2:], strict=True))
        return x.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0), targets

    def _inside(self, centre: Tensor, side: int) -> Tensor:
        """Return which pixels of a row or column lie in each image's square: (n, side)."""
        size = round(self.size * side)
        first = ((centre * side).long() - size // 2)[:, None]
        pixel = torch.arange(side, device=centre.device)
        return (first <= pixel) & (pixel < first + size)


class Mixup:
    """Mix images and targets with the same batch in reverse order, x = m x + (1 - m) x' (Zhang et al. 2018).

    m is drawn from Beta(`alpha`, `alpha`), once for a batch. As batches are shuffled, partners are random.
    """

    def __init__(self, alpha: Positive) -> None:
        self.alpha = alpha

    def draw(self, random: np.random.Generator, images: int) -> np.ndarray:
        """Draw an m for each image, (images, 1); a batch uses the m of its first image."""
        return random.beta(self.alpha, self.alpha, (images, 1))

    def __call__(self, x: Tensor, targets: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        m = draws[0, 0].to(x.dtype)
        return x.flip(0).lerp(x, m), targets.flip(0).lerp(targets, m)


def random_crop(crop: Crop, size: int, flip: bool) -> Callable[[Image], Image]:
    """Return a function that crops an image at random to `size` x `size`; it draws from torch's generator.

    `scale` first scales the shorter side to a size drawn evenly from [256, 480] for crops of 224 (He et al. 2015,
    section 3.4). `aspect_ratio` takes a part of 8 % to 100 % of the area with an aspect ratio of 3/4 to 4/3, and scales
    it by bicubic interpolation (fb.resnet.torch, datasets/imagenet.lua). `none` takes the centre crop of evaluation.
    With `flip` half of the crops are mirrored.
    """
    from torchvision.transforms import v2

    resized = v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC)
    parts: dict[Crop, list] = {
        "scale": [
            v2.RandomShortestSize(list(range(round(size * SHORTER), round(size * LARGEST) + 1))),
            v2.RandomCrop(size),
        ],
        "aspect_ratio": [partial(_resized_part, resized)],
        "none": [v2.Resize(round(size * SHORTER)), v2.CenterCrop(size)],
    }
    return v2.Compose([*parts[crop], *([v2.RandomHorizontalFlip()] if flip else [])])


def _resized_part(crop: Any, image: Image) -> Image:
    """Do the same as torchvision's RandomResizedCrop in two thirds of its time, because the part is channels_last."""
    if image.device.type != "cpu":  # only the CPU can interpolate bytes
        return crop(image)
    box = crop.make_params([image])
    part = image[None, :, box["top"] : box["top"] + box["height"], box["left"] : box["left"] + box["width"]]
    part = part.contiguous(memory_format=torch.channels_last)
    return functional.interpolate(part, crop.size, mode="bicubic", antialias=True)[0]


def jittered(x: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast and saturation of images x (n, H, W, 3) by `factors` (n, 3).

    Each image is blended with black, with the mean of its grey values, and with its grey values (fb.resnet.torch,
    datasets/transforms.lua). As nothing is clipped, the order of the three does not matter.
    """
    brightness, contrast, saturation = factors.T[..., None, None]
    grey = x @ GREY.to(x)
    mean = grey.mean((1, 2), keepdim=True)
    added = grey.mul_(contrast * (1 - saturation)).add_(mean * (1 - contrast)).mul_(brightness)
    return (x * (brightness * contrast * saturation)[..., None]).add_(added[..., None])


def lighting(draws: Tensor) -> Tensor:
    """Return colours (n, 3) to add to images, on a scale of 0 to 1: components times eigenvalues times `draws`."""
    return draws * EIGENVALUES.to(draws) @ COMPONENTS.to(draws)


def views(name: ViewName, size: int) -> Callable[[Image], list[Tensor]]:
    """Return a function that makes an image's views for evaluation: one tensor (k, 3, h, w) for each size of view.

    `center` scales the shorter side to 8/7 of `size` and crops the centre (224 of 256). `center_320` scales it to 10/7
    of `size` and crops a square of that side (320 of 320; He et al. 2016, Table 5). `ten_crop` takes four corners and
    the centre, 224 of 256, and their mirror images. `multi_scale` takes the whole image and its mirror image, each at
    five scales (He et al. 2015, section 3.4, after Simonyan and Zisserman; the mirror images are our choice).
    """
    return partial(_seen, name, size)


def view_shapes(name: ViewName, size: int) -> list[tuple[int, int, int]]:
    """Return the shapes (C, H, W) of the views of a square image."""
    seen = _seen(name, size, torch.zeros(3, size, size, dtype=torch.uint8))
    return [(3, *crops.shape[2:]) for crops in seen]


def _seen(name: ViewName, size: int, image: Image) -> list[Tensor]:
    from torchvision.transforms.v2 import functional as F

    def centre(shorter: int, side: int) -> list[Tensor]:
        """Crop the centre; `shorter` and `side` are pixels for `size` 224, and scale with `size`."""
        side = round(size * side / 224)
        return [F.center_crop(at(shorter), [side, side])[None]]

    def at(shorter: int) -> Image:
        return F.resize(image, [round(size * shorter / 224)])

    if name == "multi_scale":
        return [torch.stack([scaled, F.horizontal_flip(scaled)]) for scaled in map(at, SCALES)]
    if name == "ten_crop":
        return [torch.stack(F.ten_crop(at(256), [size, size]))]
    return centre(256, 224) if name == "center" else centre(320, 320)
