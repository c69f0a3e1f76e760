"""A data set before it is read: what it holds, and the functions that find and read it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CHUNK = 1000  # images reduced at a time, so that their sums stay in the processor's cache


@dataclass(frozen=True)
class Split:
    """Images (N, H, W, C) uint8 and their labels (N,) int64, on one device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> "Split":
        """Return the images and labels at `index` (n,) int64, in that order."""
        return Split(self.images.index_select(0, index), self.labels.index_select(0, index))

    def to(self, device: torch.device) -> "Split":
        """Return the split on `device`."""
        return Split(self.images.to(device), self.labels.to(device))

    def reduced(self, factor: int) -> "Split":
        """Return the split with each square of `factor` x `factor` pixels averaged; see the function `reduced`."""
        if factor == 1:
            return self
        return Split(torch.cat([reduced(images, factor) for images in self.images.split(CHUNK)]), self.labels)


def reduced(images: Tensor, factor: int) -> Tensor:
    """Average each square of `factor` x `factor` pixels, and round halves up; `factor` must divide both sides.

    Maps (n, H, W, C) uint8 to (n, H / factor, W / factor, C) uint8.
    """
    sums = images.unflatten(1, (-1, factor)).unflatten(3, (-1, factor)).sum((2, 4), dtype=torch.int32)
    return ((sums + factor**2 // 2) // factor**2).to(torch.uint8)


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set: `sizes` are the numbers of images in (train, test), and `read` reads both splits.

    `read` raises `UserError` if it fails. If a published set is not in the data folder, `missing` says so, and `read`
    downloads it first. Photographs are streamed: nothing downloads them, and nobody calls their `read`.
    """

    sizes: tuple[int, int]
    read: Callable[[], tuple[Split, Split]]
    missing: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set: the `shape` (C, H, W) of its images, and the names of its `classes` by label.

    `published` are the numbers of images in (train, test) if the set is a published one. A network can be built before
    the files are there, because only `found` looks for them; only `class_folders.tree` looks for its folders at once.
    `found` raises `UserError` if the files are unfit.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    find: Callable[[], DataFiles]
    published: tuple[int, int] | None = None

    @cached_property
    def found(self) -> DataFiles:
        return self.find()
