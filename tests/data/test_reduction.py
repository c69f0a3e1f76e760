from fractions import Fraction

import pytest
import torch

from deepnets.data.dataset import Dataset
from deepnets.data.source import CHUNK, DataFiles, Source, Split
from deepnets.errors import UserError


def halves_up(mean: Fraction) -> int:
    return int(mean + Fraction(1, 2))


@pytest.mark.parametrize("factor", [1, 2, 3, 6])
def test_each_square_of_pixels_becomes_its_mean(factor: int) -> None:
    images = torch.randint(256, (3, 6, 12, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[0, :, :, 0] = torch.arange(72).view(6, 12) % 2  # of 2x2 pixels: exact halves
    labels = torch.tensor([2, 0, 1])
    small = Split(images, labels).reduced(factor)
    assert small.images.shape == (3, 6 // factor, 12 // factor, 2)
    assert (small.images.dtype, small.labels.tolist()) == (torch.uint8, [2, 0, 1])
    for image, row, column, channel in torch.cartesian_prod(*map(torch.arange, small.images.shape)).tolist():
        square = [
            int(images[image, factor * row + down, factor * column + across, channel])
            for down in range(factor)
            for across in range(factor)
        ]
        assert small.images[image, row, column, channel] == halves_up(Fraction(sum(square), len(square)))


def test_the_brightest_pixels_and_a_last_short_chunk() -> None:
    split = Split(torch.full((CHUNK + 1, 22, 11, 1), 255, dtype=torch.uint8), torch.zeros(CHUNK + 1, dtype=torch.int64))
    images = split.reduced(11).images
    assert images.shape == (CHUNK + 1, 2, 1, 1)
    assert (images == 255).all()


def dataset(reduce: int, shape: tuple[int, int, int] = (3, 4, 6)) -> Dataset:
    channels, height, width = shape
    images = torch.arange(8 * height * width * channels).remainder(251).to(torch.uint8).view(8, height, width, channels)
    splits = Split(images[:5], torch.arange(5) % 2), Split(images[5:], torch.arange(3) % 2)
    source = Source("photos", shape, ("a", "b"), lambda: DataFiles((5, 3), lambda: splits))
    return Dataset(lambda root: source, ".", 0, "pixel_mean", 1, flip=False, reduce=reduce)


def test_a_network_and_its_batches_see_the_reduced_images() -> None:
    data = dataset(2)
    assert data.shape == (3, 2, 3)
    whole, small = dataset(1).load(torch.device("cpu")), data.load(torch.device("cpu"))
    for name in ("train", "test"):
        assert torch.equal(getattr(small, name).images, getattr(whole, name).reduced(2).images)
    assert torch.allclose(small.normalization.mean, small.train.images.float().mean(0))


@pytest.mark.parametrize("reduce", [-1, 0, 3, 4])
def test_a_factor_that_does_not_divide_the_images_is_refused(reduce: int) -> None:
    with pytest.raises(UserError, match=rf"reduce={reduce}: .* of photos \(4 x 6\), or 1"):
        dataset(reduce)
