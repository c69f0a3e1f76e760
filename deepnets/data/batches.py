"""Makes batches of normalised images from a data set in the device's memory, and divides them among processes.

`loading` makes the batches of photographs, which are decoded while the network trains.
"""

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from deepnets.data.augmentation import Operation, pad_and_crop
from deepnets.data.normalization import Normalization
from deepnets.data.source import Split
from deepnets.distributed.world import ALONE, World
from deepnets.models.parallel import Share


class ShuffledBatches:
    """The base class of training batches: an epoch has `images` images; its last batch may be shorter.

    `share` says which part of the current batch this process has.
    """

    def __init__(self, images: int, *, batch_size: int, seed: int, world: World) -> None:
        self.images, self.batch_size, self.seed, self.world = images, batch_size, seed, world
        self.share = Share(world.rank)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return ceil(self.images / self.batch_size)

    def images_in(self, batch: int) -> int:
        """Return the number of images in batch number `batch` of an epoch, over all processes."""
        return min(self.batch_size, self.images - batch * self.batch_size)


class OrderedBatches:
    """The base class of evaluation batches: this process's share of `images` images, in order.

    All processes have the same number of batches, so a process's last batch may be empty. If `top` is a number, the
    top-`top` error is computed too. If `is_final`, the batches are evaluated only after the last epoch.
    """

    top: int | None = None
    is_final = False

    def __init__(self, images: int, *, batch_size: int, world: World) -> None:
        self.batch_size, self.own = batch_size, world.shard(images)
        self.largest_share = ceil(images / world.size)

    def __len__(self) -> int:
        return ceil(self.largest_share / self.batch_size)

    def slices(self) -> list[slice]:
        """Return one slice for each batch, which selects the batch from this process's share."""
        return [slice(first, first + self.batch_size) for first in range(0, self.largest_share, self.batch_size)]


class TrainingBatches(ShuffledBatches):
    """This process's share of shuffled batches, each image normalised, mirrored with p = 1/2, zero-padded and cropped.

    Padding follows normalisation: if this subtracts a mean, zero is the mean colour, and the border carries no signal
    (fb.resnet.torch, datasets/cifar10.lua). Order, mirroring and shifts depend only on (seed, epoch), not on batch
    size, device or number of processes: all are drawn together on the host. Then `operations` change whole batches,
    with draws that depend only on (seed, epoch, place in the list), and labels become probabilities of `classes`
    classes.
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
        operations: Sequence[Operation] = (),
        classes: int = 1,
    ) -> None:
        super().__init__(len(split), batch_size=batch_size, seed=seed, world=world)
        self.split, self.normalization, self.pad, self.flip = split, normalization, pad, flip
        self.operations, self.classes = operations, classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        height, width, channels = self.split.images.shape[1:]
        return channels, height, width

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from `start` on: x (n, C, H, W) float32 with channels_last strides, and y.

        y is (n,) int64 or, with operations, (n, classes) float32.
        """
        # This is the only copy from the host in an epoch, apart from the draws of operations.
        draws = _moved(self._draws(epoch), self.split.labels.device)
        whole_batches = draws.split(self.batch_size, dim=1)[start:]
        shards = [self.world.shards(whole.shape[1]) for whole in whole_batches]
        changed = self._changed(epoch, whole_batches, start) if self.operations else None
        for whole, parts in zip(whole_batches, shards, strict=True):
            self.share.parts = parts
            if changed:
                x, y = next(changed)
                yield x[self.share.own], y[self.share.own]
            else:
                yield self._batch(whole[:, self.share.own])

    def _batch(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images that the columns of `draws` (4, n) choose, mirrored and shifted, and their labels."""
        order, mirrored, top, left = draws
        x = self.normalization(self.split.images.index_select(0, order))
        if self.pad or self.flip:
            x = pad_and_crop(x, self.pad, mirrored, top, left)
        return x.permute(0, 3, 1, 2), self.split.labels.index_select(0, order)

    def _changed(self, epoch: int, whole_batches: Sequence[Tensor], start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield whole batches after all operations have changed them."""
        device = self.split.labels.device
        drawn = []
        for place, operation in enumerate(self.operations, 1):  # not from 0: numpy seeds (s, e, 0) and (s, e) alike
            rows = operation.draw(np.random.default_rng((self.seed, epoch, place)), self.images)
            drawn.append(_moved(torch.from_numpy(rows), device).split(self.batch_size)[start:])
        one_hot = torch.eye(self.classes, device=device)
        for whole, *of_operations in zip(whole_batches, *drawn, strict=True):
            x, labels = self._batch(whole)
            targets = one_hot.index_select(0, labels)
            for operation, rows in zip(self.operations, of_operations, strict=True):
                x, targets = operation(x, targets, rows)
            yield x.contiguous(memory_format=torch.channels_last), targets

    def _draws(self, epoch: int) -> Tensor:
        """Draw the order of the images, whether each is mirrored, and its crop's top and left: (4, N) int64."""
        n = self.images
        generator = np.random.default_rng((self.seed, epoch))
        order, mirrored = generator.permutation(n), generator.integers(2, size=n) * self.flip
        return torch.from_numpy(np.stack((order, mirrored, *generator.integers(2 * self.pad + 1, size=(2, n)))))


class EvaluationBatches(OrderedBatches):
    """This process's share of the images of a split, in order, normalised and otherwise unchanged."""

    def __init__(self, split: Split, normalization: Normalization, *, batch_size: int, world: World = ALONE) -> None:
        super().__init__(len(split), batch_size=batch_size, world=world)
        self.normalization = normalization
        self.split = Split(split.images[self.own], split.labels[self.own])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x (n, C, H, W) float32 with channels_last strides, and y (n,) int64."""
        for part in self.slices():
            yield self.normalization(self.split.images[part]).permute(0, 3, 1, 2), self.split.labels[part]

    def some(self, count: int) -> Tensor:
        """Return at most `count` images of this process, evenly spread, always the same: (n, C, H, W), normalised."""
        images = self.split.images
        return self.normalization(images[:: ceil(len(images) / count)]).permute(0, 3, 1, 2)


def _moved(x: Tensor, device: torch.device) -> Tensor:
    """Copy `x` from the host to `device`; for a GPU `x` is pinned first, so that the host need not wait."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
