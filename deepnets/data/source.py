"""A data set before it is read: what it holds, and the function that reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images (N, H, W, C) uint8 and their labels (N,) int64, on one device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> "Split":
        """The samples at `index` (n,) int64, in that order."""
        return Split(self.images.index_select(0, index), self.labels.index_select(0, index))


@dataclass(frozen=True)
class Source:
    """What was found: `shape` is (C, H, W), `classes` their names by label, `sizes` the images in (train, test).

    `read` returns (train, test); it is the slow part, and what it finds unreadable is a `UserError`.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    read: Callable[[], tuple[Split, Split]]
