"""Checkpoints that survive kills, full disks and damage: the last one and the one before it."""

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from deepnets.errors import UserError, first_line
from deepnets.system.files import flush_folder, fresh, new_name, opened

LAST = "checkpoint.pt"
PREVIOUS = "checkpoint.previous.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` as the last checkpoint; the one before becomes the previous one.

    The file appears complete or not at all. Its zip container holds a checksum of every tensor; of one that shares its
    memory, only its own part is written.

    Raises:
        UserError: it cannot be written (a full disk); the checkpoints that were there still are.
    """
    try:
        with fresh(folder / LAST) as file:
            torch.save(tree_map_only(Tensor, _own, state), file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write of its archive as RuntimeError
        reason = error if isinstance(error, OSError) else f"is the disk full? {first_line(error)}"
        raise UserError(f"{folder / LAST}: cannot be written ({reason}); what was there before is intact") from error
    if os.path.lexists(folder / LAST):
        (folder / LAST).replace(folder / PREVIOUS)
    new_name(folder / LAST).replace(folder / LAST)
    flush_folder(folder)


def load(
    folder: Path, malformed: Callable[[Any], str | None] = lambda state: None
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """The newest intact checkpoint (tensors on the CPU), or None; and what is wrong with each damaged file.

    `malformed` says what of a state that can be read is not as it must be, or None.

    Raises:
        OSError: a file is there and cannot be read, which says nothing about what it holds.
    """
    damaged: dict[str, str] = {}
    for name in (LAST, PREVIOUS):
        if not os.path.lexists(folder / name):
            continue
        damage = damage_of(folder / name)
        if damage is None:
            state = torch.load(folder / name, map_location="cpu", weights_only=True)
            if (damage := malformed(state)) is None:
                return state, damaged
        damaged[name] = damage
    return None, damaged


def _own(tensor: Tensor) -> Tensor:
    """torch.save writes the whole memory behind a view."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def damage_of(file: Path) -> str | None:
    """What is wrong with the zip container, a checksum or the kind of content in it; None when all is well."""
    try:
        opened(file).close()
    except ValueError as error:  # a link, a folder, a pipe
        return str(error)
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
        # torch's own reader is stricter about headers.
        if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(file):
            return f"it names {foreign[0]}, which is no data of a run"
    except MemoryError:
        raise
    except Exception as error:  # damage shows as nearly any exception of the two readers
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which a damaged length leads to
            raise
        return f"{type(error).__name__}: {error}"
    return None if broken is None else f"the checksum of {broken} differs"
