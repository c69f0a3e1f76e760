"""The built-in data sets: each function takes the data folder and returns a `Source`, which decodes images later.

A tree has its images in TREE/{train,test}/<class>/, and `root` itself may be the tree.
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from deepnets.data.archives import Archive, find_idx, idx_shape, missing, obtain, official, read_idx
from deepnets.data.class_folders import is_tree, tree
from deepnets.data.source import DataFiles, Source, Split
from deepnets.errors import UserError
from deepnets.system.settings import Count, Name, Size

MNIST_SHAPE, COLOUR_SHAPE = (1, 28, 28), (3, 32, 32)
DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905 (one name a line would fill the page)
)
HALVES = ({"train": True},), ({"train": False},)  # what torchvision takes for training and for test images
CIFAR_SIZES, MNIST_SIZES = (50_000, 10_000), (60_000, 10_000)  # images for training and testing
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def digits(root: Path) -> Source:
    """scikit-learn's 1,797 handwritten digits, 8x8, a fixed stratified fifth is for testing; `root` is not used."""

    def read() -> tuple[Split, Split]:
        os.environ.setdefault("JOBLIB_MULTIPROCESSING", "0")  # joblib would warn if it cannot create a semaphore
        from sklearn.datasets import load_digits  # heavy
        from sklearn.model_selection import train_test_split

        bunch = load_digits()
        images = (bunch.images * 15).astype(np.uint8)[..., None]  # 0..16 becomes 0..240, without loss
        halves = train_test_split(images, bunch.target, test_size=360, random_state=0, stratify=bunch.target)
        train_images, test_images, train_labels, test_labels = map(torch.from_numpy, halves)
        return Split(train_images, train_labels), Split(test_images, test_labels)

    return Source("digits", (1, 8, 8), DIGITS, lambda: DataFiles((1437, 360), read))


def mnist(root: Path) -> Source:
    """MNIST: the tree `root`/mnist, or idx files (plain or .gz) in `root`/MNIST/raw or `root`/mnist, or a download."""
    return Source("mnist", MNIST_SHAPE, DIGITS, partial(_find_mnist, root), MNIST_SIZES)


def cifar10(root: Path) -> Source:
    """CIFAR-10 (50,000 and 10,000 images 32x32): the tree `root`/cifar10, the archive in `root`, or a download."""
    find = partial(_find_cifar, root, 10, "cifar-10-batches-py")
    return Source("cifar10", COLOUR_SHAPE, CIFAR10, find, CIFAR_SIZES)


def cifar100(root: Path) -> Source:
    """CIFAR-100 (50,000 and 10,000 images 32x32): the tree `root`/cifar100, the archive in `root`, or a download."""
    find = partial(_find_cifar, root, 100, "cifar-100-python")
    return Source("cifar100", COLOUR_SHAPE, CIFAR100, find, CIFAR_SIZES)


def svhn(root: Path, *, extra: bool) -> Source:
    """SVHN, cropped digits 32x32: the tree `root`/svhn, the official files in `root`, or a download.

    73,257 images for training, 604,388 with the easier `extra` ones (stochastic depth, section 4), 26,032 for testing.
    """
    sizes = (604_388 if extra else 73_257, 26_032)
    return Source("svhn", COLOUR_SHAPE, DIGITS, partial(_find_svhn, root, extra, sizes), sizes)


def image_folder(root: Path, *, name: Name, size: Size | None) -> Source:
    """A data set called `name`, from a tree root/{train,test}/<class>/<images>; labels number the sorted class names.

    If the first image is greyscale, all must be greyscale, and images have one channel. Otherwise they have three, and
    a greyscale image gets three equal ones. With `size`, the shorter side of each image is scaled to `size` pixels, and
    a square is cut from its centre. Without `size`, all images must have the same height and width.
    """
    return tree(name, root, size=size)


def synthetic(
    root: Path,
    *,
    classes: Annotated[Size, Ge(2)],
    channels: Size,
    size: Size,
    train: Count,
    test: Count,
) -> Source:
    """Noise around one random pattern per class: learnable, the same on every call; `root` is not used."""

    def split(count: int, seed: int, patterns: np.ndarray) -> Split:
        noise = np.random.default_rng(seed).integers(128, size=(count, size, size, channels), dtype=np.uint8)
        labels = np.arange(count) % classes
        return Split(torch.from_numpy(noise + patterns[labels]), torch.from_numpy(labels))

    def read() -> tuple[Split, Split]:
        patterns = np.random.default_rng(0).integers(128, size=(classes, size, size, channels), dtype=np.uint8)
        return split(train, 1, patterns), split(test, 2, patterns)

    names = tuple(str(label) for label in range(classes))
    return Source("synthetic", (channels, size, size), names, lambda: DataFiles((train, test), read))


def _find_mnist(root: Path) -> DataFiles:
    if (folder := _tree_in(root, "mnist")) is not None:
        return tree("mnist", folder, classes=DIGITS, shape=MNIST_SHAPE).found
    folders = root / "MNIST" / "raw", root / "mnist"
    present = ([path for name in MNIST_FILES if (path := find_idx(folder, name))] for folder in folders)
    files = next((paths for paths in present if len(paths) == len(MNIST_FILES)), None)
    if files is None:
        url = "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
        archive = Archive("mnist", url, "MNIST", *HALVES, files=tuple(f"MNIST/raw/{name}" for name in MNIST_FILES))

        def download() -> tuple[Split, Split]:
            obtain(archive, root)
            return _find_mnist(root).read()

        return DataFiles(MNIST_SIZES, download, missing(archive, root))
    (train, *size), labels, (test, *test_size), test_labels = map(idx_shape, files)
    if (train, test) != (*labels, *test_labels) or not size == test_size == list(MNIST_SHAPE[1:]):
        raise UserError(f"the idx files in {files[0].parent} contradict each other or MNIST: replace or delete them")

    def read() -> tuple[Split, Split]:
        images, labels, test_images, test_labels = (torch.from_numpy(read_idx(path)) for path in files)
        if max(labels.max(), test_labels.max()) > 9:
            raise UserError(f"the labels in {files[0].parent} are not all 0 to 9: replace or delete them")
        return Split(images[..., None], labels.long()), Split(test_images[..., None], test_labels.long())

    return DataFiles((train, test), read)


def _find_cifar(root: Path, classes: int, unpacked: str) -> DataFiles:
    name, packed = f"cifar{classes}", f"cifar-{classes}-python.tar.gz"
    if (folder := _tree_in(root, name)) is not None:
        return tree(name, folder, classes=CIFAR10 if classes == 10 else CIFAR100, shape=COLOUR_SHAPE).found
    url = f"https://www.cs.toronto.edu/~kriz/{packed}"
    archive = Archive(name, url, name.upper(), *HALVES, files=(unpacked,), packed=packed)
    return official(archive, root, CIFAR_SIZES)


def _find_svhn(root: Path, extra: bool, sizes: tuple[int, int]) -> DataFiles:
    training = ("train", "extra") if extra else ("train",)
    if (folder := _tree_in(root, "svhn")) is not None:
        return tree("svhn", folder, training=training, classes=DIGITS, shape=COLOUR_SHAPE).found
    archive = Archive(
        "svhn",
        "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
        "SVHN",
        train=tuple({"split": part} for part in training),
        test=({"split": "test"},),
        files=tuple(f"{part}_32x32.mat" for part in (*training, "test")),
        labels="labels",
    )
    return official(archive, root, sizes)


def _tree_in(root: Path, name: str) -> Path | None:
    """Return root/name if it is a tree of images, else `root` if `root` is such a tree, else None."""
    return next((folder for folder in (root / name, root) if is_tree(folder)), None)
