"""One data set as a run sees it: its source, hold-out, normalisation and augmentation."""

import hashlib
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepnets.data.augmentation import Operation
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.normalization import KINDS, Normalization, fit
from deepnets.data.source import Source, Split
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError, brief
from deepnets.system.settings import Count, Name, Natural

CHECKED_IMAGES = 1000  # the checksum `images` covers at most this many images of each split, evenly spread


@dataclass(frozen=True)
class Splits:
    """The images that a run trains, validates and tests on, on one device; without a hold-out `validation` is None."""

    train: Split
    validation: Split | None
    test: Split
    normalization: Normalization

    def evaluation_batches(self, split: Split, *, batch_size: int, world: World = ALONE) -> EvaluationBatches:
        """Return batches for evaluation of a split, or of some of its images."""
        return EvaluationBatches(split, self.normalization, batch_size=batch_size, world=world)

    def contents(self) -> dict[str, Any]:
        """Return the number of images in each split, and checksums that depend on the images' order.

        `content` covers all images and labels. `labels` covers all labels, and `images` some of the images: older
        versions wrote only these two.
        """
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        splits = {name: split for name, split in parts.items() if split is not None}
        labels, images, content = 0, 0, hashlib.sha256()
        for split in splits.values():
            pixels, numbers = split.images.cpu().contiguous().numpy(), split.labels.cpu().contiguous().numpy()
            labels = zlib.crc32(numbers.data, labels)
            images = zlib.crc32(np.ascontiguousarray(pixels[:: math.ceil(len(split) / CHECKED_IMAGES)]).data, images)
            content.update(pixels.data)
            content.update(numbers.data)
        sizes = {name: len(split) for name, split in splits.items()}
        return {**sizes, "labels": labels, "images": images, "content": content.hexdigest()[:16]}


class Dataset:
    """The images under `root`, their augmentation, and a hold-out of `validation` training images.

    Squares of `reduce` x `reduce` pixels are averaged to one; then training images are shifted by up to `pad` pixels
    and mirrored with `flip`, and the operations of `augmentation` change their batches. Only `training_size` and `load`
    need the files of a built-in data set, so a network can be built on a machine without them; an image folder is
    listed at once. A known data set must have as many images as published, unless `incomplete` is set.
    """

    is_streamed = False
    reading_seconds = 0.0  # seconds to read an image while a network trains: none, as all images are in memory
    final_shapes: tuple[tuple[int, int, int], ...] = ()  # (C, H, W) of the images in an extra last test
    final_passes = 0.0  # extra passes over the test set after the last epoch

    def __init__(
        self,
        source: Callable[[Path], Source],
        root: Name,
        validation: Natural,
        normalization: str,
        pad: Natural,
        flip: bool,
        reduce: Count = 1,  # the last three are optional, since users' own files need not name them
        incomplete: bool = False,
        augmentation: list[Any] | tuple[Any, ...] = (),
    ) -> None:
        if normalization not in KINDS:
            raise UserError(f"normalization={normalization}: choose one of {', '.join(KINDS)}")
        folder = Path(root).expanduser()
        try:
            if folder.exists() and not folder.is_dir():
                raise UserError(f"dataset.root={root} is a file: name the folder that holds the data")
        except OSError as error:  # the name is too long, or a folder on its path may not be searched
            raise UserError(f"dataset.root={root}: {error.strerror}") from error
        self.source, self.root = source(folder), root
        _, *sides = self.source.shape
        if reduce < 1 or any(side % reduce for side in sides):
            raise UserError(
                f"reduce={reduce}: must be a whole number of pixels that divides both sides of the images of "
                f"{self.source.name} ({' x '.join(map(str, sides))}), or 1 to use them as they are"
            )
        self.validation, self.normalization, self.pad, self.flip = validation, normalization, pad, flip
        self.reduce, self.incomplete = reduce, incomplete
        for place, operation in enumerate(augmentation):
            if not (callable(operation) and hasattr(operation, "draw")):
                raise UserError(
                    f"augmentation[{place}]: got {brief(operation)}; must be an operation, with a _target_ such as "
                    "deepnets.data.augmentation.Cutout"
                )
        self.augmentation: tuple[Operation, ...] = tuple(augmentation)
        if pad > min(self.shape[1:]):
            raise UserError(f"pad={pad}: larger than the images of {self.shape[1]} x {self.shape[2]} pixels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the reduced images."""
        channels, height, width = self.source.shape
        return channels, height // self.reduce, width // self.reduce

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.source.classes)

    @property
    def training_size(self) -> int:
        """The number of training images after the hold-out; if a published set is missing, by its published size.

        Raises:
            UserError: files are unfit, images lack, the hold-out is too large, or memory is too small for the images.
        """
        train, test = self.source.found.sizes
        self._refuse_incomplete((train, test))
        if self.validation >= train:
            raise UserError(f"validation={self.validation}: hold out 0 to {train - 1} of the {train} training images")
        size, memory = (train + test) * math.prod(self.source.shape), memory_size()
        if size > memory:
            raise UserError(
                f"{self.source.name} takes {size / 2**30:.1f} GiB as one tensor, this machine has "
                f"{memory / 2**30:.1f}: use fewer or smaller images"
            )
        return train - self.validation

    def load(self, device: torch.device) -> Splits:
        """Read all splits to `device`, and fit the normalisation to the training images that are not held out.

        Raises:
            UserError: the images cannot be read, are unfit or incomplete, leave a class without training images after
                the hold-out, or do not fit into the memory of the GPU.
        """
        splits = self.source.found.read()
        self._refuse_incomplete((len(splits[0]), len(splits[1])))  # the contents of an archive are known only now
        for split in splits:
            self._refuse_unfit(split)
        # Not cached: reading a cache of reduced images would hardly be faster.
        train, test = (split.reduced(self.reduce) for split in splits)
        if device.type == "cuda" and (size := train.images.nbytes + test.images.nbytes) > (
            free := torch.cuda.mem_get_info(device)[0]
        ):
            raise UserError(
                f"{self.source.name} takes {size / 2**30:.1f} GiB, {torch.cuda.get_device_name(device)} has "
                f"{free / 2**30:.1f} free: use fewer or smaller images"
            )
        validation = None
        if self.validation:
            kept, held = hold_out(train.labels, self.validation, self.classes)
            train, validation = train.select(kept), train.select(held).to(device)
        train = train.to(device)
        return Splits(train, validation, test.to(device), fit(self.normalization, train.images))

    def training_batches(self, splits: Splits, *, batch_size: int, seed: int, world: World = ALONE) -> TrainingBatches:
        """Return the batches of augmented training images."""
        return TrainingBatches(
            splits.train,
            splits.normalization,
            pad=self.pad,
            flip=self.flip,
            batch_size=batch_size,
            seed=seed,
            world=world,
            operations=self.augmentation,
            classes=self.classes,
        )

    def batches_to_evaluate(
        self, splits: Splits, *, batch_size: int, world: World = ALONE
    ) -> dict[str, EvaluationBatches]:
        """Return the batches that will be evaluated after each epoch, by the name of their split."""
        parts = {"validation": splits.validation, "test": splits.test}
        return {
            name: splits.evaluation_batches(split, batch_size=batch_size, world=world)
            for name, split in parts.items()
            if split is not None
        }

    def _refuse_incomplete(self, sizes: tuple[int, int]) -> None:
        """Raise `UserError` if a known data set has other (train, test) numbers of images than published."""
        expected = self.source.published
        if expected in (None, sizes) or self.incomplete:
            return
        raise UserError(
            f"{self.source.name} in {self.root} has {sizes[0]:,} training and {sizes[1]:,} test images, but "
            f"{expected[0]:,} and {expected[1]:,} are published: complete it, or train on what is there with "
            "dataset.incomplete=true"
        )

    def _refuse_unfit(self, split: Split) -> None:
        """Raise `UserError` if images or labels contradict the source, e.g. if they come from another set's cache."""
        if (types := (split.images.dtype, split.labels.dtype)) != (torch.uint8, torch.int64):
            images, numbers = (str(each).removeprefix("torch.") for each in types)
            raise UserError(
                f"{self.source.name}: its images are {images} and its labels {numbers}; the source must return uint8 "
                "and int64"
            )
        channels, height, width = self.source.shape
        shape, labels = tuple(split.images.shape[1:]), split.labels
        if len(labels) and (shape != (height, width, channels) or not 0 <= labels.min() <= labels.max() < self.classes):
            raise UserError(
                f"{self.source.name} in {self.root} has images of shape {shape} and labels {labels.min()} to "
                f"{labels.max()}; they must be {(height, width, channels)} and 0 to {self.classes - 1}: repair it, "
                "or delete its deepnets-*.npz"
            )


def hold_out(labels: Tensor, count: int, classes: int) -> tuple[Tensor, Tensor]:
    """Hold out `count` images, from each class in proportion to its size; `labels` are (N,).

    Return the indices of the images for (training, validation), ascending. The numbers of images per class are rounded
    by the largest remainder. The draw is always the same, so that all runs of a table hold out the same images.
    Raises `UserError` if a class would lose all its training images.
    """
    class_of_image = labels.cpu().numpy()
    sizes = np.bincount(class_of_image, minlength=classes)
    shares, remainders = np.divmod(sizes * count, len(labels))
    shares[np.argsort(-remainders, kind="stable")[: count - shares.sum()]] += 1
    if (lost := np.flatnonzero(shares >= sizes)).size:
        raise UserError(
            f"validation={count} of {len(labels)} images would leave none to train on in class {lost[0]} "
            f"({sizes[lost[0]]} images): hold out fewer"
        )
    generator = np.random.default_rng(0)
    held = np.sort(
        np.concatenate([generator.permutation(np.flatnonzero(class_of_image == c))[:n] for c, n in enumerate(shares)])
    )
    return torch.from_numpy(np.setdiff1d(np.arange(len(labels)), held)), torch.from_numpy(held)


def memory_size() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
