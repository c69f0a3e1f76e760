"""Lists the images in class folders, FOLDER/<class>/<image files>, without decoding them.

`tree` makes a data set of FOLDER/{train,test}/, which is read into memory. `ImageFiles` lists photographs, which are
decoded while a network trains.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from deepnets.data.decoding import cached, decode, decode_bytes, fingerprint, shape_of
from deepnets.data.source import DataFiles, Source, Split
from deepnets.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")  # of files that Pillow decodes
STREAMED_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")  # of files that torchvision decodes


@dataclass(frozen=True)
class ImageFiles:
    """The images FOLDER/<class>/<name>: `names` (N,) are bytes, as a million Python strings take too much memory.

    `labels` (N,) int64 are indices of `classes`. Images are sorted by class, and within a class by name.
    """

    folder: Path
    classes: tuple[str, ...]
    names: np.ndarray
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Self:
        """Return the images at `index` (n,) int64, in that order."""
        index = index.cpu()
        return replace(self, names=self.names[index.numpy()], labels=self.labels[index])

    @property
    def fingerprint(self) -> bytes:
        """Return the names of all images, joined as bytes, by which two lists can be compared."""
        return self.names.tobytes()

    @property
    def paths(self) -> list[str]:
        """Return the path of each image."""
        folders = [os.path.join(self.folder, name) for name in self.classes]
        pairs = zip(self.labels.tolist(), self.names.tolist(), strict=True)
        return [os.path.join(folders[label], os.fsdecode(name)) for label, name in pairs]

    def location(self, image: int) -> str:
        """Return the path of an image."""
        return os.path.join(self.folder, self.classes[int(self.labels[image])], os.fsdecode(self.names[image]))

    def read(self, image: int) -> Tensor:
        """Return the bytes of an image's file, uint8; raises OSError if it cannot be read."""
        return torch.from_numpy(np.fromfile(self.location(image), np.uint8))

    def decoded(self, image: int) -> Tensor:
        """Decode an image by `decode_bytes`: (3, H, W) uint8.

        Raises:
            UserError: the image cannot be read.
        """
        try:
            return decode_bytes(self.read(image))
        except (OSError, RuntimeError) as error:
            reason = str(error).rpartition(", ")[2]  # torchvision begins with a line of its source
            raise UserError(
                f"{self.location(image)} is not a readable image ({reason}): replace or remove it, or let the "
                "next image of the split replace such images by dataset.skip_unreadable=true"
            ) from error


def list_images(
    folder: Path, classes: int | None = None, every: int = 1, *, suffixes: tuple[str, ...] = STREAMED_SUFFIXES
) -> ImageFiles:
    """List the images in every `every`-th class folder of `folder`.

    Raises:
        UserError: `folder` is missing, or has another number of class folders than `classes`, if given; or a class
            folder has no images, or holds a folder.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name[0] != "." and entry.is_dir())
        if classes is None and not names:
            raise UserError(f"{folder} has no class folders: put the images of each class in a folder of its own there")
        if classes is not None and len(names) != classes:
            raise UserError(
                f"{folder} has {len(names)} class folders, but {classes} are expected: complete it, or set "
                f"dataset.classes={len(names)}"
            )
        chosen = tuple(names[::every])
        files = [images_in(folder / name, suffixes) for name in chosen]
    except OSError as error:  # no permission, or a link to nothing
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): repair or remove it") from error
    labels = np.repeat(np.arange(len(chosen)), [len(each) for each in files])
    return ImageFiles(folder, chosen, np.concatenate(files), torch.from_numpy(labels))


def images_in(folder: Path, suffixes: tuple[str, ...] = STREAMED_SUFFIXES) -> np.ndarray:
    """Return the names of the image files in `folder`, sorted, as bytes (N,).

    Raises:
        UserError: there are no images, a folder lies among them, or something else than a file has an image's name.
    """
    entries = [entry for entry in os.scandir(folder) if entry.name[0] != "."]
    if inner := sorted(entry.name for entry in entries if entry.is_dir()):
        raise UserError(
            f"{folder / inner[0]} is a folder among the images of a class: move its images up, or remove it"
        )
    images = [entry for entry in entries if entry.name.lower().endswith(suffixes)]
    # `stat` raises OSError for a link to nothing. It is called only for entries that are no files, because a million
    # calls over a network take minutes.
    if not_files := sorted(entry.name for entry in images if not entry.is_file() and entry.stat()):
        raise UserError(f"{folder / not_files[0]} is not a file: replace or remove it")
    if not images:
        raise UserError(f"no images in {folder}: put some there ({' '.join(suffixes)}) or remove the folder")
    return np.array(sorted(os.fsencode(entry.name) for entry in images))


def is_tree(folder: Path) -> bool:
    """Return whether `folder` has a train and a test folder."""
    return (folder / "train").is_dir() and (folder / "test").is_dir()


def tree(
    name: str,
    folder: Path,
    *,
    training: tuple[str, ...] = ("train",),
    classes: Sequence[str] | None = None,
    shape: tuple[int, int, int] | None = None,
    size: int | None = None,
) -> Source:
    """Make a `Source` of the images in the `training` folders and in test/; labels number the sorted class names.

    If `classes` is given, class folders must have these names or their numbers, so that labels keep their meaning. All
    images must have `shape` (C, H, W), by default the first image's; with `size`, they are scaled and cut to squares of
    `size` pixels. Here the folders are listed, and without `shape` the first image is decoded. Raises `UserError` if a
    folder is missing, is empty or contradicts another one.
    """
    if size is not None and size < 1:
        raise UserError(f"size={size} pixels: must be positive, or null for images as they are")
    splits = {split: _listed(folder / split) for split in (*training, "test")}
    *train, test = splits.values()
    names = train[0].classes
    for split, images in splits.items():
        if differing := sorted(set(images.classes) ^ set(names)):
            raise UserError(
                f"{folder}: class folders differ between {training[0]}/ and {split}/: {', '.join(differing)}"
            )
    if classes is not None:
        _check_names(name, folder, names, classes)
    if shape is None:
        shape = shape_of(Path(train[0].location(0)))
    if size is not None:
        shape = (shape[0], size, size)

    def read() -> tuple[Split, Split]:
        return _read(train, shape, size is not None), _read([test], shape, size is not None)

    def load() -> tuple[Split, Split]:
        file = f"deepnets-{'-'.join(training)}{'' if size is None else f'-{size}'}.npz"
        key = _fingerprint(folder, [*train, test], f"uint8 upright {shape} fit={size is not None}")
        return cached(folder, file, key, read)

    files = DataFiles((sum(map(len, train)), len(test)), load)
    return Source(name, shape, names, lambda: files)


def _listed(folder: Path) -> ImageFiles:
    if not folder.is_dir():
        is_val = folder.name == "test" and (folder.parent / "val").is_dir()
        named = f" ({folder.parent / 'val'} is there: rename it to test)" if is_val else ""
        raise UserError(
            f"no folder {folder}{named}: a tree of images is DIR/train/<class>/<images> and DIR/test/<class>/<images>; "
            "arrange it so, or name another DIR (dataset.root=DIR in train, --root DIR in analyses, --verify DIR in "
            "report)"
        )
    return list_images(folder, suffixes=SUFFIXES)


def _check_names(name: str, folder: Path, names: Sequence[str], classes: Sequence[str]) -> None:
    """Check that a tree's class folders have the names of the known data set's `classes`, or their numbers."""
    remedy = f"or read it as it is by dataset=image_folder dataset.root={folder}"
    if len(classes) != len(names):
        raise UserError(f"{folder} has {len(names)} class folders, {name} has {len(classes)}: complete it, {remedy}")
    numbers = [int(number) for number in names if number.isdecimal()]
    if tuple(names) != tuple(classes) and numbers != list(range(len(classes))):
        differing = ", ".join(sorted(set(names) ^ set(classes)))
        raise UserError(f"{folder}: class folders are not named as in {name} ({differing}): rename them, {remedy}")


def _fingerprint(folder: Path, splits: Sequence[ImageFiles], form: str) -> str:
    paths = [path for images in splits for path in images.paths]
    try:
        stats = [os.stat(path) for path in paths]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): repair or remove it") from error
    names = [path.removeprefix(str(folder)) for path in paths]
    return fingerprint(((name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats, strict=True)), form)


def _read(parts: Sequence[ImageFiles], shape: tuple[int, int, int], fit: bool) -> Split:
    paths = [Path(path) for images in parts for path in images.paths]
    return Split(torch.from_numpy(decode(paths, shape, fit)), torch.cat([images.labels for images in parts]))
