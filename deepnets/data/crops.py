"""The crops of a photograph: random ones in training, fixed views in evaluation. Images are uint8 (3, H, W)."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Crop = Literal["scale", "aspect_ratio", "none"]
ViewName = Literal["center", "center_320", "ten_crop", "multi_scale"]
Image = Tensor
SHORTER = 256 / 224  # the shorter side of the image of which a crop is taken, in sides of the crop
LARGEST = 480 / 224  # that of the largest image of scale augmentation
SCALES = (224, 256, 384, 480, 640)  # shorter sides of the fully convolutional test, for crops of 224
# Principal components of ImageNet's colours on a scale of 0 to 1, one a row, and their eigenvalues (Krizhevsky et al.
# 2012; numbers of fb.resnet.torch, datasets/imagenet.lua).
COMPONENTS = torch.tensor([[-0.5675, -0.5808, -0.5836], [0.7192, -0.0045, -0.6948], [0.4009, -0.8140, 0.4203]])
EIGENVALUES = torch.tensor([0.2175, 0.0188, 0.0045])


def augmentation(crop: Crop, size: int, jitter: float, flip: bool) -> Callable[[Image], Image]:
    """Random `size` x `size` crops, drawn by torch's generator.

    `scale`: of the image with its shorter side scaled to a size drawn evenly from [256, 480] for crops of 224 (He et
    al. 2015, section 3.4). `aspect_ratio`: a part of 8 % to 100 % of the area with an aspect ratio of 3/4 to 4/3,
    scaled by bicubic interpolation. `none`: the centre crop of evaluation. Then brightness, contrast and saturation are
    changed in random order, each by a factor drawn evenly from [1 - jitter, 1 + jitter], and half of the images are
    mirrored (fb.resnet.torch, datasets/imagenet.lua).
    """
    from torchvision.transforms import v2

    parts: dict[Crop, list] = {
        "scale": [
            v2.RandomShortestSize(list(range(round(size * SHORTER), round(size * LARGEST) + 1))),
            v2.RandomCrop(size),
        ],
        "aspect_ratio": [v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC)],
        "none": [v2.Resize(round(size * SHORTER)), v2.CenterCrop(size)],
    }
    colours = [v2.ColorJitter(jitter, jitter, jitter)] if jitter else []
    return v2.Compose([*parts[crop], *colours, *([v2.RandomHorizontalFlip()] if flip else [])])


def lighting(draws: Tensor) -> Tensor:
    """What is added to the colours (n, 3), on a scale of 0 to 1: the components times their eigenvalues and `draws`."""
    return draws * EIGENVALUES.to(draws) @ COMPONENTS.to(draws)


def views(name: ViewName, size: int) -> Callable[[Image], list[Tensor]]:
    """Of an image, what the network sees: a list of (k, 3, h, w), one for each h and w.

    `center`: the crop of `size` of the image with its shorter side scaled to 8/7 of that (224 of 256). `center_320`: of
    a crop 10/7 as large, the whole shorter side (320 of 320; He et al. 2016, Table 5). `ten_crop`: four corners and
    centre of 224 of 256, and their mirror images. `multi_scale`: the whole image at five scales, and mirrored (He et
    al. 2015, section 3.4, after Simonyan and Zisserman; that mirror images count is our choice).
    """
    from torchvision.transforms.v2 import functional as F

    def at(shorter: float, image: Image) -> Image:
        return F.resize(image, [round(size * shorter)])

    def center(image: Image) -> list[Tensor]:
        return [F.center_crop(at(SHORTER, image), [size, size])[None]]

    def center_320(image: Image) -> list[Tensor]:
        side = round(size * 320 / 224)
        return [F.center_crop(at(320 / 224, image), [side, side])[None]]

    def ten_crop(image: Image) -> list[Tensor]:
        return [torch.stack(F.ten_crop(at(SHORTER, image), [size, size]))]

    def multi_scale(image: Image) -> list[Tensor]:
        scaled = [at(scale / 224, image) for scale in SCALES]
        return [torch.stack([one, F.horizontal_flip(one)]) for one in scaled]

    chosen: dict[ViewName, Callable[[Image], list[Tensor]]] = {
        "center": center,
        "center_320": center_320,
        "ten_crop": ten_crop,
        "multi_scale": multi_scale,
    }
    return chosen[name]
