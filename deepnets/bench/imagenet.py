"""Images/s of reading, decoding and cropping photographs: deepnets, torchvision's recipe, and decoding alone.

The files are crops of 500 x 375 pixels of the two photographs that scikit-learn ships, unless --root names a tree. All
candidates have as many workers; a turn is an epoch, timed from its first batch to its last.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from deepnets.bench.figures import SETTLE_SECONDS, Figures, in_turns
from deepnets.config.compose import compose
from deepnets.data.class_folders import ImageFiles
from deepnets.data.imagenet import ImageNet, Streams
from deepnets.system.options import count
from deepnets.training.assembly import dataset_of

WIDTH, HEIGHT, QUALITY = 500, 375, 95


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--root", type=Path, metavar="DIR", help="a tree of photographs (default: one made here)")
    parser.add_argument("--classes", type=count, default=2, help="class folders of --root (default: 2)")
    parser.add_argument("--images", type=count, default=1024, help="to make, without --root (default: 1024)")
    parser.add_argument("--workers", type=count, default=2, help="processes of each loader (default: 2)")
    parser.add_argument("--batch-size", type=count, default=32, help="images in a batch (default: 32)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Read the tree by turns."""
    from sklearn.datasets import load_sample_images
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    with tempfile.TemporaryDirectory() as place:
        root = arguments.root or _made(Path(place), load_sample_images().images, arguments.images)
        words = ["crop=aspect_ratio", "lighting=0", "normalization=channel", "incomplete=true"]
        words += [f"classes={arguments.classes}", f"root={root}", f"workers={arguments.workers}"]
        dataset = dataset_of(compose(["dataset=imagenet", *(f"dataset.{word}" for word in words)]).config)
        splits = dataset.load(torch.device("cpu"))
        assert isinstance(dataset, ImageNet)
        assert isinstance(splits, Streams)
        batches = dataset.training_batches(splits, batch_size=arguments.batch_size, seed=0)
        recipe = v2.Compose(  # references/classification of torchvision, presets.py
            [
                v2.RandomResizedCrop(224, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.PILToTensor(),
                v2.ToDtype(torch.float, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

        def loaded(images: Dataset) -> DataLoader:
            return DataLoader(images, arguments.batch_size, shuffle=True, num_workers=arguments.workers)

        candidates: dict[str, Callable[[], Iterable]] = {
            "deepnets": partial(batches.epoch, 0),
            "torchvision's recipe": partial(loaded, ImageFolder(str(root / "train"), recipe)),
            "decoding alone, torchvision.io": partial(loaded, _Decoded(splits.train, _by_torchvision)),
            "decoding alone, Pillow": partial(loaded, _Decoded(splits.train, _by_pillow)),
        }
        values = in_turns(
            {name: partial(_rate, epoch, arguments.batch_size) for name, epoch in candidates.items()},
            arguments.repeats,
            SETTLE_SECONDS,
        )
    return [Figures(f"photographs, {arguments.workers} workers", "images/s", values)]


def _rate(epoch: Callable[[], Iterable], batch_size: int) -> float:
    steps = iter(epoch())
    next(steps)
    started, done = time.perf_counter(), sum(1 for _ in steps)
    return done * batch_size / (time.perf_counter() - started)


class _Decoded(Dataset):
    """Images that are decoded and then dropped."""

    def __init__(self, images: ImageFiles, decode: Callable[[str], Any]) -> None:
        self.images, self.decode = images, decode

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, image: int) -> int:
        self.decode(self.images.name(image))
        return image


def _by_torchvision(name: str) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.from_numpy(np.fromfile(name, np.uint8)), ImageReadMode.RGB)


def _by_pillow(name: str) -> Image.Image:
    with Image.open(name) as image:
        return image.convert("RGB")


def _made(root: Path, photographs: list[np.ndarray], images: int) -> Path:
    """A tree of two classes."""
    generator = np.random.default_rng(0)
    for split, many in (("train", images), ("val", 2)):
        for label, photograph in enumerate(photographs):
            place = root / split / str(label)
            place.mkdir(parents=True)
            for number in range(label, many, len(photographs)):
                top, left = (
                    int(generator.integers(1 + rest)) for rest in np.subtract(photograph.shape[:2], (HEIGHT, WIDTH))
                )
                crop = Image.fromarray(photograph[top : top + HEIGHT, left : left + WIDTH])
                crop.save(place / f"{number}.jpeg", quality=QUALITY)
    return root
