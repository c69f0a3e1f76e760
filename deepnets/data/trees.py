"""Class-folder trees: FOLDER/{train,test}/<class>/<image files>."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from deepnets.data.cache import cached, fingerprint
from deepnets.data.decode import SUFFIXES, decode, shape_of
from deepnets.data.source import DataFiles, Source, Split
from deepnets.errors import UserError

Files = dict[str, list[os.DirEntry[str]]]  # by class, both sorted by name


def is_tree(folder: Path) -> bool:
    """Whether there are a train and a test folder in it."""
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
    """The images of the `training` folders and of test/ as a `Source`; labels number the sorted class names.

    Class folders must be called `classes`, or by their numbers, so that a label is that of the class it is known as.
    `shape` (C, H, W) is what the images must have (default: that of the first image), `size` what they are scaled
    and cut to. Only the listing is read here; a missing, empty or contradicting folder is a `UserError`.
    """
    if size is not None and size < 1:
        raise UserError(f"size={size} pixels: must be positive, or null for images as they are")
    try:
        train, test = [_files(folder / split) for split in training], _files(folder / "test")
        found = [entry for files in (*train, test) for entries in files.values() for entry in entries]
        stats = [(entry.path.removeprefix(str(folder)), entry.stat()) for entry in found]
    except OSError as error:  # no permission, or a link to nothing
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): repair or remove it") from error
    names = tuple(train[0])
    for split, files in zip((*training, "test"), (*train, test), strict=True):
        if odd := sorted(set(files) ^ set(names)):
            raise UserError(f"{folder}: class folders differ between {training[0]}/ and {split}/: {', '.join(odd)}")
    if classes is not None:
        remedy = f"or read it as it is by dataset=image_folder dataset.root={folder}"
        if len(classes) != len(names):
            raise UserError(
                f"{folder} has {len(names)} class folders, {name} has {len(classes)}: complete it, {remedy}"
            )
        numbers = [int(found) for found in names if found.isdecimal()]
        if names != tuple(classes) and numbers != list(range(len(classes))):
            others = ", ".join(sorted(set(names) ^ set(classes)))
            raise UserError(
                f"{folder}: class folders are not called as those of {name} ({others}): rename them, {remedy}"
            )
    if shape is None:
        shape = shape_of(Path(train[0][names[0]][0].path))
    if size is not None:
        shape = (shape[0], size, size)
    form = f"uint8 upright {shape} fit={size is not None}"
    key = fingerprint(((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats), form)

    def read() -> tuple[Split, Split]:
        return _read(train, shape, size is not None), _read([test], shape, size is not None)

    file = f"deepnets-{'-'.join(training)}{'' if size is None else f'-{size}'}.npz"
    held_out = sum(map(len, test.values()))
    there = DataFiles((len(found) - held_out, held_out), partial(cached, folder, file, key, read))
    return Source(name, shape, names, lambda: there)


def _files(folder: Path) -> Files:
    if not folder.is_dir():
        raise UserError(
            f"no folder {folder}: a tree of images is DIR/train/<class>/<images> and DIR/test/<class>/<images>; "
            "make it so, or name another DIR by dataset.root=DIR, of an analysis by --root DIR"
        )
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    if not classes:
        raise UserError(f"{folder} has no class folders: put the images of each class in a folder of its own there")
    files: Files = {}
    for name in classes:
        seen = [entry for entry in os.scandir(folder / name) if entry.name[0] != "."]
        if inner := sorted(entry.name for entry in seen if entry.is_dir()):
            raise UserError(
                f"{folder / name / inner[0]} is a folder among the images of a class: move its images up, or remove it"
            )
        entries = [entry for entry in seen if entry.name.lower().endswith(SUFFIXES)]
        if odd := sorted(entry.name for entry in entries if entry.stat() and not entry.is_file()):
            raise UserError(f"{folder / name / odd[0]} is not a file: replace or remove it")
        if not entries:
            raise UserError(f"no images in {folder / name}: put some there ({' '.join(SUFFIXES)}) or remove the folder")
        files[name] = sorted(entries, key=lambda entry: entry.name)
    return files


def _read(parts: list[Files], shape: tuple[int, int, int], fit: bool) -> Split:
    paths = [Path(entry.path) for files in parts for entries in files.values() for entry in entries]
    labels = [np.full(len(entries), label) for files in parts for label, entries in enumerate(files.values())]
    return Split(torch.from_numpy(decode(paths, shape, fit)), torch.from_numpy(np.concatenate(labels)))
