"""Reads and decodes ImageNet, or another tree of photographs, while a network trains on it.

The photographs lie in class folders or shards, in train/ and val/, or in ImageNet's official archives.
"""

import io
import tarfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import scipy.io
import torch
from pydantic import Field
from torch import Tensor

from deepnets.data.augmentation import SCALES, Crop, ViewName, random_crop, view_shapes, views
from deepnets.data.class_folders import ImageFiles, images_in, list_images
from deepnets.data.dataset import hold_out
from deepnets.data.loading import (
    Decoder,
    Loading,
    StreamedEvaluation,
    StreamedTraining,
    Views,
    check_decoder,
    default_workers,
    loaded,
)
from deepnets.data.normalization import Normalization
from deepnets.data.shards import SPLITS, is_sharded, sharded
from deepnets.data.source import DataFiles, Source
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.system.settings import Factor, Natural, Size

CLASSES = 1000
PUBLISHED = (1_281_167, 50_000)  # images for training and validation
ARCHIVES = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
KIT = "ILSVRC2012_devkit_t12"
META = f"{KIT}/data/meta.mat"
# Per channel, on a scale of 0 to 1, over a random part of ImageNet (fb.resnet.torch, datasets/imagenet.lua).
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_IMAGES = 4096  # the mean image averages at most this many training images, evenly spread
TIMED_IMAGES = 32  # images that a plan reads to predict the time


@dataclass(frozen=True)
class Streams:
    """The photographs, not read yet, that a run trains, validates and tests on; used like `dataset.Splits`."""

    train: ImageFiles
    validation: ImageFiles | None
    test: ImageFiles
    normalization: Normalization
    size: int
    loading: Loading

    def evaluation_batches(
        self, images: ImageFiles, *, batch_size: int, world: World = ALONE, view: ViewName = "center"
    ) -> StreamedEvaluation:
        """Return batches for evaluation of `images`, a split or some of its images, seen through `view`."""
        return StreamedEvaluation(
            images, self.normalization, view, self.size, self.loading, batch_size=batch_size, world=world
        )

    def contents(self) -> dict[str, Any]:
        """Return how many images each split has, and checksums of their labels and names; decodes nothing."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        splits = {name: images for name, images in parts.items() if images is not None}
        labels, names = 0, 0
        for images in splits.values():
            labels = zlib.crc32(images.labels.numpy().data, labels)
            names = zlib.crc32(images.fingerprint, names)
        return {**{name: len(images) for name, images in splits.items()}, "labels": labels, "names": names}


class ImageNet:
    """The photographs under `root`: class folders in train/ and val/, shards of both, or ImageNet's official archives.

    Every `every_class`-th of the `classes` class folders is used. A run that uses all 1,000 needs as many images as
    published, unless `incomplete` is set. `size` is the side of a crop in training; `crop`, `jitter`, `flip` and
    `lighting` are the augmentation (see the module `augmentation`). Each epoch ends with a test on centre crops. A test
    on the views of `view` follows the last epoch, and its error is the result. `validation` training images are held
    out. `workers` processes read and decode, by default one per core, at most 16; with decoder=gpu they only read.
    """

    is_streamed = True
    pad = 0  # `launch.cost` and the benches ask every data set for its border

    def __init__(
        self,
        root: str,
        classes: Annotated[int, Field(ge=2, le=100_000)],
        every_class: Size,
        size: Annotated[int, Field(ge=32, le=4096)],
        crop: Crop,
        jitter: Factor,
        lighting: Factor,
        flip: bool,
        normalization: Literal["channel", "pixel_mean"],
        view: ViewName,
        validation: Natural,
        incomplete: bool,
        skip_unreadable: bool,
        decoder: Decoder,
        workers: Annotated[int, Field(ge=0, le=1024)] | None,
    ) -> None:
        if every_class > classes // 2:
            raise UserError(f"every_class={every_class}: at least two of the {classes} classes must be left")
        self.photographs = Photographs(root, classes, every_class, incomplete)
        self.size, self.view = size, view
        self.crop, self.jitter, self.flip, self.lighting = crop, jitter, flip, lighting
        self.normalization, self.validation = normalization, validation
        self.skip_unreadable, self.decoder = skip_unreadable, decoder
        self.workers = default_workers() if workers is None else workers
        self.shape = (3, size, size)
        self.classes = -(-classes // every_class)
        names = tuple(str(label) for label in range(self.classes))
        self.source = Source("imagenet", self.shape, names, self.photographs.find)

    @property
    def training_size(self) -> int:
        """The number of training images after the hold-out; raises `UserError` if `find` does or it is too large."""
        train = self.source.found.sizes[0]
        if self.validation >= train:
            raise UserError(f"validation={self.validation}: hold out 0 to {train - 1} of the {train} training images")
        return train - self.validation

    def load(self, device: torch.device) -> Streams:
        """Return the splits and the normalisation; a mean image is computed from at most `MEAN_IMAGES` images.

        Raises:
            UserError: there are no images, class folders are missing, the official archives are damaged or incomplete,
                a class is left without training images, or an image of the mean cannot be read.
        """
        if not self.photographs.splits:
            self.photographs.unpack()
            vars(self.source).pop("found", None)
        assert self.photographs.splits
        train, test = self.photographs.splits
        validation = None
        if self.validation:
            kept, held = hold_out(train.labels, self.validation, self.classes)
            train, validation = train.select(kept), train.select(held)
        loading = Loading(self.workers, device, self.skip_unreadable, self.decoder)
        return Streams(train, validation, test, self._normalization(train, loading), self.size, loading)

    @cached_property
    def reading_seconds(self) -> float:
        """The seconds per image that all workers of a process together need to read, decode and crop; 0 without files.

        One process is timed on a few images, and its time is divided by the number of workers. With decoder=gpu, one
        process reads and the GPU decodes.
        """
        if not self.photographs.splits:
            return 0.0
        train, device = self.photographs.splits[0], torch.device("cuda" if self.decoder == "gpu" else "cpu")
        workers = self.workers if self.decoder == "cpu" else 1
        chosen = train.select(torch.arange(0, len(train), -(-len(train) // TIMED_IMAGES)))
        loading = Loading(0, device, skip_unreadable=True, decoder=self.decoder)
        as_is = self._scaled(torch.zeros(3), torch.ones(3), loading)
        cropped = random_crop(self.crop, self.size, self.flip)
        batches = StreamedTraining(chosen, as_is, cropped, loading, lights=0, jitter=0, batch_size=8, seed=0)
        for _ in batches.epoch(0):  # not timed, because the first epoch also imports libraries
            pass
        started = time.perf_counter()
        for _ in batches.epoch(1):
            pass
        return (time.perf_counter() - started) / len(chosen) / max(1, workers)

    @property
    def final_shapes(self) -> tuple[tuple[int, int, int], ...]:
        return () if self.view == "center" else tuple(view_shapes(self.view, self.size))

    @property
    def final_passes(self) -> float:
        """The cost of the test on `view`, in tests on centre crops: area of an image's views / area of its crop.

        It is 0 for `center`, because no extra test follows.
        """
        seen = {"center": 0.0, "center_320": (320 / 224) ** 2, "ten_crop": 10.0}
        whole = 4 / 3 * 2 * sum((scale / 224) ** 2 for scale in SCALES)  # usual photographs are 4:3; each is mirrored
        return seen.get(self.view, whole)

    def training_batches(
        self, splits: Streams, *, batch_size: int, seed: int, world: World = ALONE
    ) -> StreamedTraining:
        """Return batches of random crops of the training images; raises `UserError` as `check_decoder` does."""
        check_decoder(self.decoder, splits.loading.device)
        return StreamedTraining(
            splits.train,
            splits.normalization,
            random_crop(self.crop, self.size, self.flip),
            splits.loading,
            lights=self.lighting,
            jitter=self.jitter,
            batch_size=batch_size,
            seed=seed,
            world=world,
        )

    def batches_to_evaluate(
        self, splits: Streams, *, batch_size: int, world: World = ALONE
    ) -> dict[str, StreamedEvaluation]:
        """Return the batches to evaluate: centre crops of each split after each epoch, `view` after the last one."""
        parts = {"validation": splits.validation, "test": splits.test}
        batches = {
            name: splits.evaluation_batches(images, batch_size=batch_size, world=world)
            for name, images in parts.items()
            if images is not None
        }
        if self.view != "center":
            final = splits.evaluation_batches(splits.test, batch_size=batch_size, world=world, view=self.view)
            final.is_final = True
            batches[self.view] = final
        return batches

    def _normalization(self, train: ImageFiles, loading: Loading) -> Normalization:
        if self.normalization == "pixel_mean":
            chosen = train.select(torch.arange(0, len(train), -(-len(train) // MEAN_IMAGES)))
            mean, deviation = mean_image(chosen, self.size, loading), torch.ones(3)
        else:
            mean, deviation = torch.tensor(MEAN) * 255, torch.tensor(DEVIATION)
        return self._scaled(mean, deviation, loading)

    def _scaled(self, mean: Tensor, deviation: Tensor, loading: Loading) -> Normalization:
        """Make a normalisation; `mean` is on a scale of 0 to 255, `deviation` on a scale of 0 to 1."""
        whole = self.size, self.size, 3
        mean, scale = (x.to(loading.device, torch.float32).expand(whole) for x in (mean, 1 / (255 * deviation)))
        return Normalization(mean.contiguous(), scale.contiguous())


def mean_image(images: ImageFiles, size: int, loading: Loading) -> Tensor:
    """Compute the mean (H, W, 3) float64 of the centre crops of `images`, on a scale of 0 to 255."""
    starts = range(0, len(images), 64)
    chunks = [np.arange(first, min(first + 64, len(images))) for first in starts]
    total, count = torch.zeros(size, size, 3, dtype=torch.float64, device=loading.device), 0
    for (pixels, *_), labels in loaded(Views(images, views("center", size), loading), chunks):
        total += pixels.sum(0, dtype=torch.float64)
        count += len(labels)
    return total / count


class Photographs:
    """Finds the photographs of a data set under `root`, in every `every`-th of `classes` class folders."""

    def __init__(self, root: str, classes: int, every: int, incomplete: bool) -> None:
        self.root, self.folder = root, Path(root).expanduser()
        self.classes, self.every, self.incomplete = classes, every, incomplete

    def find(self) -> DataFiles:
        """Count the images; without train/ and val/, give the published numbers, and in `missing` what is missing.

        Raises:
            UserError: ImageNet is incomplete, train/ and val/ do not match, or another data set has no images.
        """
        if self.splits:
            sizes = len(self.splits[0]), len(self.splits[1])
            whole = self.classes == CLASSES and self.every == 1
            if whole and sizes != PUBLISHED and not self.incomplete:
                raise UserError(
                    f"{self.root} has {sizes[0]:,} training and {sizes[1]:,} validation images, ImageNet has "
                    f"{PUBLISHED[0]:,} and {PUBLISHED[1]:,}: complete it, or train on what is there with "
                    "dataset.incomplete=true"
                )
            return DataFiles(sizes, _unread)
        expected = PUBLISHED[0] // self.every, PUBLISHED[1] // self.every
        if all((self.folder / name).is_file() for name in ARCHIVES):
            return DataFiles(expected, _unread)
        problem = (
            f"no images in {self.root}: it needs train/<class>/ and val/<class>/ with image files, shards of both, or "
            f"ImageNet's official {', '.join(ARCHIVES)}; set dataset.root=DIR, in an analysis --root DIR"
        )
        if self.classes != CLASSES:
            raise UserError(problem)
        return DataFiles(expected, _unread, problem)

    @cached_property
    def splits(self) -> tuple[ImageFiles, ImageFiles] | None:
        """The images of train/ and val/, or None if neither folder is there."""
        present = [split for split in SPLITS if (self.folder / split).is_dir()]
        if not present:
            return None
        if len(present) == 1:
            (split,) = set(SPLITS) - set(present)
            raise UserError(f"{self.root} has {present[0]}/ but no {split}/: it is half copied; complete it")
        train, test = (self._split(self.folder / split) for split in SPLITS)
        if differing := sorted(set(train.classes) ^ set(test.classes)):
            raise UserError(f"{self.root}: class folders differ between train/ and val/: {', '.join(differing[:5])}")
        return train, test

    def _split(self, folder: Path) -> ImageFiles:
        return (sharded if is_sharded(folder) else list_images)(folder, self.classes, self.every)

    def unpack(self) -> None:
        """Unpack the official archives where they lie; raises `UserError` if they are damaged or absent."""
        if missing := self.find().missing:
            raise UserError(missing)
        _unpack(self.folder)
        vars(self).pop("splits")
        if self.find().missing or not self.splits:
            raise UserError(f"ImageNet's archives in {self.root} hold no train/ and val/")


def numbers_of(root: Path, classes: Sequence[str]) -> list[int]:
    """Return the numbers that ImageNet's test server uses for `classes`, which are WordNet IDs.

    They are the ILSVRC2012_IDs in the development kit, which lies in `root`, packed or not.

    Raises:
        UserError: `root` has no such kit, or the kit lacks a class.
    """
    try:
        if (file := root / META).is_file():
            content = file.read_bytes()
        else:
            with tarfile.open(root / f"{KIT}.tar.gz") as packed:
                member = packed.extractfile(META)
                content = member.read() if member else b""
        synsets = scipy.io.loadmat(io.BytesIO(content), squeeze_me=True)["synsets"]
        pairs = zip(synsets["WNID"], synsets["ILSVRC2012_ID"], strict=True)
        numbers = {str(name): int(number) for name, number in pairs}
    except Exception as error:  # scipy may raise anything for a damaged file
        raise UserError(
            f"{root}: needs {KIT}.tar.gz, which holds the server's numbers of the classes; put it there ({error})"
        ) from error
    if unknown := [name for name in classes if name not in numbers]:
        raise UserError(f"{root}: {KIT} knows no class {unknown[0]}; the server knows only ImageNet's classes")
    return [numbers[name] for name in classes]


def unlabelled(folder: Path) -> ImageFiles:
    """List the images in `folder` itself, sorted by name; their labels are unknown and set to 0."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one that holds images")
    names = images_in(folder)
    return ImageFiles(folder, ("",), names, torch.zeros(len(names), dtype=torch.int64))


def _unpack(folder: Path) -> None:
    """Unpack the `ARCHIVES` in `folder` to train/ and val/ beside them; raises `UserError` if they are damaged."""
    from torchvision.datasets import ImageNet

    try:
        for split in ("train", "val"):
            ImageNet(str(folder), split)
    except (OSError, RuntimeError) as error:
        raise UserError(f"ImageNet's archives in {folder} cannot be unpacked: {error}") from error


def _unread() -> Any:
    raise NotImplementedError("images of this size are streamed, never read into memory")
