"""MNIST's own file format: a header of big-endian sizes, then the bytes."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from deepnets.errors import UserError


def find_idx(folder: Path, name: str) -> Path | None:
    """`name` or `name`.gz in `folder`, None if neither is there; a `UserError` where it is not a file."""
    found = next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)
    if found and not found.is_file():
        raise UserError(f"{found} is not a file: replace or delete it")
    return found


def idx_shape(path: Path) -> tuple[int, ...]:
    """The sizes in the header."""
    head = _bytes(path, 4)
    if len(head) < 4 or head[:3] != b"\x00\x00\x08":
        raise UserError(f"{path} is not an idx file of bytes (it starts with {head.hex(' ')}): replace or delete it")
    dimensions = head[3]
    sizes = _bytes(path, 4 + 4 * dimensions)[4:]
    if len(sizes) < 4 * dimensions or not dimensions or 0 in (shape := np.frombuffer(sizes, ">u4")):
        raise UserError(f"{path} has an idx header that is cut short or holds nothing: replace or delete it")
    return tuple(map(int, shape))


def read_idx(path: Path) -> np.ndarray:
    """The array of uint8; a file whose length contradicts its header is a `UserError`."""
    shape = idx_shape(path)
    content = np.frombuffer(bytearray(_bytes(path)), np.uint8)[4 + 4 * len(shape) :]
    if len(content) != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path} holds {len(content)} bytes where its header says {shape}: replace or delete it")
    return content.reshape(shape)


def _bytes(path: Path, count: int = -1) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(count)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): replace or delete it") from error
