"""Finds and copies runs that another sweep has trained.

One identity is one experiment, even if the rows' names differ.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from deepnets.config.identity import identity_hash
from deepnets.config.schema import Row
from deepnets.errors import UserError
from deepnets.runs.code import code_of, copy_code, is_by
from deepnets.runs.contents import FINISHED, Origin, Result, Unreadable
from deepnets.runs.folder import Locked, RunFolder, run_folders
from deepnets.runs.owner import OWNER
from deepnets.system.files import write_atomically

OWN_FILES = ("config.yaml", Origin.FILE, Result.FILE, ".lock")  # the copy writes its own; the result comes last


def twins_of(rows: Sequence[Row], folders: Sequence[RunFolder]) -> dict[RunFolder, RunFolder]:
    """Find, for each run that is not complete, a finished run of the same identity under the same `output_root`.

    The same version of the user's own code must have trained it. If there are several such runs, it takes the first by
    name. Runs without such a run are left out.
    """
    twins = {}
    for row, folder in zip(rows, folders, strict=True):
        if folder.is_complete:
            continue
        finished = _finished(Path(row.config.output_root)).get(identity_hash(row.config), [])
        others = [other for other in finished if other.path.resolve() != folder.path.resolve()]
        code = code_of(row.config) if others else None
        if equal := [other for other in others if is_by(other, code)]:
            twins[folder] = equal[0]
    return twins


def reuse(row: Row, folder: RunFolder, twin: RunFolder) -> None:
    """Copy the finished run `twin` into the folder of a row of the same identity, and note where it comes from.

    The copy keeps the claims of `twin`, which were registered before `twin` was trained.

    Raises:
        Locked: another process trains the row, or has trained it. OSError: a file cannot be copied.
    """
    changes = {"copied_from": str(twin), "choices": row.choices, "overrides": list(row.overrides)}
    origin = twin.origin.model_copy(update=changes)
    folder.freeze(row.config, origin)
    copy_code(twin, folder.grid)
    with folder.hold():
        if folder.is_complete or folder.has_begun:
            raise Locked(folder)
        for item in sorted(twin.path.iterdir()):
            if item.name not in OWN_FILES and not item.name.startswith(OWNER) and item.is_file():
                shutil.copyfile(item, folder.path / item.name, follow_symlinks=False)
        # Copy the result last: if this process is killed before, the run does not look finished.
        write_atomically(folder.path / Result.FILE, (twin.path / Result.FILE).read_bytes())


@cache
def _finished(root: Path) -> dict[str, list[RunFolder]]:
    """Return the finished runs under `root` by identity, without records, which have no origin.json."""
    runs: dict[str, list[RunFolder]] = {}
    for folder in run_folders(root):
        with suppress(Unreadable):
            result = folder.result
            if result and result.status == FINISHED and result.identity and folder.origin.command:
                runs.setdefault(result.identity, []).append(folder)
    return runs


@cache
def claims_below(root: Path, seed: int) -> dict[str, list[list[str]]]:
    """Return the list of claims of each run or record of a seed in a folder of outputs, by the run's identity.

    The runs have ended, or have begun, so that their errors could be seen.
    """
    claims: dict[str, list[list[str]]] = {}
    for depth in ("*/*", "*/*/*"):  # records, and runs in a folder of their own below the root, lie deeper
        for file in root.glob(f"{depth}/seed{seed}/config.yaml"):
            folder = RunFolder(file.parent)
            with suppress(UserError):  # reports name a folder that cannot be read
                if result := folder.completed:
                    claims.setdefault(result.identity or "", []).append(result.claims)
                elif folder.has_begun:
                    claims.setdefault(identity_hash(folder.config), []).append(folder.origin.claims)
    return claims
