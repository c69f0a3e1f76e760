import io
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torch import Tensor

from deepnets.data.crops import COMPONENTS, EIGENVALUES, augmentation, lighting, views
from tests.photographs import jpeg

Slow = Callable[[random.Random, int], tuple[float, float, float, float]]
WIDTH, HEIGHT, DRAWS = 250, 188, 300


def ramp() -> Tensor:
    """Red is the column, green the row, blue constant: what a crop shows says where it is from."""
    image = torch.empty(3, HEIGHT, WIDTH, dtype=torch.uint8)
    image[0], image[1], image[2] = torch.arange(WIDTH), torch.arange(HEIGHT)[:, None], 100
    return image


def place(crop: Tensor) -> tuple[float, float, float, float]:
    """left, top, width and height of a crop (3, S, S) of the ramp, in its pixels, and mirrored or not by the sign."""
    across, down = crop[0].float().mean(0), crop[1].float().mean(1)
    steps = len(across) - 11
    width, height = ((line[-6] - line[5]).item() / steps * len(line) for line in (across, down))
    return across.mean().item() - abs(width) / 2, down.mean().item() - height / 2, abs(width), height


def slow_scale(generator: random.Random, size: int) -> tuple[float, float, float, float]:
    """He et al. 2015, section 3.4, with numbers only."""
    shorter = generator.randint(round(size * 256 / 224), round(size * 480 / 224))
    ratio = shorter / HEIGHT
    columns, rows = int(WIDTH * ratio), shorter
    left, top = generator.randint(0, columns - size), generator.randint(0, rows - size)
    return left / ratio, top / ratio, size / ratio, size / ratio


def slow_aspect_ratio(generator: random.Random, size: int) -> tuple[float, float, float, float]:
    """RandomSizedCrop of fb.resnet.torch, datasets/transforms.lua, but for the logarithm of the ratio (torchvision)."""
    while True:
        area = generator.uniform(0.08, 1.0) * WIDTH * HEIGHT
        ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if width <= WIDTH and height <= HEIGHT:
            return generator.randint(0, WIDTH - width), generator.randint(0, HEIGHT - height), width, height


@pytest.mark.parametrize(("crop", "slow"), [("scale", slow_scale), ("aspect_ratio", slow_aspect_ratio)])
def test_crops_are_distributed_as_those_of_a_slow_reference(crop: str, slow: Slow) -> None:
    torch.manual_seed(0)
    cropped, image, generator = augmentation(crop, 56, 0.0, True), ramp(), random.Random(0)
    fast = np.array([place(cropped(image)) for _ in range(DRAWS)])
    reference = np.array([slow(generator, 56) for _ in range(4 * DRAWS)])
    for mine, other in zip(fast.T, reference.T, strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3
        assert abs(mine.mean() - other.mean()) < 4 * other.std() / math.sqrt(DRAWS) + 1


def test_half_of_the_images_are_mirrored_only_where_asked() -> None:
    torch.manual_seed(0)
    image = ramp()
    for flip, share in ((True, 0.5), (False, 0.0)):
        cropped = augmentation("none", 56, 0.0, flip)
        mirrored = [crop[0, 0, 0] > crop[0, 0, -1] for crop in (cropped(image) for _ in range(200))]
        assert abs(np.mean(mirrored) - share) < 0.12


def slow_jitter(pixels: np.ndarray, generator: random.Random) -> np.ndarray:
    """ColorJitter of fb.resnet.torch on (H, W, 3) in 0..255, in floats, cut off where uint8 must be."""
    grey = np.array([0.299, 0.587, 0.114])

    def blend(x: np.ndarray, other: np.ndarray | float) -> np.ndarray:
        alpha = 1 + generator.uniform(-0.4, 0.4)
        return np.clip(alpha * x + (1 - alpha) * other, 0, 255)

    others = [lambda x: 0.0, lambda x: (x @ grey).mean(), lambda x: (x @ grey)[..., None]]
    generator.shuffle(others)
    for other in others:
        pixels = blend(pixels, other(pixels))
    return pixels


def test_colours_are_distributed_as_those_of_a_slow_reference() -> None:
    torch.manual_seed(0)
    image = Image.fromarray(np.random.default_rng(0).integers(40, 200, (8, 8, 3), np.uint8)).resize((32, 32))
    pixels, generator = np.asarray(image), random.Random(0)
    cropped = augmentation("none", 32, 0.4, False)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    same = augmentation("none", 32, 0.0, False)(tensor).permute(1, 2, 0).numpy()
    fast = [cropped(tensor).permute(1, 2, 0).numpy().astype(float) for _ in range(DRAWS)]
    slow = [slow_jitter(same.astype(float), generator) for _ in range(4 * DRAWS)]
    for statistic in (np.mean, np.std, lambda x: (x.max(2) - x.min(2)).mean()):
        mine, other = [statistic(x) for x in fast], [statistic(x) for x in slow]
        assert ks_2samp(mine, other).pvalue > 1e-3
        assert abs(np.mean(mine) - np.mean(other)) < 4 * np.std(other) / math.sqrt(DRAWS)


def test_lighting_has_the_covariance_of_the_components() -> None:
    torch.manual_seed(0)
    colours = lighting(torch.randn(200_000, 3, dtype=torch.float64) * 0.1)
    wanted = sum(
        (0.1 * value.item()) ** 2 * torch.outer(axis, axis)
        for value, axis in zip(EIGENVALUES, COMPONENTS.double(), strict=True)
    )
    assert torch.allclose(torch.cov(colours.T), wanted, atol=wanted.abs().max().item() * 0.02)
    assert torch.allclose(COMPONENTS @ COMPONENTS.T, torch.eye(3), atol=1e-3)


def test_center_is_the_crop_that_pillow_makes() -> None:
    image = Image.open(io.BytesIO(jpeg(0, 1))).convert("RGB")
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    for name, size, shorter, side in (("center", 112, 128, 112), ("center_320", 112, 160, 160)):
        scale = shorter / min(image.size)
        slow = image.resize([int(length * scale) for length in image.size], Image.Resampling.BILINEAR)
        left, top = (round((length - side) / 2) for length in slow.size)
        slow = np.asarray(slow.crop((left, top, left + side, top + side))).astype(int)
        ((fast,),) = views(name, size)(tensor)
        assert fast.shape == (3, side, side)
        assert np.abs(fast.permute(1, 2, 0).numpy() - slow).max() <= 1


def test_ten_crops_are_corners_centre_and_mirror_images() -> None:
    (crops,) = views("ten_crop", 56)(ramp())
    shorter, longer, size = 64, int(64 * WIDTH / HEIGHT), 56
    scaled = views("multi_scale", 56)(ramp())[1][0]  # 256 / 224
    assert scaled.shape == (3, shorter, longer)
    corners = [(0, 0), (0, longer - size), (shorter - size, 0), (shorter - size, longer - size)]
    corners.append((round((shorter - size) / 2), round((longer - size) / 2)))
    for number, (top, left) in enumerate(corners):
        for image, crop in ((scaled, crops[number]), (scaled.flip(2), crops[number + 5])):
            assert torch.equal(crop, image[:, top : top + size, left : left + size])


def test_multi_scale_shows_the_whole_image_at_five_sizes_and_mirrored() -> None:
    sizes = views("multi_scale", 224)(ramp())
    assert [min(x.shape[2:]) for x in sizes] == [224, 256, 384, 480, 640]
    assert all(torch.equal(image.flip(2), mirrored) for image, mirrored in sizes)
