"""ImageNet, and other trees of photographs: read and decoded while a network trains on them."""

import os
import time
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from deepnets.data.archives import IMAGENET_ARCHIVES, unpack_imagenet
from deepnets.data.crops import SCALES, Crop, ViewName, augmentation
from deepnets.data.decoding import Encoded, Loading
from deepnets.data.holdout import hold_out
from deepnets.data.image_files import listed
from deepnets.data.normalization import Normalization
from deepnets.data.shards import SPLITS, is_sharded, sharded
from deepnets.data.source import DataFiles, Source
from deepnets.data.streamed import StreamedEvaluation, StreamedTraining, Streams, mean_image
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.system.ranges import Factor, Natural, Size

CLASSES = 1000
PUBLISHED = (1_281_167, 50_000)  # images for training and validation
# Of each channel on a scale of 0 to 1, over a random part of ImageNet (fb.resnet.torch, datasets/imagenet.lua).
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_IMAGES = 4096  # of which the mean image is, evenly spread over the training images
MOST_WORKERS = 16
TIMED_IMAGES = 32  # for a plan


class ImageNet:
    """The photographs under `root`: class folders in train/ and val/, shards of both, or ImageNet's official archives.

    `classes` is the number of class folders, of which every `every_class`-th is used; of a thousand the published
    numbers of images are expected, unless `incomplete` allows others. `size` is the side of a crop in training; `crop`,
    `jitter`, `flip` and `lighting` are the augmentation (see `crops`). Each epoch is tested on centre crops, the last
    one also as `view` shows the images, whose error is the result. `validation` training images are held out. `workers`
    processes read and decode, by default as many as there are cores.
    """

    is_streamed = True
    pad = 0  # as those that ask for it add a border

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
        workers: Annotated[int, Field(ge=0, le=1024)] | None,
    ) -> None:
        if every_class > classes // 2:
            raise UserError(f"every_class={every_class}: at least two of the {classes} classes must be left")
        self.root, self.folder = root, Path(root).expanduser()
        self.every_class, self.size, self.view = every_class, size, view
        self.crop, self.jitter, self.flip, self.lighting = crop, jitter, flip, lighting
        self.normalization, self.validation = normalization, validation
        self.incomplete, self.skip_unreadable, self.workers = incomplete, skip_unreadable, workers
        self.folders = classes
        self.shape = (3, size, size)
        self.classes = -(-classes // every_class)
        names = tuple(str(label) for label in range(self.classes))
        self.source = Source("imagenet", self.shape, names, self._find)

    @property
    def training_size(self) -> int:
        """Training images after the hold-out. Lists the files; a `UserError` when they are unfit, or nowhere."""
        train = self.source.found.sizes[0]
        if self.validation >= train:
            raise UserError(f"validation={self.validation}: hold out 0 to {train - 1} of the {train} training images")
        return train - self.validation

    def load(self, device: torch.device) -> Streams:
        """The splits and the normalisation, which of a mean image reads `MEAN_IMAGES` images.

        Raises:
            UserError: there are no images, or not those expected.
        """
        if not self._images:
            self._unpack()
        assert self._images
        train, test = self._images
        validation = None
        if self.validation:
            kept, held = hold_out(train.labels, self.validation, self.classes)
            train, validation = train.select(kept), train.select(held)
        loading = Loading(self._workers(), device, self.skip_unreadable)
        return Streams(train, validation, test, self._normalization(train, loading), self.size, loading)

    @cached_property
    def reading_seconds(self) -> float:
        """Seconds that each device's workers take to read, decode and crop an image, measured on a few; 0 of none."""
        if not self._images:
            return 0.0
        train, workers = self._images[0], self._workers()
        chosen = train.select(torch.arange(0, len(train), -(-len(train) // TIMED_IMAGES)))
        here = Loading(0, torch.device("cpu"), skip_unreadable=True)
        as_is = self._scaled(torch.zeros(3), torch.ones(3), here)
        cropped = augmentation(self.crop, self.size, self.flip)
        batches = StreamedTraining(chosen, as_is, cropped, here, lights=0, jitter=0, batch_size=8, seed=0)
        for _ in batches.epoch(0):  # the first images import what they need
            pass
        started = time.perf_counter()
        for _ in batches.epoch(1):
            pass
        return (time.perf_counter() - started) / len(chosen) / max(1, workers)

    @property
    def final_passes(self) -> float:
        """By the area of what is seen, in centre crops."""
        seen = {"center": 0.0, "center_320": (320 / 224) ** 2, "ten_crop": 10.0}
        whole = 4 / 3 * 2 * sum((scale / 224) ** 2 for scale in SCALES)  # of usual photographs, and mirrored
        return seen.get(self.view, whole)

    def training_batches(
        self, splits: Streams, *, batch_size: int, seed: int, world: World = ALONE
    ) -> StreamedTraining:
        """Random crops of the training images."""
        return StreamedTraining(
            splits.train,
            splits.normalization,
            augmentation(self.crop, self.size, self.flip),
            splits.loading,
            lights=self.lighting,
            jitter=self.jitter,
            batch_size=batch_size,
            seed=seed,
            world=world,
        )

    def evaluated(self, splits: Streams, *, batch_size: int, world: World = ALONE) -> dict[str, StreamedEvaluation]:
        """What is evaluated by its name: each epoch centre crops, in the end the view of the result."""
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

    def _find(self) -> DataFiles:
        """A `UserError` for images that are not those expected, or for none where no ImageNet is meant."""
        if self._images:
            sizes = len(self._images[0]), len(self._images[1])
            whole = self.folders == CLASSES and self.every_class == 1
            if whole and sizes != PUBLISHED and not self.incomplete:
                raise UserError(
                    f"{self.root} has {sizes[0]:,} training and {sizes[1]:,} validation images, ImageNet has "
                    f"{PUBLISHED[0]:,} and {PUBLISHED[1]:,}: complete it, or train on what is there with "
                    "dataset.incomplete=true"
                )
            return DataFiles(sizes, self._unread)
        expected = PUBLISHED[0] // self.every_class, PUBLISHED[1] // self.every_class
        if all((self.folder / name).is_file() for name in IMAGENET_ARCHIVES):
            return DataFiles(expected, self._unread)
        problem = (
            f"no images in {self.root}: it needs train/<class>/ and val/<class>/ with image files, shards of both, or "
            f"ImageNet's official {', '.join(IMAGENET_ARCHIVES)}; set dataset.root=DIR"
        )
        if self.folders != CLASSES:
            raise UserError(problem)
        return DataFiles(expected, self._unread, problem)

    @cached_property
    def _images(self) -> tuple[Encoded, Encoded] | None:
        """(train, val), where there is any of the two folders."""
        there = [split for split in SPLITS if (self.folder / split).is_dir()]
        if not there:
            return None
        if len(there) == 1:
            (split,) = set(SPLITS) - set(there)
            raise UserError(f"{self.root} has {there[0]}/ but no {split}/: it is half copied; complete it")
        train, test = (self._split(self.folder / split) for split in SPLITS)
        if odd := sorted(set(train.classes) ^ set(test.classes)):
            raise UserError(f"{self.root}: class folders differ between train/ and val/: {', '.join(odd[:5])}")
        return train, test

    def _split(self, folder: Path) -> Encoded:
        return (sharded if is_sharded(folder) else listed)(folder, self.folders, self.every_class)

    def _unpack(self) -> None:
        """The official archives beside themselves; a `UserError` where they are damaged or absent."""
        if missing := self.source.found.missing:
            raise UserError(missing)
        unpack_imagenet(self.folder)
        vars(self).pop("_images")
        vars(self.source).pop("found")
        if self.source.found.missing or not self._images:
            raise UserError(f"ImageNet's archives in {self.root} hold no train/ and val/")

    def _unread(self) -> Any:
        raise NotImplementedError("images of this size are streamed, never read into memory")

    def _workers(self) -> int:
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(MOST_WORKERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))

    def _normalization(self, train: Encoded, loading: Loading) -> Normalization:
        if self.normalization == "pixel_mean":
            chosen = train.select(torch.arange(0, len(train), -(-len(train) // MEAN_IMAGES)))
            mean, deviation = mean_image(chosen, self.size, loading), torch.ones(3)
        else:
            mean, deviation = torch.tensor(MEAN) * 255, torch.tensor(DEVIATION)
        return self._scaled(mean, deviation, loading)

    def _scaled(self, mean: Tensor, deviation: Tensor, loading: Loading) -> Normalization:
        """On scales of 0 to 255 and of 0 to 1."""
        whole = self.size, self.size, 3
        mean, scale = (x.to(loading.device, torch.float32).expand(whole) for x in (mean, 1 / (255 * deviation)))
        return Normalization(mean.contiguous(), scale.contiguous())
