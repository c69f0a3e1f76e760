import numpy as np
import pytest
import torch

from deepnets.data.normalization import KINDS, fit


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
    for kind in KINDS:
        fit(kind, images)(images)
    assert torch.equal(images, before)


def test_scaled_256_is_the_pixel_over_256(images: torch.Tensor) -> None:
    extremes = torch.tensor([0, 64, 255], dtype=torch.uint8).expand(2, 4, 5, 3)
    assert fit("scaled_256", images)(extremes)[0, 0, 0].tolist() == [0.0, 0.25, 255 / 256]


def test_scalar_std_divides_the_centred_image_by_the_deviation_of_all_raw_values(images: torch.Tensor) -> None:
    pixels = images.numpy().astype(np.float64)
    deviation = np.sqrt(np.mean((pixels - pixels.mean()) ** 2))
    # About the mean image the deviation would be another: the values' spread between positions counts here.
    assert deviation > 1.2 * (pixels - pixels.mean(0)).std()
    x = fit("pixel_mean_scalar_std", images)(images)
    assert np.allclose(x, (pixels - pixels.mean(0)) / deviation, atol=1e-6)


def contrast_normalised(image: np.ndarray) -> np.ndarray:
    """Coates et al. 2011, sample by sample."""
    values = [float(value) for value in image.ravel()]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return (image - mean) / (variance + 10) ** 0.5


def test_global_contrast_is_of_each_image_before_the_mean_image_is_subtracted(images: torch.Tensor) -> None:
    reference = np.stack([contrast_normalised(image) for image in images.numpy()])
    ours = fit("global_contrast", images)
    assert np.allclose(ours(images), reference - reference.mean(0), atol=2e-6)
    unseen = 255 - images[:7]
    x = np.stack([contrast_normalised(image) for image in unseen.numpy()]) - reference.mean(0)
    assert np.allclose(ours(unseen), x, atol=2e-6)
    assert np.allclose(ours(unseen[3:4]), x[3:4], atol=2e-6)  # whatever the batch is
    strided = unseen.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert np.allclose(ours(strided), x, atol=2e-6)  # and however it lies in memory


def test_an_image_without_contrast_becomes_zero_before_the_mean_image_is_subtracted(images: torch.Tensor) -> None:
    ours = fit("global_contrast", images)
    assert torch.equal(ours(torch.full((1, 4, 5, 3), 200, dtype=torch.uint8))[0], -ours.mean)
