"""Runs that another sweep has trained already: equal identity is one experiment, whatever a row is called."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from deepnets.config.identity import identity_hash
from deepnets.config.schema import Row
from deepnets.runs.contents import FINISHED, Origin, Result, Unreadable
from deepnets.runs.folder import Locked, RunFolder, run_folders
from deepnets.runs.owner import OWNER
from deepnets.system.files import write_atomically

OWN_FILES = ("config.yaml", Origin.FILE, Result.FILE, ".lock")  # those that are not copied, or last


def twins_of(rows: Sequence[Row], folders: Sequence[RunFolder]) -> dict[RunFolder, RunFolder]:
    """By each folder that has no result, a finished one of another sweep under the same `output_root`, if there is one.

    Where several are, it is the first by name.
    """
    twins = {}
    for row, folder in zip(rows, folders, strict=True):
        if folder.is_complete:
            continue
        there = _finished(Path(row.config.output_root)).get(identity_hash(row.config), [])
        others = [other for other in there if other.path.resolve() != folder.path.resolve()]
        if others:
            twins[folder] = others[0]
    return twins


def reuse(row: Row, folder: RunFolder, twin: RunFolder) -> None:
    """Copy the finished run `twin` into the folder of a row of the same identity, with a note of where it comes from.

    Its claims stay those that were registered before it was trained.

    Raises:
        Locked: another process trains the row. OSError: it cannot be copied.
    """
    own = {"choices": row.choices, "overrides": list(row.overrides)}
    origin = twin.origin.model_copy(update={"copied_from": str(twin), **own})
    folder.freeze(row.config, origin)
    with folder.hold():
        if folder.is_complete or folder.has_begun:
            raise Locked(folder)
        for item in sorted(twin.path.iterdir()):
            if item.name not in OWN_FILES and not item.name.startswith(OWNER) and item.is_file():
                shutil.copyfile(item, folder.path / item.name, follow_symlinks=False)
        # The result last: a kill in between leaves a run that is not finished.
        write_atomically(folder.path / Result.FILE, (twin.path / Result.FILE).read_bytes())


@cache
def _finished(root: Path) -> dict[str, list[RunFolder]]:
    """The finished runs under `root` by their identity; records and copies are left out."""
    found: dict[str, list[RunFolder]] = {}
    for folder in run_folders(root):
        with suppress(Unreadable):
            result = folder.result
            if result and result.status == FINISHED and result.identity and folder.origin.command:
                found.setdefault(result.identity, []).append(folder)
    return found
