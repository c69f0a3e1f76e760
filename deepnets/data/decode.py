"""Image files to one uint8 array."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile

from deepnets.errors import UserError, printable

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
GREY = ("1", "L", "LA")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
CHUNK = 100  # files per task: small images decode faster than a task is handed over


def shape_of(path: Path) -> tuple[int, int, int]:
    """(C, H, W) as the image is shown, from the file's header: one channel for a greyscale image, else three."""
    try:
        with Image.open(path) as image:
            width, height = ImageOps.exif_transpose(image).size
            return 1 if image.mode in GREY else 3, height, width
    except Exception as error:
        raise _unreadable(path, error) from error


def decode(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> np.ndarray:
    """All images as (N, H, W, C) uint8; with `fit`, the shorter side is scaled to the shape and the centre cut out.

    Images are turned as their EXIF orientation says. Greyscale files among coloured ones get three equal channels,
    transparency is dropped, and of an animated file the first picture is used, which a warning says. A `UserError` for
    a file that is unreadable, deeper than 8 bits per channel, coloured where C = 1 or (without `fit`) of another size.
    """
    channels, height, width = shape
    images = np.empty((len(paths), height, width, channels), np.uint8)
    chunks = [paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK)]
    # Processes, as Pillow decodes small files under the interpreter's lock; forked where safe, to import nothing again.
    count = min(8, os.cpu_count() or 1, len(chunks))
    start = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    animated: list[Path] = []
    try:
        with ProcessPoolExecutor(count, start, initializer=_end_with, initargs=(os.getpid(),)) as workers:
            decoded = workers.map(partial(_decode_all, shape=shape, fit=fit), chunks)  # a failure cancels the rest
            for first, (chunk, found) in zip(range(0, len(paths), CHUNK), decoded, strict=True):
                images[first : first + CHUNK] = chunk
                animated += found
    except BrokenProcessPool as error:
        raise UserError(
            f"{paths[0].parents[2]}: a process that decodes was killed, as the system does when memory runs out"
        ) from error
    if animated:
        others = f" and {len(animated) - 1} more are" if len(animated) > 1 else " is"
        print(printable(f"warning: {animated[0]}{others} animated; the first picture is used"), file=sys.stderr)
    return images


def _end_with(parent: int) -> None:
    """Let the kernel (Linux's prctl, option 1) kill this process when its parent dies: it would wait for ever."""
    getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _decode_all(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> tuple[np.ndarray, list[Path]]:
    """The images, and which of the files are animated."""
    decoded = [_decode(path, shape, fit) for path in paths]
    return np.stack([image for image, _ in decoded]), [
        path for path, (_, moves) in zip(paths, decoded, strict=True) if moves
    ]


def _is_deep(image: ImageFile) -> bool:
    """Whether a file that is open but not loaded has more than 8 bits per channel, which Pillow cuts off in colours."""
    arguments = [part for tile in image.tile for part in (tile[3] if isinstance(tile[3], tuple) else (tile[3],))]
    return image.mode in DEEP or any(
        "16" in part if isinstance(part, str) else isinstance(part, int) and image.format == "PPM" and part > 255
        for part in arguments
    )


def _decode(path: Path, shape: tuple[int, int, int], fit: bool) -> tuple[np.ndarray, bool]:
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
    if channels == 1 and image.mode not in GREY:
        raise UserError(
            f"{path} has colours (mode {image.mode}) but the first image is greyscale: make all of one kind"
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
