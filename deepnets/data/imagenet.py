"""ImageNet, and other trees of photographs: read and decoded while a network trains on them."""

import time
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from deepnets.data.crops import SCALES, Crop, ViewName, augmentation, view_shapes
from deepnets.data.decoding import Decoder, Encoded, check_decoder
from deepnets.data.holdout import hold_out
from deepnets.data.loading import Loading, default_workers
from deepnets.data.normalization import Normalization
from deepnets.data.photographs import Photographs
from deepnets.data.source import Source
from deepnets.data.streamed import StreamedEvaluation, StreamedTraining, Streams, mean_image
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.system.ranges import Factor, Natural, Size

# Of each channel on a scale of 0 to 1, over a random part of ImageNet (fb.resnet.torch, datasets/imagenet.lua).
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_IMAGES = 4096  # of which the mean image is, evenly spread over the training images
TIMED_IMAGES = 32  # for a plan


class ImageNet:
    """The photographs under `root`: class folders in train/ and val/, shards of both, or ImageNet's official archives.

    `classes` is the number of class folders, of which every `every_class`-th is used; of a thousand the published
    numbers of images are expected, unless `incomplete` allows others. `size` is the side of a crop in training; `crop`,
    `jitter`, `flip` and `lighting` are the augmentation (see `crops`). Each epoch is tested on centre crops, the last
    one also as `view` shows the images, whose error is the result. `validation` training images are held out. `workers`
    processes read and decode, by default as many as there are cores; with decoder=gpu they only read.
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
        """Seconds that each device's workers take to read, decode and crop an image, measured on a few; 0 of none.

        With decoder=gpu those that reading here and decoding there take.
        """
        if not self.photographs.splits:
            return 0.0
        train, device = self.photographs.splits[0], torch.device("cuda" if self.decoder == "gpu" else "cpu")
        workers = self.workers if self.decoder == "cpu" else 1
        chosen = train.select(torch.arange(0, len(train), -(-len(train) // TIMED_IMAGES)))
        here = Loading(0, device, skip_unreadable=True, decoder=self.decoder)
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
    def final_shapes(self) -> tuple[tuple[int, int, int], ...]:
        return () if self.view == "center" else tuple(view_shapes(self.view, self.size))

    @property
    def final_passes(self) -> float:
        """By the area of what is seen, in centre crops."""
        seen = {"center": 0.0, "center_320": (320 / 224) ** 2, "ten_crop": 10.0}
        whole = 4 / 3 * 2 * sum((scale / 224) ** 2 for scale in SCALES)  # of usual photographs, and mirrored
        return seen.get(self.view, whole)

    def training_batches(
        self, splits: Streams, *, batch_size: int, seed: int, world: World = ALONE
    ) -> StreamedTraining:
        """Random crops of the training images; a `UserError` where what should decode them is not there."""
        check_decoder(self.decoder, splits.loading.device)
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
