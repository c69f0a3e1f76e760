"""Decodes image files and keeps their pixels in one file, so that the next start need not decode them again.

Pillow decodes the files of a data set that is held in memory; torchvision decodes photographs one by one, while a
network trains on them.
"""

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile
from torch import Tensor

from deepnets.data.source import Split
from deepnets.errors import UserError, printable
from deepnets.system import usable_cores
from deepnets.system.files import own_cache

# torchvision 0.29 announces in every process that its decoders will move to another library.
warnings.filterwarnings("ignore", "The image decoding and encoding capabilities of TorchVision", DeprecationWarning)

GREY = ("1", "L", "LA")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
CHUNK = 100  # files per task: handing over a task takes longer than decoding a small image


def shape_of(path: Path) -> tuple[int, int, int]:
    """Decode an image and return its (C, H, W) as it is shown: C is 1 for a greyscale image, else 3."""
    try:
        with Image.open(path) as image:
            width, height = ImageOps.exif_transpose(image).size
            return 1 if image.mode in GREY else 3, height, width
    except Exception as error:
        raise _unreadable(path, error) from error


def decode(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> np.ndarray:
    """Decode images to (N, H, W, C) uint8; `fit` scales each image until it just covers the shape, and crops it.

    Images are turned as their EXIF orientation says. Greyscale files among coloured ones get three equal channels,
    transparency is dropped, and an animated file gives its first picture and a warning. Raises `UserError` for a file
    that is unreadable, has more than 8 bits per channel, has colours though C = 1, or (without `fit`) another size.
    """
    channels, height, width = shape
    images = np.empty((len(paths), height, width, channels), np.uint8)
    chunks = [paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK)]
    # Threads that call Pillow would wait for the interpreter's lock. A forked process need not import anything again.
    count = min(8, usable_cores(), len(chunks))
    start = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    animated: list[Path] = []
    try:
        with ProcessPoolExecutor(count, start, initializer=_end_with, initargs=(os.getpid(),)) as workers:
            decoded = workers.map(partial(_decode_all, shape=shape, fit=fit), chunks)  # a failure cancels the rest
            for first, (pixels, moving) in zip(range(0, len(paths), CHUNK), decoded, strict=True):
                images[first : first + CHUNK] = pixels
                animated += moving
    except BrokenProcessPool as error:
        raise UserError(
            f"{paths[0].parents[2]}: the system killed a process that decodes images, probably for lack of memory"
        ) from error
    if animated:
        others = f" and {len(animated) - 1} more are" if len(animated) > 1 else " is"
        print(printable(f"warning: {animated[0]}{others} animated; the first picture is used"), file=sys.stderr)
    return images


def decode_one(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode one image to (H, W, C) uint8, as `decode` does with `fit`; if C = 1, colours become grey.

    Raises:
        UserError: the image cannot be read, or has more than 8 bits per channel.
    """
    return _decode(path, shape, fit=True, make_grey=True)[0].copy()  # Pillow's array is read-only


def decode_bytes(content: Tensor) -> Tensor:
    """Decode the bytes of an image file by torchvision: (3, H, W) uint8.

    Grey and CMYK files become RGB, and EXIF tags are not applied. Raises OSError or RuntimeError on failure.
    """
    from torchvision.io import ImageReadMode, decode_image

    pixels = decode_image(content, ImageReadMode.RGB)
    if pixels.dtype != torch.uint8:
        raise OSError("it has more than 8 bits per channel")
    return pixels[0] if pixels.ndim == 4 else pixels  # the first picture of an animation


def cached(folder: Path, name: str, key: str, build: Callable[[], tuple[Split, Split]]) -> tuple[Split, Split]:
    """Read (train, test) from the file `name` in `folder` if it was written with `key`; else `build` and write them.

    If `folder` cannot be written, the file lies in the user's cache folder. A file that is outdated, or fails its zip
    checksums, is built again. Whole files are renamed into place, so several processes may build at once.
    """
    places = [folder / name]
    with suppress(UserError):  # the user may have no cache folder
        digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        places.append(own_cache() / f"{digest}-{name}")
    for place in places:
        if (splits := _load(place, key)) is not None:
            return splits
    splits = build()
    for place in places:
        if _save(place, key, splits):
            break
    return splits


def fingerprint(files: Iterable[tuple[str, int, int]], form: str) -> str:
    """Hash the form that files are decoded to, and each file's path, size in bytes and mtime in ns, in any order."""
    lines = [form, *sorted(f"{path}\t{size}\t{changed}" for path, size, changed in files)]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _end_with(parent: int) -> None:
    """Let the kernel (Linux's prctl, option 1) kill this process when its parent dies; else it would wait for ever."""
    getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _decode_all(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> tuple[np.ndarray, list[Path]]:
    """Decode files; return the images, and the paths of animated files."""
    decoded = [_decode(path, shape, fit) for path in paths]
    return np.stack([image for image, _ in decoded]), [
        path for path, (_, moves) in zip(paths, decoded, strict=True) if moves
    ]


def _is_deep(image: ImageFile) -> bool:
    """Return whether a file, open but not loaded, has more than 8 bits per channel; Pillow cuts colours to 8 bits."""
    arguments = [part for tile in image.tile for part in (tile[3] if isinstance(tile[3], tuple) else (tile[3],))]
    return image.mode in DEEP or any(
        "16" in part if isinstance(part, str) else isinstance(part, int) and image.format == "PPM" and part > 255
        for part in arguments
    )


def _decode(path: Path, shape: tuple[int, int, int], fit: bool, make_grey: bool = False) -> tuple[np.ndarray, bool]:
    channels, height, width = shape
    try:
        with Image.open(path) as file:
            is_deep, is_animated = _is_deep(file), getattr(file, "is_animated", False)
            file.load()
            image = ImageOps.exif_transpose(file)
    except Exception as error:  # decoders raise many kinds on damaged files
        raise _unreadable(path, error) from error
    if is_deep:
        raise UserError(f"{path} has more than 8 bits per channel (mode {image.mode}): save it with 8 bits per channel")
    if channels == 1 and image.mode not in GREY and not make_grey:
        raise UserError(
            f"{path} has colours (mode {image.mode}) but the first image is greyscale: make all images greyscale, or "
            "all coloured"
        )
    image = image.convert("L" if channels == 1 else "RGB")
    if fit:
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    if image.size != (width, height):
        raise UserError(
            f"{path} is {image.width}x{image.height} (width x height), the data set {width}x{height}: make all images "
            "one size, or use dataset=image_folder dataset.source.size=PIXELS, which scales and cuts them"
        )
    return np.asarray(image).reshape(height, width, channels), is_animated


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a readable image ({error}): replace it or take it out of the folder")


def _load(path: Path, key: str) -> tuple[Split, Split] | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["key"]) != key:
                return None
            train, test = (
                Split(torch.from_numpy(file[f"{split}_images"]), torch.from_numpy(file[f"{split}_labels"]))
                for split in ("train", "test")
            )
            return (train, test) if all(map(_is_whole, (train, test))) else None
    except Exception:  # a damaged zip raises nearly anything, and the remedy is always the same
        return None


def _is_whole(split: Split) -> bool:
    images, labels = split.images, split.labels
    fits = images.dtype == torch.uint8 and images.ndim == 4 and labels.dtype == torch.int64 and labels.ndim == 1
    return fits and len(images) == len(labels) > 0 and bool((labels >= 0).all())


def _save(path: Path, key: str, splits: tuple[Split, Split]) -> bool:
    """Write the splits; return False, and leave nothing behind, if the disk is full or `path` cannot be written."""
    train, test = splits
    temporary = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(
                file,
                key=np.array(key),
                train_images=train.images.numpy(),
                train_labels=train.labels.numpy(),
                test_images=test.images.numpy(),
                test_labels=test.labels.numpy(),
            )
        temporary.replace(path)
        return True
    except OSError:
        return False
    finally:
        with suppress(OSError):
            temporary.unlink()
