import inspect
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from deepnets.data import sources
from deepnets.data.dataset import Dataset, hold_out
from deepnets.data.imagenet import ImageNet
from deepnets.data.source import CHUNK, DataFiles, Source, Split
from deepnets.errors import UserError

CONFIGURATIONS = sorted((Path(__file__).parents[2] / "conf" / "dataset").glob("*.yaml"))
CPU = torch.device("cpu")
LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
tiny = partial(sources.synthetic, classes=4, channels=3, size=5, train=40, test=12)


def dataset(
    source: object = tiny, root: str = ".", validation: int = 0, normalization: str = "channel", pad: int = 0
) -> Dataset:
    return Dataset(source, root, validation, normalization, pad, flip=False)


def test_what_is_left_for_training_is_what_is_normalised() -> None:
    data = dataset(validation=8)
    assert (data.shape, data.classes, data.training_size) == ((3, 5, 5), 4, 32)
    splits = data.load(CPU)
    assert [len(split) for split in (splits.train, splits.validation, splits.test)] == [32, 8, 12]
    assert splits.validation.labels.bincount().tolist() == [2, 2, 2, 2]
    x = splits.normalization(splits.train.images)
    assert x.mean((0, 1, 2)).abs().max() < 1e-5
    assert splits.normalization(splits.validation.images).mean((0, 1, 2)).abs().max() > 1e-3


@pytest.mark.parametrize(("shape", "labels"), [((5, 5, 1), 3), ((4, 5, 3), 3), ((5, 5, 3), 4)])
def test_images_of_another_kind_than_stated_are_refused(shape: tuple[int, ...], labels: int) -> None:
    split = Split(torch.zeros(6, *shape, dtype=torch.uint8), torch.tensor([0, 1, 2, 3, 0, labels]))

    def source(root: Path) -> Source:
        return replace(tiny(root), find=lambda: DataFiles((6, 6), lambda: (split, split)))

    with pytest.raises(UserError, match=r"delete its deepnets-\*\.npz"):
        dataset(source).load(CPU)


def test_a_source_with_labels_of_another_type_is_refused() -> None:
    split = Split(torch.zeros(4, 5, 5, 3, dtype=torch.uint8), torch.arange(4, dtype=torch.int32))

    def source(root: Path) -> Source:
        return replace(tiny(root), find=lambda: DataFiles((4, 4), lambda: (split, split)))

    with pytest.raises(UserError, match="images are uint8 and its labels int32; the source must return uint8 and in"):
        dataset(source).load(CPU)


def test_images_that_a_gpu_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (52 * 75 - 1, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    with pytest.raises(UserError, match=r"synthetic takes 0\.0 GiB, a GPU has 0\.0 free"):
        dataset().load(torch.device("cuda", 0))


def test_the_hold_out_takes_from_training_only_and_keeps_the_rest() -> None:
    whole, held = dataset().load(CPU), dataset(validation=8).load(CPU)
    assert whole.validation is None
    assert torch.equal(whole.test.images, held.test.images)

    def images(*splits: object) -> list[bytes]:
        return sorted(image.numpy().tobytes() for split in splits for image in split.images)

    assert images(held.train, held.validation) == images(whole.train)


@pytest.mark.parametrize("validation", [40, 1000])
def test_an_impossible_hold_out_is_refused_before_reading(validation: int) -> None:
    with pytest.raises(UserError, match=rf"validation={validation}: hold out 0"):
        _ = dataset(validation=validation).training_size


def test_shape_and_classes_are_known_before_the_data_are_there() -> None:
    data = dataset(sources.cifar100, root="/nowhere/at/all")
    assert (data.shape, data.classes) == ((3, 32, 32), 100)


def test_an_unknown_normalisation_is_refused() -> None:
    with pytest.raises(UserError, match="normalization=mean: choose one of channel, pixel_mean, unit_interval"):
        dataset(normalization="mean")


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"dataset\.root={tmp_path}/file is a file"):
        dataset(partial(sources.image_folder, name="x", size=None), str(tmp_path / "file"))


def test_data_beyond_memory_are_refused_before_reading() -> None:
    huge = partial(sources.synthetic, classes=10, channels=3, size=1000, train=10**8, test=1)
    with pytest.raises(UserError, match=r"synthetic takes 27939\d\.\d GiB"):
        _ = dataset(huge).training_size


@pytest.mark.parametrize(
    ("source", "images", "train", "test", "expected"),
    [
        (sources.cifar10, "RGB 32 10", 2, 1, "20 training and 10 test images, but 50,000 and 10,000 are published"),
        (sources.cifar100, "RGB 32 100", 1, 1, "100 training and 100 test images, but 50,000 and 10,000 are published"),
        (sources.mnist, "L 28 10", 2, 1, "20 training and 10 test images, but 60,000 and 10,000 are published"),
        (partial(sources.svhn, extra=False), "RGB 32 10", 2, 1, "20 training .* 73,257 and 26,032 are published"),
        (partial(sources.svhn, extra=True), "RGB 32 10", 2, 1, "40 training .* 604,388 and 26,032 are published"),
    ],
    ids=["cifar10", "cifar100", "mnist", "svhn", "svhn with extra"],
)
def test_an_incomplete_copy_of_a_known_set_is_refused_unless_it_is_asked_for(
    tmp_path: Path, source: Callable, images: str, train: int, test: int, expected: str
) -> None:
    mode, pixels, classes = images.split()
    for part, count in (("train", train), ("extra", train), ("test", test)):
        for label in range(int(classes)):
            (tmp_path / part / f"{label:02}").mkdir(parents=True)
            for number in range(count):
                image = Image.new(mode, (int(pixels), int(pixels)))
                image.save(tmp_path / part / f"{label:02}" / f"{number}.png")
    arguments = (source, str(tmp_path), 0, "unit_interval", 0, False)
    for look in (lambda data: data.training_size, lambda data: data.load(CPU)):
        with pytest.raises(UserError, match=rf"{expected}: complete it, .*dataset\.incomplete=true"):
            look(Dataset(*arguments))
    data = Dataset(*arguments, incomplete=True)
    assert data.training_size == len(data.load(CPU).train) == int(expected.split()[0])


def test_a_known_set_with_its_published_size_and_other_sets_of_any_size_are_read() -> None:
    known = replace(tiny(Path()), name="known", published=(40, 12))
    assert dataset(lambda root: known).training_size == 40
    assert len(dataset(lambda root: known).load(CPU).train) == 40
    for sizes in ((39, 12), (40, 13)):
        other = replace(known, published=sizes)
        with pytest.raises(UserError, match=rf"known in \. has 40 .* 12 .* {sizes[0]} and {sizes[1]} are published"):
            _ = dataset(lambda root, other=other: other).training_size


def test_what_an_archive_turns_out_to_hold_is_counted_again_when_it_is_read() -> None:
    files = DataFiles((40, 12), tiny(Path()).found.read)
    known = replace(tiny(Path()), published=(41, 12), find=lambda: replace(files, sizes=(41, 12)))
    data = dataset(lambda root: known)
    assert data.training_size == 41
    with pytest.raises(UserError, match="has 40 training"):
        data.load(CPU)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_configuration_states_every_value(path: Path) -> None:
    node = OmegaConf.to_container(OmegaConf.load(path))
    if path.stem == "imagenet":  # its files are decoded while a network trains
        assert node.pop("_target_") == "deepnets.data.imagenet.ImageNet"
        assert set(node) == set(inspect.signature(ImageNet).parameters)
        return
    assert node.pop("_target_") == "deepnets.data.dataset.Dataset"
    assert set(node) == set(inspect.signature(Dataset).parameters)
    source = node["source"]
    assert source.pop("_target_") == f"deepnets.data.sources.{path.stem}"
    assert source.pop("_partial_") is True
    parameters = set(inspect.signature(getattr(sources, path.stem)).parameters)
    assert set(source) == parameters - {"root"}
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("count", "shares"),
    [(10, [5, 3, 2]), (11, [6, 3, 2]), (13, [6, 4, 3]), (1, [1, 0, 0])],  # 11: 5.5, 3.3, 2.2; 13: 6.5, 3.9, 2.6
)
def test_shares_are_the_classes_proportions_by_the_largest_remainder(count: int, shares: list[int]) -> None:
    _, held = hold_out(LABELS, count, 3)
    assert LABELS[held].bincount(minlength=3).tolist() == shares


def test_splits_are_disjoint_complete_and_in_order() -> None:
    kept, held = hold_out(LABELS, 25, 3)
    assert len(held) == 25
    assert sorted(kept.tolist() + held.tolist()) == list(range(100))
    assert kept.tolist() == sorted(kept.tolist())


def test_the_same_images_are_held_out_whatever_the_random_state() -> None:
    torch.manual_seed(1)
    first = hold_out(LABELS, 25, 3)[1]
    torch.manual_seed(2)
    assert torch.equal(first, hold_out(LABELS, 25, 3)[1])


def test_held_out_images_are_not_just_the_first_of_their_class() -> None:
    _, held = hold_out(torch.arange(1000) % 10, 100, 10)
    assert held.max() > 900


def test_a_class_without_training_images_is_refused() -> None:
    with pytest.raises(UserError, match=r"validation=99 of 100 .* class 1 \(30 images\)"):
        hold_out(LABELS, 99, 3)


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


def photos(reduce: int, shape: tuple[int, int, int] = (3, 4, 6)) -> Dataset:
    channels, height, width = shape
    images = torch.arange(8 * height * width * channels).remainder(251).to(torch.uint8).view(8, height, width, channels)
    splits = Split(images[:5], torch.arange(5) % 2), Split(images[5:], torch.arange(3) % 2)
    source = Source("photos", shape, ("a", "b"), lambda: DataFiles((5, 3), lambda: splits))
    return Dataset(lambda root: source, ".", 0, "pixel_mean", 1, flip=False, reduce=reduce)


def test_a_network_and_its_batches_see_the_reduced_images() -> None:
    data = photos(2)
    assert data.shape == (3, 2, 3)
    whole, small = photos(1).load(torch.device("cpu")), data.load(torch.device("cpu"))
    for name in ("train", "test"):
        assert torch.equal(getattr(small, name).images, getattr(whole, name).reduced(2).images)
    assert torch.allclose(small.normalization.mean, small.train.images.float().mean(0))


@pytest.mark.parametrize("reduce", [-1, 0, 3, 4])
def test_a_factor_that_does_not_divide_the_images_is_refused(reduce: int) -> None:
    with pytest.raises(UserError, match=rf"reduce={reduce}: .* of photos \(4 x 6\), or 1"):
        photos(reduce)


@pytest.mark.parametrize("value", [3, None, {}, "x"])
def test_an_entry_of_augmentation_that_is_no_operation_is_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"augmentation\[0\]: got .*; must be an operation"):
        Dataset(tiny, ".", 0, "channel", 0, flip=False, augmentation=[value])
