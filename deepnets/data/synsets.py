"""ImageNet's numbers of its classes, and images without labels, as its test server wants and has them."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io
import torch

from deepnets.data.image_files import ImageFiles, files_in
from deepnets.errors import UserError

KIT = "ILSVRC2012_devkit_t12"
META = f"{KIT}/data/meta.mat"


def numbers_of(root: Path, classes: Sequence[str]) -> list[int]:
    """ILSVRC2012_ID of each class by its WordNet name, from the development kit in `root`, packed or not.

    Raises:
        UserError: there is no such kit, or it does not know a class.
    """
    try:
        if (file := root / META).is_file():
            content = file.read_bytes()
        else:
            with tarfile.open(root / f"{KIT}.tar.gz") as packed:
                member = packed.extractfile(META)
                content = member.read() if member else b""
        synsets = scipy.io.loadmat(io.BytesIO(content), squeeze_me=True)["synsets"]
        pairs = zip(synsets["WNID"], synsets["ILSVRC2012_ID"], strict=True)
        numbers = {str(name): int(number) for name, number in pairs}
    except Exception as error:  # damage shows as nearly anything in the library
        raise UserError(
            f"{root}: the server's numbers of the classes are in {KIT}.tar.gz, put it there ({error})"
        ) from error
    if unknown := [name for name in classes if name not in numbers]:
        raise UserError(f"{root}: {KIT} knows no class {unknown[0]}; the server is of ImageNet's classes")
    return [numbers[name] for name in classes]


def unlabelled(folder: Path) -> ImageFiles:
    """The images that lie in `folder` itself, sorted by name; their labels are 0."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one that holds images")
    names: np.ndarray = files_in(folder)
    return ImageFiles(folder, ("",), names, torch.zeros(len(names), dtype=torch.int64))
