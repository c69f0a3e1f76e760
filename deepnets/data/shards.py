"""Shards of image files, as the library litdata writes them: few large files in place of a million small ones.

`python -m deepnets.data.shards TREE OUT` writes shards of a tree; `pip install 'deepnets[shards]'` installs litdata.
litdata reads any sample by its number, so deepnets decides the order of images and where a run resumes, as for files.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from deepnets.command import run_command
from deepnets.data.class_folders import ImageFiles, list_images
from deepnets.errors import UserError, first_line, printable

SHARD = "64MB"
SPLITS = ("train", "val")
ABOUT = "images.npz"  # lies beside the shards: `labels`, `names` and `classes` as in `ImageFiles`


@dataclass(frozen=True)
class Shards(ImageFiles):
    """Images in the shards of `folder`; `places` (N,) are the numbers of their samples."""

    places: np.ndarray

    def select(self, index: Tensor) -> Self:
        """Return the images at `index` (n,) int64, in that order."""
        return replace(super().select(index), places=self.places[index.cpu().numpy()])

    def location(self, image: int) -> str:
        """Return the folder of the shards, and the file that the image was written from."""
        return f"{self.folder}, {self.classes[int(self.labels[image])]}/{os.fsdecode(self.names[image])}"

    def read(self, image: int) -> Tensor:
        """Return the bytes of an image's file, uint8; raises OSError if they cannot be read."""
        opened, place = _opened(self.folder, os.getpid()), int(self.places[image])
        try:
            return torch.frombuffer(bytearray(opened[place]), dtype=torch.uint8)
        except Exception as error:  # litdata may raise anything for a damaged file
            raise OSError(f"{type(error).__name__}, {first_line(error)}") from error


def is_sharded(folder: Path) -> bool:
    """Return whether `folder` holds shards."""
    return (folder / ABOUT).is_file()


def sharded(folder: Path, classes: int, every: int = 1) -> Shards:
    """List the images of every `every`-th class in the shards of `folder`; raises UserError as `list_images` does."""
    try:
        with np.load(folder / ABOUT, allow_pickle=False) as about:
            names, labels, names_of_classes = about["names"], about["labels"], about["classes"]
        class_names = names_of_classes.tolist()
        texts = names.dtype.kind == "S" and names_of_classes.dtype.kind == "U"
        if not (texts and names_of_classes.ndim == names.ndim == 1):
            raise ValueError("its names are not strings")
        if not (labels.dtype == np.int64 and labels.shape == names.shape):
            raise ValueError("its labels do not match its names")
        if not np.array_equal(np.unique(labels), np.arange(len(class_names))):
            raise ValueError(f"its labels do not number its {len(class_names)} classes")
    except Exception as error:  # numpy may raise anything for a damaged file
        raise UserError(
            f"{folder / ABOUT}: does not describe shards ({first_line(error)}): write them again"
        ) from error
    if (count := len(class_names)) != classes:
        raise UserError(f"{folder} has {count} classes, but {classes} are expected: set dataset.classes={count}")
    places = np.flatnonzero(labels % every == 0)
    chosen = names[places]
    chosen = chosen.astype(f"S{np.char.str_len(chosen).max()}")  # as in `list_images`: the longest name sets the size
    return Shards(folder, tuple(class_names[::every]), chosen, torch.from_numpy(labels[places] // every), places)


@lru_cache(maxsize=4)
def _opened(folder: Path, process: int) -> Any:
    """Open the shards for reading; `process` is this process's id, so that a fork of it opens them anew."""
    try:
        from litdata import StreamingDataset
    except ImportError as error:
        raise UserError(f"{folder} holds shards: install their reader by pip install 'deepnets[shards]'") from error
    try:
        return StreamingDataset(str(folder), shuffle=False)
    except Exception as error:  # litdata may raise anything for a damaged file
        raise UserError(f"{folder}: holds no readable shards ({first_line(error)}): write them again") from error


def write(tree: Path, out: Path) -> None:
    """Write the shards of both splits of a tree, in the order of its files.

    Raises:
        UserError: `tree` is not a tree of images, or `out` holds shards already.
    """
    from litdata import optimize

    for split in SPLITS:
        if not (tree / split).is_dir():
            raise UserError(
                f"no folder {tree / split}: a tree is DIR/train/<class>/<images> and DIR/val/<class>/<images>"
            )
        if is_sharded(out / split):
            raise UserError(f"{out / split} holds shards: remove them, or name another folder")
        images = list_images(tree / split)
        with tempfile.TemporaryDirectory() as place:  # litdata would write to and remove /tmp/chunks and /tmp/data
            os.environ |= {f"DATA_OPTIMIZER_{kind}CACHE_FOLDER": f"{place}/{kind}" for kind in ("", "DATA_")}
            optimize(
                _content,
                images.paths,
                str(out / split),
                chunk_bytes=SHARD,
                num_workers=1,  # several would write in another order
                reorder_files=False,
            )
        np.savez(
            out / split / ABOUT, labels=images.labels.numpy(), names=images.names, classes=np.array(images.classes)
        )
        print(printable(f"{out / split}: {len(images)} images of {len(images.classes)} classes"))


def _content(file: str) -> bytes:
    return Path(file).read_bytes()


def main() -> int:
    """Write the shards that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write shards of a tree of images.")
    parser.add_argument("tree", type=Path, help="a folder with train/<class>/ and val/<class>/")
    parser.add_argument("out", type=Path, help="folder to write the shards to")
    arguments = parser.parse_args()
    write(arguments.tree, arguments.out)
    return 0


if __name__ == "__main__":
    run_command(main)
