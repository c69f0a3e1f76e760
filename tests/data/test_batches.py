import itertools

import numpy as np
import pytest
import torch

from deepnets.data.augmentation import Cutout, Mixup, Operation
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.normalization import fit
from deepnets.data.source import Split

H, W, PAD = 5, 7, 2


def random_split(n: int = 300) -> Split:
    """Labels are the image's number, so that a sample can be recognised."""
    generator = torch.Generator().manual_seed(0)
    return Split(torch.randint(0, 256, (n, H, W, 3), dtype=torch.uint8, generator=generator), torch.arange(n))


def training(
    split: Split, *, seed: int = 0, pad: int = PAD, flip: bool = True, batch_size: int = 64
) -> TrainingBatches:
    return TrainingBatches(split, fit("channel", split.images), pad=pad, flip=flip, batch_size=batch_size, seed=seed)


def whole_epoch(batches: TrainingBatches, epoch: int = 0, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = zip(*batches.epoch(epoch, start), strict=True)
    return torch.cat(xs), torch.cat(ys)


def by_hand(image: np.ndarray, mean: np.ndarray, std: np.ndarray, mirror: bool, top: int, left: int) -> np.ndarray:
    """fb.resnet.torch's order for one image (H, W, C): normalise, mirror, pad by zeros, crop; to (C, H, W)."""
    x = (image - mean) / std
    if mirror:
        x = x[:, ::-1]
    padded = np.zeros((H + 2 * PAD, W + 2 * PAD, 3))
    padded[PAD : PAD + H, PAD : PAD + W] = x
    return padded[top : top + H, left : left + W].transpose(2, 0, 1)


def test_every_image_is_a_crop_of_the_padded_and_perhaps_mirrored_original_all_equally_likely() -> None:
    split = random_split()
    pixels = split.images.numpy().astype(np.float64)
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    ways = list(itertools.product((False, True), range(2 * PAD + 1), range(2 * PAD + 1)))
    references = np.array([[by_hand(image, mean, std, *way) for way in ways] for image in pixels])
    counts = np.zeros(len(ways), int)
    for epoch in range(10):
        x, y = whole_epoch(training(split), epoch)
        near = np.isclose(references[y], x.numpy()[:, None], atol=1e-5).all((2, 3, 4))
        assert (near.sum(1) == 1).all()
        counts += near.sum(0)
    expected = counts.sum() / len(ways)
    assert ((counts - expected) ** 2 / expected).sum() < 94.6  # chi-squared, 49 degrees of freedom, p = 1e-4


def test_border_is_zero_after_normalisation() -> None:
    split = random_split()
    x, _ = whole_epoch(training(split))
    rows = (x == 0).all((1, 3))  # rows of nothing but border: as many as the crop reaches beyond the image
    assert set(rows.sum(1).tolist()) == {0, 1, 2}
    assert not (split.images == 0).all((1, 3)).any()


def test_epoch_holds_every_sample_once_in_ceil_batches_with_a_short_last_one() -> None:
    batches = training(random_split(), batch_size=64)
    sizes = [len(y) for _, y in batches.epoch(0)]
    assert sizes == [64, 64, 64, 64, 44]
    assert len(batches) == 5
    assert sorted(whole_epoch(batches)[1].tolist()) == list(range(300))


@pytest.mark.parametrize("start", [0, 1, 4])
def test_start_gives_the_tail_of_the_epoch(start: int) -> None:
    batches = training(random_split())
    tail = list(itertools.islice(batches.epoch(3), start, None))
    for (x, y), (tail_x, tail_y) in zip(batches.epoch(3, start), tail, strict=True):
        assert torch.equal(x, tail_x)
        assert torch.equal(y, tail_y)


def test_start_at_the_end_gives_nothing() -> None:
    assert list(training(random_split()).epoch(0, 5)) == []


def test_order_and_augmentation_depend_on_seed_and_epoch_only() -> None:
    split = random_split()
    x, y = whole_epoch(training(split, seed=1), 2)
    for other in (training(split, seed=1, batch_size=7), training(split, seed=1, batch_size=300)):
        assert torch.equal(x, whole_epoch(other, 2)[0])
    orders = [
        whole_epoch(training(split, seed=seed), epoch)[1] for seed, epoch in ((1, 2), (2, 1), (1, 3), (2, 2), (0, 3))
    ]
    assert torch.equal(orders[0], y)
    assert all((a == b).float().mean() < 0.05 for a, b in itertools.combinations(orders, 2))


def test_order_is_the_same_with_and_without_augmentation() -> None:
    split = random_split()
    plain = training(split, pad=0, flip=False)
    x, y = whole_epoch(plain)
    assert torch.equal(y, whole_epoch(training(split))[1])
    assert torch.equal(x.permute(0, 2, 3, 1), fit("channel", split.images)(split.images)[y])


def test_flip_without_pad_mirrors_half_of_the_images() -> None:
    split = random_split()
    x, y = whole_epoch(training(split, pad=0))
    same = (x == whole_epoch(training(split, pad=0, flip=False))[0]).all((1, 2, 3))
    assert 110 < same.sum() < 190
    original = fit("channel", split.images)(split.images).permute(0, 3, 1, 2)[y]
    assert torch.equal(x[~same], original[~same].flip(3))


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_float32_with_channels_last_strides(channels: int) -> None:
    split = Split(random_split().images[..., :channels].contiguous(), torch.arange(300))
    evaluation = EvaluationBatches(split, fit("channel", split.images), batch_size=64)
    for batches in (training(split).epoch(0), training(split, pad=0, flip=False).epoch(0), evaluation):
        x, y = next(iter(batches))
        assert x.shape == (64, channels, H, W)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert x.is_contiguous(memory_format=torch.channels_last)


def test_evaluation_keeps_order_and_pixels() -> None:
    split = random_split()
    batches = EvaluationBatches(split, fit("unit_interval", split.images), batch_size=128)
    xs, ys = zip(*batches, strict=True)
    assert [len(y) for y in ys] == [128, 128, 44]
    assert len(batches) == 3
    assert torch.equal(torch.cat(ys), torch.arange(300))
    assert np.allclose(torch.cat(xs).permute(0, 2, 3, 1).numpy() * 255, split.images.numpy(), atol=1e-4)


class Recorder:
    """Notes the draws of each batch, and writes them into the first pixels."""

    def draw(self, random: np.random.Generator, images: int) -> np.ndarray:
        return random.random((images, 2))

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, draws: torch.Tensor) -> tuple:
        x = x.contiguous()
        x[:, 0, 0, :2] = draws.float()
        return x, targets


def changed(*operations: Operation, split: Split | None = None, **settings: int) -> TrainingBatches:
    split = split or random_split()
    settings = {"batch_size": 64, "seed": 0, "pad": PAD, "flip": True} | settings
    return TrainingBatches(split, fit("channel", split.images), operations=operations, classes=300, **settings)


def test_operations_leave_order_shifts_and_labels_as_they_are() -> None:
    x, y = whole_epoch(training(random_split()), 2)
    changed_x, targets = whole_epoch(changed(Recorder()), 2)
    assert targets.shape == (300, 300)
    assert torch.equal(targets.argmax(1), y)
    x[:, 0, 0, :2] = changed_x[:, 0, 0, :2]
    assert torch.equal(changed_x, x)
    assert changed_x.is_contiguous(memory_format=torch.channels_last)


def test_draws_of_operations_depend_on_seed_epoch_and_place_only() -> None:
    def pixels(batches: TrainingBatches, epoch: int = 2) -> torch.Tensor:
        return whole_epoch(batches, epoch)[0][:, 0, 0, :2]

    first = pixels(changed(Recorder()))
    assert torch.equal(pixels(changed(Recorder(), batch_size=7)), first)
    assert torch.equal(pixels(changed(Recorder(), Cutout(0.01))), first)  # of no pixel
    assert not torch.equal(first, pixels(changed(Recorder()), 3))
    assert not torch.equal(first, pixels(changed(Recorder(), seed=1)))
    assert not torch.equal(first, pixels(changed(Cutout(0.01), Recorder())))


def test_an_epoch_with_operations_goes_on_from_its_middle() -> None:
    batches = changed(Cutout(0.5), Mixup(1.0))
    tail = list(itertools.islice(batches.epoch(3), 2, None))
    for (x, y), (tail_x, tail_y) in zip(batches.epoch(3, 2), tail, strict=True):
        assert torch.equal(x, tail_x)
        assert torch.equal(y, tail_y)


@pytest.mark.gpu
def test_cuda_gives_the_same_batches_without_waiting_for_the_host() -> None:
    split = random_split()
    moved = Split(split.images.cuda(), split.labels.cuda())
    x, y = whole_epoch(training(split))
    batches = training(moved)
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = list(batches.epoch(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(torch.cat([y for _, y in made]).cpu(), y)
    assert torch.allclose(torch.cat([x for x, _ in made]).cpu(), x, atol=1e-6)
