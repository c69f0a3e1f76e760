"""Finds or downloads the archives of known data sets, and reads MNIST's idx files.

torchvision downloads the archives and compares their checksums.
"""

import gzip
import os
import queue
import socket
import tempfile
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from deepnets.data.decoding import cached, fingerprint
from deepnets.data.source import DataFiles, Split
from deepnets.errors import UserError

PATIENCE = 4.0  # seconds until a host that does not answer counts as unreachable
STALL = 30.0  # seconds without a byte until a download is given up


@dataclass(frozen=True)
class Archive:
    """An official data set that torchvision's class `kind` reads, in one call for each entry of `train` and `test`.

    An entry holds the call's arguments. The class needs `files` (paths in the data folder). If they are published as
    one file, `packed` is its name. `labels` names the attribute of the class that holds the labels.
    """

    name: str
    url: str
    kind: str
    train: Sequence[Mapping[str, bool | str]]
    test: Sequence[Mapping[str, bool | str]]
    files: tuple[str, ...]
    packed: str | None = None
    labels: str = "targets"


def obtain(archive: Archive, root: Path) -> None:
    """Make sure that `archive.files` are in `root`: unpack them from `archive.packed`, or download them.

    They are made in a temporary folder and renamed into place, under a lock. If the host cannot be reached, this raises
    `UserError` within seconds and leaves nothing behind.
    """
    if _complete(archive, root):
        return
    packed = root / archive.packed if archive.packed and (root / archive.packed).is_file() else None
    if packed is None and (failure := _unreachable(archive.url)):
        raise UserError(_advice(archive, root, failure))
    from torchvision import datasets  # heavy, and only needed on the first start

    if packed and not datasets.utils.check_integrity(packed, getattr(datasets, archive.kind).tgz_md5):
        raise UserError(f"{packed} is damaged (its MD5 is not the published one): delete it and start again")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(root / f".{archive.name}.lock"),
            tempfile.TemporaryDirectory(dir=root, prefix=".deepnets-") as new,
        ):
            if not _complete(archive, root):  # else another process was first
                _fetch(archive, packed, Path(new))
                for file in archive.files:
                    (root / file).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(Path(new) / file, root / file)
    except (OSError, RuntimeError) as error:
        raise UserError(_advice(archive, root, str(error))) from error


def official(archive: Archive, root: Path, sizes: tuple[int, int]) -> DataFiles:
    """Return the files of an archive of 32x32 colour images in `root`; `read` obtains and verifies the archive."""

    def read() -> tuple[Split, Split]:
        obtain(archive, root)
        files = [path for file in archive.files for path in (root / file, *(root / file).glob("*")) if path.is_file()]
        stats = [(str(path.relative_to(root)), path.stat()) for path in files]
        key = fingerprint(((path, s.st_size, s.st_mtime_ns) for path, s in stats), "official")
        return cached(root, f"deepnets-{archive.name}-{sizes[0]}.npz", key, lambda: _read(archive, root))

    return DataFiles(sizes, read, missing(archive, root))


def missing(archive: Archive, root: Path) -> str | None:
    """Return a line that names the download that training would begin with, or None; does not use the network."""
    if _complete(archive, root) or (archive.packed and (root / archive.packed).is_file()):
        return None
    return f"no {archive.name} in {root}: training would first download {archive.url}"


def find_idx(folder: Path, name: str) -> Path | None:
    """Return `name` or `name`.gz in `folder`, or None if neither exists; raises `UserError` for a folder or pipe."""
    file = next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)
    if file and not file.is_file():
        raise UserError(f"{file} is not a file: replace or delete it")
    return file


def idx_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of the array in an idx file, read from the big-endian numbers in its header."""
    head = _bytes(path, 4)
    if len(head) < 4 or head[:3] != b"\x00\x00\x08":
        raise UserError(f"{path} is not an idx file of bytes (it starts with {head.hex(' ')}): replace or delete it")
    dimensions = head[3]
    sizes = _bytes(path, 4 + 4 * dimensions)[4:]
    if len(sizes) < 4 * dimensions or not dimensions or 0 in (shape := np.frombuffer(sizes, ">u4")):
        raise UserError(f"{path} has an idx header that is cut short or holds nothing: replace or delete it")
    return tuple(map(int, shape))


def read_idx(path: Path) -> np.ndarray:
    """Return the array of uint8 in an idx file; raises `UserError` if the file's length contradicts its header."""
    shape = idx_shape(path)
    content = np.frombuffer(bytearray(_bytes(path)), np.uint8)[4 + 4 * len(shape) :]
    if len(content) != np.prod(shape, dtype=np.int64):
        raise UserError(f"{path} holds {len(content)} bytes where its header says {shape}: replace or delete it")
    return content.reshape(shape)


def _complete(archive: Archive, root: Path) -> bool:
    return all((root / file).exists() for file in archive.files)


def _fetch(archive: Archive, packed: Path | None, folder: Path) -> None:
    from torchvision import datasets

    if packed:  # torchvision downloads only what is not there
        (folder / packed.name).symlink_to(packed.resolve())
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL)  # torchvision sets none, and would wait for ever
    try:
        for part in (*archive.train, *archive.test):
            getattr(datasets, archive.kind)(folder, download=True, **part)
    finally:
        socket.setdefaulttimeout(before)


def _read(archive: Archive, root: Path) -> tuple[Split, Split]:
    from torchvision import datasets

    kind = getattr(datasets, archive.kind)
    try:
        train, test = ([kind(root, **part) for part in parts] for parts in (archive.train, archive.test))
    except RuntimeError as error:
        files = ", ".join(str(root / file) for file in archive.files)
        raise UserError(f"{archive.name} is damaged (an MD5 is not the published one): delete {files}") from error

    def split(parts: list) -> Split:
        # torchvision's SVHN has the channels first
        images = [p.data if p.data.shape[-1] == 3 else p.data.transpose(0, 2, 3, 1) for p in parts]
        labels = [np.asarray(getattr(part, archive.labels), np.int64) for part in parts]
        return Split(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)))

    return split(train), split(test)


def _unreachable(url: str) -> str | None:
    """Return why `url` cannot be reached, or None if its host answers.

    A thread asks, because the look-up of the host's name has no time limit.
    """
    answer: queue.Queue[str | None] = queue.Queue()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
            answer.put(None)
        except urllib.error.HTTPError:  # the host answers; torchvision will report what it says about the file
            answer.put(None)
        except OSError as error:
            answer.put(str(error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=PATIENCE)
    except queue.Empty:
        return f"no answer within {PATIENCE:g} s"


def _advice(archive: Archive, root: Path, failure: str) -> str:
    official = f" or {archive.packed}" if archive.packed else ""
    return (
        f"no {archive.name} in {root} (looked for {', '.join(archive.files)}{official}, and for a tree "
        f"{archive.name}/{{train,test}}/<class>/<images>), and downloading {archive.url} failed: {failure}. "
        "Copy the official files or such a tree there, or name the folder that holds them by dataset.root=DIR, "
        "in an analysis by --root DIR"
    )


def _bytes(path: Path, count: int = -1) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(count)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): replace or delete it") from error
