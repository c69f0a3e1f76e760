"""Image files in class folders, listed but not read: FOLDER/<class>/<image files>."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from deepnets.errors import UserError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")  # what torchvision decodes


@dataclass(frozen=True)
class ImageFiles:
    """The images FOLDER/<class>/<name>: `names` (N,) as bytes, as a million of Python's strings take too much memory.

    `labels` (N,) int64 number `classes`; both are in the order of the class folders' names, then of the files'.
    """

    folder: Path
    classes: tuple[str, ...]
    names: np.ndarray
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Self:
        """The images at `index` (n,) int64, in that order."""
        index = index.cpu()
        return replace(self, names=self.names[index.numpy()], labels=self.labels[index])

    @property
    def fingerprint(self) -> bytes:
        """Their names."""
        return self.names.tobytes()

    def name(self, image: int) -> str:
        """Where that image lies."""
        return os.path.join(self.folder, self.classes[int(self.labels[image])], os.fsdecode(self.names[image]))

    def read(self, image: int) -> Tensor:
        """The bytes of that file, uint8; an OSError where it cannot be read."""
        return torch.from_numpy(np.fromfile(self.name(image), np.uint8))


def listed(folder: Path, classes: int, every: int) -> ImageFiles:
    """The images of every `every`-th class folder of `folder`, which must have `classes` of them.

    Raises:
        UserError: no such folder, another number of classes, a class without images, or what is no file.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name[0] != "." and entry.is_dir())
        if len(names) != classes:
            raise UserError(
                f"{folder} has {len(names)} class folders, expected are {classes}: complete it, or set "
                f"dataset.classes={len(names)}"
            )
        chosen = tuple(names[::every])
        files = [files_in(folder / name) for name in chosen]
    except OSError as error:  # no permission, a link to itself or to nothing
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): repair or remove it") from error
    labels = np.repeat(np.arange(len(chosen)), [len(own) for own in files])
    return ImageFiles(folder, chosen, np.concatenate(files), torch.from_numpy(labels))


def files_in(folder: Path) -> np.ndarray:
    """The names of the images in `folder`, sorted."""
    entries = [entry for entry in os.scandir(folder) if entry.name[0] != "."]
    if odd := sorted(entry.name for entry in entries if not entry.is_file()):
        raise UserError(f"{folder / odd[0]} is not a file: replace or remove it")
    names = sorted(os.fsencode(entry.name) for entry in entries if entry.name.lower().endswith(SUFFIXES))
    if not names:
        raise UserError(f"no images in {folder}: it is half copied; complete it ({' '.join(SUFFIXES)})")
    return np.array(names)
