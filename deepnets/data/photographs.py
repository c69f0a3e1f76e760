"""Where photographs lie: class folders or shards of train/ and val/, or ImageNet's official archives."""

from functools import cached_property
from pathlib import Path
from typing import Any

from deepnets.data.archives import IMAGENET_ARCHIVES, unpack_imagenet
from deepnets.data.decoding import Encoded
from deepnets.data.image_files import listed
from deepnets.data.shards import SPLITS, is_sharded, sharded
from deepnets.data.source import DataFiles
from deepnets.errors import UserError

CLASSES = 1000
PUBLISHED = (1_281_167, 50_000)  # images for training and validation


class Photographs:
    """Those under `root`, of every `every`-th of `classes` class folders."""

    def __init__(self, root: str, classes: int, every: int, incomplete: bool) -> None:
        self.root, self.folder = root, Path(root).expanduser()
        self.classes, self.every, self.incomplete = classes, every, incomplete

    def find(self) -> DataFiles:
        """A `UserError` for images that are not those expected, or for none where no ImageNet is meant."""
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
        if all((self.folder / name).is_file() for name in IMAGENET_ARCHIVES):
            return DataFiles(expected, _unread)
        problem = (
            f"no images in {self.root}: it needs train/<class>/ and val/<class>/ with image files, shards of both, or "
            f"ImageNet's official {', '.join(IMAGENET_ARCHIVES)}; set dataset.root=DIR, of an analysis --root DIR"
        )
        if self.classes != CLASSES:
            raise UserError(problem)
        return DataFiles(expected, _unread, problem)

    @cached_property
    def splits(self) -> tuple[Encoded, Encoded] | None:
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
        return (sharded if is_sharded(folder) else listed)(folder, self.classes, self.every)

    def unpack(self) -> None:
        """The official archives beside themselves; a `UserError` where they are damaged or absent."""
        if missing := self.find().missing:
            raise UserError(missing)
        unpack_imagenet(self.folder)
        vars(self).pop("splits")
        if self.find().missing or not self.splits:
            raise UserError(f"ImageNet's archives in {self.root} hold no train/ and val/")


def _unread() -> Any:
    raise NotImplementedError("images of this size are streamed, never read into memory")
