"""Image files to one uint8 array."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from deepnets.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
GREY = ("1", "L", "LA")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
CHUNK = 100  # files per task: small images decode faster than a task is handed over


def shape_of(path: Path) -> tuple[int, int, int]:
    """(C, H, W) from the file's header: one channel for a greyscale image, else three."""
    try:
        with Image.open(path) as image:
            return 1 if image.mode in GREY else 3, image.height, image.width
    except Exception as error:
        raise _unreadable(path, error) from error


def decode(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> np.ndarray:
    """All images as (N, H, W, C) uint8; with `fit`, the shorter side is scaled to the shape and the centre cut out.

    Greyscale files among coloured ones get three equal channels and transparency is dropped. A file that is
    unreadable, deeper than 8 bits, coloured where C = 1 or (without `fit`) of another size is a `UserError`.
    """
    channels, height, width = shape
    images = np.empty((len(paths), height, width, channels), np.uint8)
    chunks = [paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK)]
    # Processes, as Pillow decodes small files under the interpreter's lock; forked where safe, to import nothing again.
    count = min(8, os.cpu_count() or 1, len(chunks))
    start = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(count, start) as workers:
        decoded = workers.map(partial(_decode_all, shape=shape, fit=fit), chunks)  # the first failure cancels the rest
        for first, chunk in zip(range(0, len(paths), CHUNK), decoded, strict=True):
            images[first : first + CHUNK] = chunk
    return images


def _decode_all(paths: Sequence[Path], shape: tuple[int, int, int], fit: bool) -> np.ndarray:
    return np.stack([_decode(path, shape, fit) for path in paths])


def _decode(path: Path, shape: tuple[int, int, int], fit: bool) -> np.ndarray:
    channels, height, width = shape
    try:
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # decoders raise many kinds on damaged files
        raise _unreadable(path, error) from error
    if image.mode in DEEP:
        raise UserError(f"{path} has more than 8 bits per pixel (mode {image.mode}): save it with 8 bits per channel")
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
    return np.asarray(image).reshape(height, width, channels)


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a readable image ({error}): replace it or take it out of the folder")
