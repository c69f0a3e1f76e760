import io
import itertools
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2

from deepnets.config.compose import compose
from deepnets.data.augmentation import (
    COMPONENTS,
    EIGENVALUES,
    Cutout,
    Mixup,
    jittered,
    lighting,
    pad_and_crop,
    random_crop,
    views,
)
from deepnets.errors import UserError
from deepnets.training.checks import check_settings
from tests.photographs import jpeg, photograph_tree

Slow = Callable[[random.Random, int], tuple[float, float, float, float]]
WIDTH, HEIGHT, DRAWS = 250, 188, 300


def test_padded_crops_agree_with_pillow() -> None:
    pad, height, width = 2, 5, 7
    images = torch.randint(
        0, 256, (50, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    generator = np.random.default_rng(0)
    mirrored, top, left = generator.integers(2, size=50), *generator.integers(2 * pad + 1, size=(2, 50))
    ours = pad_and_crop(images.float(), pad, *(torch.from_numpy(x) for x in (mirrored, top, left)))
    for i, (mirror, y, x) in enumerate(zip(mirrored.tolist(), top.tolist(), left.tolist(), strict=True)):
        image = Image.fromarray(images[i].numpy())
        image = ImageOps.expand(ImageOps.mirror(image) if mirror else image, pad)
        image = image.crop((x, y, x + width, y + height))
        assert np.array_equal(ours[i].numpy(), np.asarray(image))


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
    cropped, image, generator = random_crop(crop, 56, True), ramp(), random.Random(0)
    fast = np.array([place(cropped(image)) for _ in range(DRAWS)])
    reference = np.array([slow(generator, 56) for _ in range(4 * DRAWS)])
    for mine, other in zip(fast.T, reference.T, strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3
        assert abs(mine.mean() - other.mean()) < 4 * other.std() / math.sqrt(DRAWS) + 1


def test_half_of_the_images_are_mirrored_only_where_asked() -> None:
    torch.manual_seed(0)
    image = ramp()
    for flip, share in ((True, 0.5), (False, 0.0)):
        cropped = random_crop("none", 56, flip)
        mirrored = [crop[0, 0, 0] > crop[0, 0, -1] for crop in (cropped(image) for _ in range(200))]
        assert abs(np.mean(mirrored) - share) < 0.12


def slow_jitter(pixels: np.ndarray, factors: np.ndarray, order: list[int]) -> np.ndarray:
    """ColorJitter of fb.resnet.torch on (H, W, 3), one blend after the other."""
    grey = np.array([0.299, 0.587, 0.114])
    others = (lambda x: 0.0, lambda x: (x @ grey).mean(), lambda x: (x @ grey)[..., None])
    for step in order:
        pixels = factors[step] * pixels + (1 - factors[step]) * others[step](pixels)
    return pixels


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_colours_are_those_of_a_slow_reference_in_any_order(order: list[int]) -> None:
    generator = np.random.default_rng(0)
    images, factors = generator.integers(256, size=(3, 8, 9, 3)), generator.uniform(0.6, 1.4, (3, 3))
    fast = jittered(torch.from_numpy(images).double(), torch.from_numpy(factors)).numpy()
    slow = [slow_jitter(image, own, order) for image, own in zip(images, factors, strict=True)]
    assert np.allclose(fast, slow, atol=1e-4)


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


def test_a_network_of_one_size_of_image_is_refused_where_the_result_shows_another(tmp_path: Path) -> None:
    photograph_tree(tmp_path, classes=2, train=2, val=1)
    data = ["dataset=imagenet", f"dataset.root={tmp_path}", "dataset.classes=2", "dataset.size=64", "batch_size=2"]
    net = ["model=imagenet_vit_b16", "model.depth=2", "model.width=12"]
    check_settings(compose([*data, *net, "dataset.view=ten_crop"]).config)
    with pytest.raises(UserError, match="this net has 17 positions, but these images have 26 tokens"):
        check_settings(compose([*data, *net, "dataset.view=center_320"]).config)


def test_crops_of_an_aspect_ratio_are_torchvisions() -> None:
    image = torch.from_numpy(np.asarray(Image.open(io.BytesIO(jpeg(0, 1))).convert("RGB")).copy()).permute(2, 0, 1)
    wanted = v2.RandomResizedCrop(56, interpolation=v2.InterpolationMode.BICUBIC)
    for seed in range(8):
        crops = []
        for crop in (random_crop("aspect_ratio", 56, False), wanted):
            torch.manual_seed(seed)
            crops.append(crop(image))
        assert torch.equal(*crops)


def test_crops_and_views_can_be_sent_to_processes() -> None:
    torch.manual_seed(0)
    for made in (random_crop("aspect_ratio", 56, True), random_crop("scale", 56, True), views("ten_crop", 56)):
        assert pickle.loads(pickle.dumps(made))(ramp())[0] is not None


@pytest.mark.parametrize(("height", "width"), [(32, 32), (7, 10)])
def test_cutout_sets_a_square_around_each_centre_to_zero(height: int, width: int) -> None:
    """As the authors' util/cutout.py does, whose length is even."""
    operation, x, targets = Cutout(0.5), torch.rand(40, 3, height, width) + 1, torch.eye(40)
    draws = operation.draw(np.random.default_rng(0), 40)
    changed, same = operation(x, targets, torch.from_numpy(draws))
    assert same is targets
    for image, before, (v, h) in zip(changed, x, draws, strict=True):
        rows, columns = round(height / 2), round(width / 2)
        top, left = int(v * height) - rows // 2, int(h * width) - columns // 2
        before[:, max(top, 0) : top + rows, max(left, 0) : left + columns] = 0
        assert torch.equal(image, before)


def test_mixup_mixes_a_batch_with_its_reverse_by_one_weight() -> None:
    x, targets = torch.randn(5, 1, 2, 2), torch.eye(5)
    draws = Mixup(0.2).draw(np.random.default_rng(0), 5)
    mixed, of_targets = Mixup(0.2)(x, targets, torch.from_numpy(draws))
    m = draws[0, 0]
    assert torch.allclose(mixed, m * x + (1 - m) * x.flip(0))
    assert torch.allclose(of_targets, torch.tensor(m * np.eye(5) + (1 - m) * np.eye(5)[::-1], dtype=torch.float32))
    assert of_targets.sum(1).tolist() == pytest.approx([1] * 5)


def test_weights_of_mixup_have_the_variance_of_their_distribution() -> None:
    for alpha in (0.2, 1.0, 4.0):
        weights = Mixup(alpha).draw(np.random.default_rng(1), 20_000)
        assert weights.mean() == pytest.approx(0.5, abs=0.01)
        assert weights.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
