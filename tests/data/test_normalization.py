import numpy as np
import pytest
import torch

from deepnets.data.normalization import fit


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """600 images (more than two chunks) whose pixels and channels differ in distribution."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 256, (600, 4, 5, 3)) * np.linspace(0.1, 1, 60).reshape(4, 5, 3)
    return torch.from_numpy(values.astype(np.uint8))


def test_channel_gives_zero_mean_and_unit_variance_per_channel(images: torch.Tensor) -> None:
    pixels = images.numpy().astype(np.float64)
    ours = fit("channel", images)
    assert np.allclose(ours.mean[2, 3], pixels.mean((0, 1, 2)), rtol=1e-7)
    assert np.allclose(1 / ours.scale[2, 3], pixels.std((0, 1, 2)), rtol=1e-6)
    x = ours(images).double()
    assert x.mean((0, 1, 2)).abs().max() < 1e-6
    assert torch.allclose(x.var((0, 1, 2), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-6)


def test_pixel_mean_subtracts_the_mean_image_and_divides_by_nothing(images: torch.Tensor) -> None:
    pixels = images.numpy() / 255
    assert np.allclose(fit("pixel_mean", images)(images), pixels - pixels.mean(0), atol=1e-6)


def test_unit_interval_only_scales(images: torch.Tensor) -> None:
    extremes = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 4, 5, 3)
    x = fit("unit_interval", images)(extremes)
    assert torch.allclose(x[0, 0, 0], torch.tensor([0.0, 0.2, 1.0]))


def test_a_constant_channel_is_only_centred() -> None:
    x = fit("channel", torch.full((3, 2, 2, 1), 200, dtype=torch.uint8))(
        torch.full((1, 2, 2, 1), 201, dtype=torch.uint8)
    )
    assert torch.equal(x, torch.ones(1, 2, 2, 1))


def test_images_are_left_alone(images: torch.Tensor) -> None:
    before = images.clone()
    for kind in ("channel", "pixel_mean", "unit_interval"):
        fit(kind, images)(images)
    assert torch.equal(images, before)
