"""The decoded images of a folder in one file, so that the second start does not decode again."""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch

from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.system.files import own_cache


def fingerprint(files: Iterable[tuple[str, int, int]], form: str) -> str:
    """Hash of (path, bytes, mtime in ns) of each file and of the form they are decoded to; order does not count."""
    lines = [form, *sorted(f"{path}\t{size}\t{changed}" for path, size, changed in files)]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def cached(folder: Path, name: str, key: str, build: Callable[[], tuple[Split, Split]]) -> tuple[Split, Split]:
    """(train, test) from the file `name` in `folder` if it was written under `key`, else from `build`, then written.

    Where `folder` cannot be written the file lies in the user's cache folder. A file that is outdated or damaged (zip
    checksums) is built again. Whole files are renamed into place, so several processes may build at once.
    """
    places = [folder / name]
    with suppress(UserError):  # then only a data folder that can be written spares the next start the work
        mine = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        places.append(own_cache() / f"{mine}-{name}")
    for place in places:
        if (found := _load(place, key)) is not None:
            return found
    splits = build()
    for place in places:
        if _save(place, key, splits):
            break
    return splits


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
    """False where the place cannot be written or is full; nothing is left there then."""
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
