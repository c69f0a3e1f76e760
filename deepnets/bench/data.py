"""`bench.py data` measures how fast images in memory become batches, `bench.py imagenet` how fast photographs do."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from deepnets.bench.comparison import (
    SETTLE_SECONDS,
    Candidates,
    Comparison,
    add_run_options,
    chosen_run,
    in_turns,
    seconds_of,
)
from deepnets.bench.peers import forever, plain_loader, task_of
from deepnets.command import count, whole
from deepnets.config.compose import compose
from deepnets.data.batches import TrainingBatches
from deepnets.data.class_folders import ImageFiles
from deepnets.data.imagenet import ImageNet, Streams
from deepnets.training.assembly import dataset_of

WIDTH, HEIGHT, QUALITY = 500, 375, 95  # of the photographs that this bench makes


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py data`."""
    add_run_options(parser, "resnet20")
    parser.add_argument("--iterations", type=count, default=40, help="batches in each repeat (default: 40)")
    parser.add_argument("--workers", type=whole, default=2, help="processes of torch's DataLoader (default: 2)")


def measure_data(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure images/s of the data pipeline alone: shuffling, cropping, flipping and normalising."""
    run, iterations = chosen_run(arguments), arguments.iterations
    batches, dataset, host = run.training().batches, dataset_of(run.config), torch.device("cpu")
    assert isinstance(batches, TrainingBatches), "dataset= must name a data set whose images lie on the device"
    images = iterations * run.config.batch_size

    def rate(endless: Iterator, device: torch.device) -> float:
        return images / seconds_of(endless, iterations, device)

    candidates: Candidates = {"deepnets": partial(rate, _endless(batches), run.device)}
    for workers in dict.fromkeys((0, arguments.workers)):
        loader = plain_loader(task_of(run, batches.split, dataset.pad, dataset.flip, workers))
        candidates[f"torchvision, {workers} workers"] = partial(rate, forever(loader), host)
    values = in_turns(candidates, arguments.repeats, SETTLE_SECONDS if arguments.workers else 0)
    return [Comparison("data pipeline", "images/s", values)]


def add_imagenet_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py imagenet`."""
    parser.add_argument("--root", type=Path, metavar="DIR", help="tree of photographs (default: this bench makes one)")
    parser.add_argument("--classes", type=count, default=2, help="class folders of --root (default: 2)")
    parser.add_argument("--images", type=count, default=1024, help="images to make, without --root (default: 1024)")
    parser.add_argument("--workers", type=count, default=2, help="processes of each loader (default: 2)")
    parser.add_argument("--batch-size", type=count, default=32, help="images in a batch (default: 32)")


def measure_imagenet(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure images/s of deepnets and torchvision, which read, decode and crop photographs, and of decoding alone.

    The files are crops of 500 x 375 pixels of the two photographs that scikit-learn ships, unless --root names a tree.
    All candidates have the same number of workers; a turn is an epoch, timed from its first batch to its last.
    """
    from sklearn.datasets import load_sample_images
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    with tempfile.TemporaryDirectory() as place:
        root = arguments.root or _write_tree(Path(place), load_sample_images().images, arguments.images)
        options = ["crop=aspect_ratio", "lighting=0", "normalization=channel", "incomplete=true"]
        options += [f"classes={arguments.classes}", f"root={root}", f"workers={arguments.workers}"]
        dataset = dataset_of(compose(["dataset=imagenet", *(f"dataset.{option}" for option in options)]).config)
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

        epochs: dict[str, Callable[[], Iterable]] = {
            "deepnets": partial(batches.epoch, 0),
            "torchvision's recipe": partial(loaded, ImageFolder(str(root / "train"), recipe)),
            "decoding alone, torchvision.io": partial(loaded, _Decoded(splits.train, _by_torchvision)),
            "decoding alone, Pillow": partial(loaded, _Decoded(splits.train, _by_pillow)),
        }
        candidates = {name: partial(_rate, epoch, arguments.batch_size) for name, epoch in epochs.items()}
        values = in_turns(candidates, arguments.repeats, SETTLE_SECONDS)
    return [Comparison(f"photographs, {arguments.workers} workers", "images/s", values)]


def _endless(batches: TrainingBatches) -> Iterator:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def _rate(epoch: Callable[[], Iterable], batch_size: int) -> float:
    """Measure images/s of an epoch, without its first batch."""
    steps = iter(epoch())
    next(steps)
    started, done = time.perf_counter(), sum(1 for _ in steps)
    return done * batch_size / (time.perf_counter() - started)


class _Decoded(Dataset):
    """Decodes each image and drops it; the loader only gets the image's number."""

    def __init__(self, images: ImageFiles, decode: Callable[[str], Any]) -> None:
        self.images, self.decode = images, decode

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, image: int) -> int:
        self.decode(self.images.location(image))
        return image


def _by_torchvision(name: str) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.from_numpy(np.fromfile(name, np.uint8)), ImageReadMode.RGB)


def _by_pillow(name: str) -> Image.Image:
    with Image.open(name) as image:
        return image.convert("RGB")


def _write_tree(root: Path, photographs: list[np.ndarray], images: int) -> Path:
    """Write a tree of `images` random crops from the photographs; each photograph is a class. Returns `root`."""
    generator = np.random.default_rng(0)
    for split, many in (("train", images), ("val", 2)):
        for label, photograph in enumerate(photographs):
            place = root / split / str(label)
            place.mkdir(parents=True)
            for number in range(label, many, len(photographs)):
                margins = np.subtract(photograph.shape[:2], (HEIGHT, WIDTH))
                top, left = (int(generator.integers(1 + margin)) for margin in margins)
                crop = Image.fromarray(photograph[top : top + HEIGHT, left : left + WIDTH])
                crop.save(place / f"{number}.jpeg", quality=QUALITY)
    return root
