"""Batches of images that are decoded while the network trains; uint8 until they are on the device."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deepnets.data.crops import ViewName, jittered, lighting, views
from deepnets.data.decoding import Encoded
from deepnets.data.loading import Crops, Loading, Views, loaded
from deepnets.data.normalization import Normalization
from deepnets.distributed.world import ALONE, World
from deepnets.models.share import Share

TOP = 5  # ImageNet's second error: the label is not among the five classes of the highest scores


class StreamedTraining:
    """This process's share of shuffled batches of random crops, each image once an epoch.

    As of `TrainingBatches`, the order is a function of (seed, epoch), each image's crop and colours of (seed, epoch,
    image): the same for any number of processes and workers, and from any batch on. `lights` is the deviation of the
    draws of lighting noise (fb.resnet.torch: 0.1; 0 for none), `jitter` how far the factors of brightness, contrast and
    saturation lie from 1 (0.4).
    """

    def __init__(
        self,
        images: Encoded,
        normalization: Normalization,
        cropped: Callable[[Tensor], Tensor],
        loading: Loading,
        *,
        lights: float,
        jitter: float,
        batch_size: int,
        seed: int,
        world: World = ALONE,
    ) -> None:
        self.source, self.normalization, self.cropped, self.loading = images, normalization, cropped, loading
        self.lights, self.jitter, self.batch_size, self.seed, self.world = lights, jitter, batch_size, seed, world
        self.images = len(images)
        self.share = Share(world.rank)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a crop."""
        height, width, channels = self.normalization.mean.shape
        return channels, height, width

    def __len__(self) -> int:
        """Batches per epoch; the last may be short."""
        return ceil(self.images / self.batch_size)

    def images_in(self, batch: int) -> int:
        """Of that batch of an epoch, over all processes."""
        return min(self.batch_size, self.images - batch * self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """That epoch from batch `start` on: x (n, C, H, W) float32 with channels_last strides, y (n,) int64."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.images)
        whole_batches = [order[first : first + self.batch_size] for first in range(0, self.images, self.batch_size)]
        shards = [self.world.shards(len(whole)) for whole in whole_batches[start:]]
        own = [whole[parts[self.world.rank]] for whole, parts in zip(whole_batches[start:], shards, strict=True)]
        batches = loaded(Crops(self.source, self.cropped, (self.seed, epoch), self.loading), own)
        for (pixels, labels, lights, jitters), self.share.parts in zip(batches, shards, strict=True):
            if self.jitter:
                pixels = jittered(pixels.float(), 1 + self.jitter * jitters)
            x = self.normalization(pixels)
            if self.lights:
                x += (lighting(lights * self.lights) * 255)[:, None, None] * self.normalization.scale
            yield x.permute(0, 3, 1, 2), labels


class StreamedEvaluation:
    """This process's share of the images of a split, in order, as the view shows them; `top` asks for top-5 errors.

    All processes have as many batches; where the images do not go round, the last one of some is empty. `is_final`:
    only evaluated once, when the budget ends.
    """

    top = TOP

    def __init__(
        self,
        images: Encoded,
        normalization: Normalization,
        view: ViewName,
        size: int,
        loading: Loading,
        *,
        batch_size: int,
        world: World = ALONE,
        is_final: bool = False,
    ) -> None:
        self.source, self.normalization, self.loading, self.is_final = images, normalization, loading, is_final
        self.views, self.has_one_view = views(view, size), view in ("center", "center_320")
        # Images of several sizes cannot lie in one tensor, and ten crops are a batch of ten images.
        self.batch_size = {"multi_scale": 1, "ten_crop": ceil(batch_size / 10)}.get(view, batch_size)
        self.largest_share = ceil(len(images) / world.size)
        shard = world.shard(len(images))
        self.own = np.arange(shard.start, shard.stop)

    def __len__(self) -> int:
        return ceil(self.largest_share / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor | tuple[Tensor, ...], Tensor]]:
        """x (n, C, H, W) float32 with channels_last strides, y (n,) int64.

        Where an image has several views, x is a tuple of those of a size, (n * k, C, h, w), an image's k in a row.
        """
        starts = range(0, self.largest_share, self.batch_size)
        chunks = [self.own[first : first + self.batch_size] for first in starts]
        for pixels, labels in loaded(Views(self.source, self.views, self.loading), chunks):
            x = tuple(self._normalised(view) for view in pixels)
            yield (x[0] if self.has_one_view and x else x), labels

    def some(self, count: int) -> Tensor:
        """At most `count` images spread over the split, the same at every call: (n, C, H, W), normalised."""
        chosen = self.own[:: max(1, ceil(len(self.own) / count))]
        ((pixels, _),) = loaded(Views(self.source, self.views, replace(self.loading, workers=0)), [chosen])
        return self._normalised(pixels[0])

    def _normalised(self, pixels: Tensor) -> Tensor:
        return at_size(self.normalization, *pixels.shape[1:3])(pixels).permute(0, 3, 1, 2)


def mean_image(images: Encoded, size: int, loading: Loading) -> Tensor:
    """The mean (H, W, 3) float64 of their centre crops, on a scale of 0 to 255."""
    starts = range(0, len(images), 64)
    chunks = [np.arange(first, min(first + 64, len(images))) for first in starts]
    total, count = torch.zeros(size, size, 3, dtype=torch.float64, device=loading.device), 0
    for (pixels, *_), labels in loaded(Views(images, views("center", size), loading), chunks):
        total += pixels.sum(0, dtype=torch.float64)
        count += len(labels)
    return total / count


def at_size(normalization: Normalization, height: int, width: int) -> Normalization:
    """For images of another size: the mean image is scaled with them, by bilinear interpolation."""
    if normalization.mean.shape[:2] == (height, width):
        return normalization
    mean, scale = (
        F.interpolate(x.permute(2, 0, 1)[None], (height, width), mode="bilinear")[0].permute(1, 2, 0).contiguous()
        for x in (normalization.mean, normalization.scale)
    )
    return replace(normalization, mean=mean, scale=scale)


@dataclass(frozen=True)
class Streams:
    """The splits as `Dataset` has them, of images that are not read yet."""

    train: Encoded
    validation: Encoded | None
    test: Encoded
    normalization: Normalization
    size: int
    loading: Loading

    def evaluation_batches(
        self, images: Encoded, *, batch_size: int, world: World = ALONE, view: ViewName = "center"
    ) -> StreamedEvaluation:
        """`images`, some of a split, as that view shows them."""
        return StreamedEvaluation(
            images, self.normalization, view, self.size, self.loading, batch_size=batch_size, world=world
        )

    def contents(self) -> dict[str, Any]:
        """How many images each split has, and checksums of their labels and names; nothing is decoded."""
        there = {"train": self.train, "validation": self.validation, "test": self.test}
        splits = {name: images for name, images in there.items() if images is not None}
        labels, names = 0, 0
        for images in splits.values():
            labels = zlib.crc32(images.labels.numpy().data, labels)
            names = zlib.crc32(images.fingerprint, names)
        return {**{name: len(images) for name, images in splits.items()}, "labels": labels, "names": names}
