import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits

from deepnets.data import sources
from deepnets.data.source import Source
from deepnets.errors import UserError

WriteTree = Callable[..., Path]
REAL = Path(os.environ.get("DEEPNETS_TEST_DATA", "/nonexistent"))


def synthetic(**changed: int) -> Source:
    arguments = {"classes": 3, "channels": 3, "size": 6, "train": 40, "test": 20} | changed
    return sources.synthetic(Path("unused"), **arguments)


def test_digits_are_scikit_learns_without_loss_and_split_in_proportion() -> None:
    source = sources.digits(Path("unused"))
    train, test = source.found.read()
    assert (len(train), len(test)) == source.found.sizes == (1437, 360)
    assert train.images.shape[1:] == (8, 8, 1)
    bunch = load_digits()
    ours = np.concatenate([train.images, test.images])[..., 0]
    labels = np.concatenate([train.labels, test.labels])
    original = sorted((image.tobytes(), int(label)) for image, label in zip(bunch.images, bunch.target, strict=True))
    assert sorted((i.tobytes(), int(c)) for i, c in zip(ours / 15, labels, strict=True)) == original
    assert test.labels.bincount().tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert torch.equal(source.found.read()[1].images, test.images)


def write_idx(
    folder: Path, form: Callable[[bytes], bytes], suffix: str, sizes: tuple[int, int] = (12, 5)
) -> np.ndarray:
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (sum(sizes), 28, 28), dtype=np.uint8)
    for name, part, start in (("train", sizes[0], 0), ("t10k", sizes[1], sizes[0])):
        head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (part, 28, 28))
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(form(head + images[start : start + part].tobytes()))
        head, labels = bytes([0, 0, 8, 1]) + part.to_bytes(4, "big"), bytes(i % 10 for i in range(part))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(form(head + labels))
    return images


@pytest.mark.parametrize("place", ["MNIST/raw", "mnist"])
@pytest.mark.parametrize(("form", "suffix"), [(bytes, ""), (gzip.compress, ".gz")], ids=["plain", "gz"])
def test_mnist_is_read_from_idx_files(tmp_path: Path, place: str, form: Callable, suffix: str) -> None:
    images = write_idx(tmp_path / place, form, suffix)
    source = sources.mnist(tmp_path)
    assert (source.shape, source.found.sizes, len(source.classes)) == ((1, 28, 28), (12, 5), 10)
    train, test = source.found.read()
    assert np.array_equal(np.concatenate([train.images, test.images])[..., 0], images)
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert train.labels.dtype == torch.int64


def test_mnist_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", bytes, "")
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(bytes([0, 0, 8, 1]) + (11).to_bytes(4, "big") + bytes(11))
    with pytest.raises(UserError, match="contradict each other"):
        _ = sources.mnist(tmp_path).found
    labels.write_bytes(whole[:-1] + bytes([10]))
    with pytest.raises(UserError, match="not all 0 to 9"):
        sources.mnist(tmp_path).found.read()


@pytest.mark.parametrize("below", [True, False], ids=["root/cifar10", "root"])
def test_a_tree_named_like_the_set_is_read_as_a_tree(tmp_path: Path, write_tree: WriteTree, below: bool) -> None:
    folder = write_tree("cifar10", classes=10, train=2, test=1, mode="RGB")
    for path in folder.rglob("*.png"):
        Image.open(path).resize((32, 32)).save(path)
    source = sources.cifar10(tmp_path if below else folder)
    assert (source.name, source.shape, source.found.sizes) == ("cifar10", (3, 32, 32), (20, 10))
    assert source.found.read()[0].images.shape == (20, 32, 32, 3)


def test_a_tree_of_a_known_set_has_its_class_names(tmp_path: Path, write_tree: WriteTree) -> None:
    folder = write_tree("cifar10", classes=10)
    for label, name in enumerate(sources.CIFAR10):
        for half in ("train", "test"):
            (folder / half / str(label)).rename(folder / half / name)
    assert sources.cifar10(tmp_path).found.sizes == (40, 20)
    for half in ("train", "test"):
        (folder / half / "cat").rename(folder / half / "zebra")
    with pytest.raises(UserError, match=r"not named as in cifar10 \(cat, zebra\)"):
        _ = sources.cifar10(tmp_path).found


def test_a_folder_in_place_of_a_file_of_mnist_is_named(tmp_path: Path) -> None:
    for name in sources.MNIST_FILES:
        (tmp_path / "MNIST" / "raw" / name).mkdir(parents=True)
    with pytest.raises(UserError, match="train-images-idx3-ubyte is not a file"):
        _ = sources.mnist(tmp_path).found


def test_svhn_is_read_from_its_matlab_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    parts = {"train": [0, 1, 2], "extra": [3, 4], "test": [5, 6]}
    for part, index in parts.items():
        digits = np.array([10, 1, 9])[: len(index), None]  # SVHN writes the digit 0 as 10
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels[index].transpose(1, 2, 3, 0), "y": digits})
    kind = torchvision.datasets.SVHN
    monkeypatch.setattr(kind, "split_list", {part: [*kind.split_list[part][:2], None] for part in parts})  # no checksum
    for extra, index, labels in ((False, [0, 1, 2], [0, 1, 9]), (True, [0, 1, 2, 3, 4], [0, 1, 9, 0, 1])):
        train, test = sources.svhn(tmp_path, extra=extra).found.read()
        assert np.array_equal(train.images, pixels[index])
        assert np.array_equal(test.images, pixels[5:])
        assert train.labels.tolist() == labels


def test_class_names_are_in_the_order_of_the_official_labels() -> None:
    for names, count in ((sources.CIFAR10, 10), (sources.CIFAR100, 100)):
        assert len(set(names)) == count
        assert list(names) == sorted(names)  # both label lists are alphabetical


def test_synthetic_images_are_the_same_each_time_and_learnable() -> None:
    (train, test), (again, _) = synthetic().found.read(), synthetic().found.read()
    assert torch.equal(train.images, again.images)
    assert synthetic().shape == (3, 6, 6)
    assert not torch.equal(train.images[:20], test.images)
    means = torch.stack([train.images[train.labels == c].float().mean(0) for c in range(3)])
    nearest = (test.images[:, None].float() - means).square().sum((2, 3, 4)).argmin(1)
    assert torch.equal(nearest, test.labels)


@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason="DEEPNETS_TEST_DATA holds no MNIST/raw")
def test_the_real_mnist() -> None:
    train, test = sources.mnist(REAL).found.read()
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.images.double().mean().item() / 255 == pytest.approx(0.13066, abs=1e-5)
    assert len(test) == 10_000


@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="DEEPNETS_TEST_DATA holds no cifar10/")
def test_the_real_cifar10() -> None:
    train, test = sources.cifar10(REAL).found.read()
    assert train.labels.bincount().tolist() == [5000] * 10
    assert len(test) == 10_000
    mean = train.images.double().mean((0, 1, 2))
    assert mean.tolist() == pytest.approx([125.3, 123.0, 113.9], abs=0.1)  # fb.resnet.torch, datasets/cifar10.lua
