"""Batches of normalised images, made on the device that holds the data."""

from collections.abc import Iterator
from math import ceil

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deepnets.data.normalization import Normalization
from deepnets.data.source import Split
from deepnets.distributed.world import ALONE, World
from deepnets.models.share import Share


class TrainingBatches:
    """This process's share of shuffled batches, each image normalised, mirrored with p = 1/2, zero-padded and cut back.

    After the normalisation zero is the mean colour, so the border carries no signal (fb.resnet.torch,
    datasets/cifar10.lua). Order, mirroring and shifts are a function of (seed, epoch): drawn at once on the host,
    independent of batch size, device and number of processes. `share` says which part of the batch the last one is.
    """

    def __init__(
        self,
        split: Split,
        normalization: Normalization,
        *,
        pad: int,
        flip: bool,
        batch_size: int,
        seed: int,
        world: World = ALONE,
    ) -> None:
        self.split, self.normalization, self.world = split, normalization, world
        self.images = len(split)
        self.share = Share(world.rank)
        self.pad, self.flip, self.batch_size, self.seed = pad, flip, batch_size, seed

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        height, width, channels = self.split.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        """Batches per epoch; the last may be short."""
        return ceil(self.images / self.batch_size)

    def images_in(self, batch: int) -> int:
        """Of that batch of an epoch, over all processes."""
        return min(self.batch_size, self.images - batch * self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """That epoch from batch `start` on: x (n, C, H, W) float32 with channels_last strides, y (n,) int64."""
        draws = _moved(self._draws(epoch), self.split.labels.device)  # the epoch's only copy from the host
        whole_batches = draws.split(self.batch_size, dim=1)[start:]
        shards = [self.world.shards(whole.shape[1]) for whole in whole_batches]
        for whole, self.share.parts in zip(whole_batches, shards, strict=True):
            order, mirrored, top, left = whole[:, self.share.own]
            x = self.normalization(self.split.images.index_select(0, order))
            if self.pad or self.flip:
                x = cut(x, self.pad, mirrored, top, left)
            yield x.permute(0, 3, 1, 2), self.split.labels.index_select(0, order)

    def _draws(self, epoch: int) -> Tensor:
        """Which image, mirrored or not, top and left of the cut: (4, N) int64."""
        n = self.images
        generator = np.random.default_rng((self.seed, epoch))
        order, mirrored = generator.permutation(n), generator.integers(2, size=n) * self.flip
        return torch.from_numpy(np.stack((order, mirrored, *generator.integers(2 * self.pad + 1, size=(2, n)))))


class EvaluationBatches:
    """This process's share of the images of a split, in order, normalised and otherwise as they are.

    All processes have as many batches; where the images do not go round, the last one of some is empty.
    """

    top: int | None = None  # no error but the first
    is_final = False

    def __init__(self, split: Split, normalization: Normalization, *, batch_size: int, world: World = ALONE) -> None:
        self.normalization, self.batch_size = normalization, batch_size
        self.largest_share = ceil(len(split) / world.size)
        mine = world.shard(len(split))
        self.split = Split(split.images[mine], split.labels[mine])

    def __len__(self) -> int:
        return ceil(self.largest_share / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """x (n, C, H, W) float32 with channels_last strides, y (n,) int64."""
        for first in range(0, self.largest_share, self.batch_size):
            these = slice(first, first + self.batch_size)
            yield self.normalization(self.split.images[these]).permute(0, 3, 1, 2), self.split.labels[these]

    def some(self, count: int) -> Tensor:
        """At most `count` images spread over the split, the same at every call: (n, C, H, W), normalised."""
        images = self.split.images
        return self.normalization(images[:: ceil(len(images) / count)]).permute(0, 3, 1, 2)


def _moved(x: Tensor, device: torch.device) -> Tensor:
    """`x` of the host on `device`; pinned first where it is a GPU, or the host would wait for it."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def cut(x: Tensor, pad: int, mirrored: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Mirror x (n, H, W, C) where `mirrored` (n,) is 1, pad it by zeros, cut H x W out at row `top`, column `left`.

    One gather of pixels: the columns of a mirrored image are counted from the right.
    """
    n, height, width, channels = x.shape
    x = F.pad(x, (0, 0, pad, pad, pad, pad))
    rows, columns = x.shape[1:3]
    row = top[:, None] + torch.arange(height, device=x.device)
    column = left[:, None] + torch.arange(width, device=x.device)
    column = torch.where(mirrored[:, None] == 1, columns - 1 - column, column)
    image = torch.arange(n, device=x.device)[:, None, None]
    pixel = (image * rows + row[:, :, None]) * columns + column[:, None, :]
    return x.flatten(0, 2).index_select(0, pixel.flatten()).view(n, height, width, channels)
