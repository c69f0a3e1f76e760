"""List, and with --yes remove, files that nobody needs: checkpoints of finished runs, unused code, damaged files."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deepnets.command import Parser
from deepnets.errors import UserError
from deepnets.runs.code import FOLDER, HASH, is_stored
from deepnets.runs.contents import FINISHED, Origin, Unreadable
from deepnets.runs.folder import CHECKPOINTS, WEIGHTS, Locked, RunFolder, folders_in
from deepnets.runs.weights import kept_files, read_weights, write_weights
from deepnets.system.printing import print_line

CHECKPOINTS_KIND = "checkpoints of finished runs"
KEPT_KIND = "weights of chosen iterations of finished runs"
COPY = r"(deepnets-)?[0-9a-f]{16}(\.[0-9a-f]+\.new)?"  # names of copies; a `.code` of another program holds other names
LEFT_BEHIND = ("*.damaged", "*.new")  # damaged files that a run has renamed; new files of a killed process


def main() -> int:
    """Clean the folders that the command line names; returns the exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps, or of single runs")
    parser.add_argument("--yes", action="store_true", help="remove the listed files")
    parser.add_argument(
        "--keep-weights",
        action="store_true",
        help="keep each run's last weights as safetensors, and weights.N.safetensors",
    )
    arguments = parser.parse_args()
    return clean(arguments.folders, remove=arguments.yes, keep_weights=arguments.keep_weights)


@dataclass(frozen=True)
class Removable:
    """Files or folders of one kind that nobody needs, and the run that they belong to, if any."""

    kind: str
    paths: tuple[Path, ...]
    run: RunFolder | None = None

    @property
    def size(self) -> int:
        """Size of all paths in bytes."""
        return sum(map(_size, self.paths))


def clean(paths: Sequence[Path], *, remove: bool, keep_weights: bool) -> int:
    """List the files below `paths` that nobody needs; with `remove`, remove them.

    With `keep_weights`, it writes the last weights of each run as `weights.safetensors` before it removes the run's
    checkpoints, and it leaves `weights.N.safetensors`. Returns 1 if a file cannot be removed, else 0.

    Raises:
        UserError: a folder is missing, or has no run in it.
    """
    folders = folders_in(paths)
    removables = [each for each in _removables(folders, paths) if not (keep_weights and each.kind == KEPT_KIND)]
    for kind in dict.fromkeys(each.kind for each in removables):
        same = [each for each in removables if each.kind == kind]
        print_line(f"{in_bytes(sum(each.size for each in same)):>10}  {kind} ({sum(len(x.paths) for x in same)})")
    total = sum(each.size for each in removables)
    if not removables:
        print_line(f"nothing to remove; {in_bytes(size_of(folders))} in {len(folders)} runs")
        return 0
    if not remove:
        line = f"{in_bytes(total)} of {in_bytes(size_of(folders))} can be removed; add --yes to do it"
        without = ", and --keep-weights to keep weights as safetensors: without them no network can be loaded"
        print_line(line + ("; weights stay, as safetensors" if keep_weights else without))
        return 0
    unwritten = [folder.path / WEIGHTS for folder in folders if not (folder.path / WEIGHTS).exists()]
    errors = [error for each in removables if (error := _remove(each, keep_weights))]
    for error in errors:
        print_line(f"kept: {error}")
    removed = total - sum(each.size for each in removables)
    written = sum(map(_size, unwritten))
    print_line(f"removed {in_bytes(removed)}" + (f"; the weights kept take {in_bytes(written)}" if written else ""))
    return 1 if errors else 0


def size_of(folders: Sequence[RunFolder]) -> int:
    """Return the bytes that these runs and the copies of code beside them take."""
    beside = {folder.grid / FOLDER for folder in folders}
    return sum(_size(path) for path in [*beside, *(folder.path for folder in folders)])


def disk_line(paths: Sequence[Path]) -> str:
    """Return a line with the bytes of the runs below `paths`, and with the bytes of the finished runs' checkpoints."""
    folders = folders_in(paths)
    removables = [each for folder in folders for each in _removables_of(folder)]
    checkpoints = sum(each.size for each in removables if each.kind == CHECKPOINTS_KIND)
    line = f"on disk  {in_bytes(size_of(folders))}"
    return f"{line}; {in_bytes(checkpoints)} are {CHECKPOINTS_KIND} (deepnets clean)" if checkpoints else line


def in_bytes(size: float) -> str:
    """Format a size in the largest unit in which it is at least 1, such as 1.2 GB."""
    units = ("B", "kB", "MB", "GB")
    for unit in units:
        if size < 1000:
            return f"{size:.{int(unit != 'B')}f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _removables(folders: Sequence[RunFolder], paths: Sequence[Path]) -> Iterator[Removable]:
    """Yield the files of these runs that nobody needs, and the unused copies of code below `paths`."""
    for folder in folders:
        yield from _removables_of(folder)
    sweeps = {folder.grid for folder in folders}
    for sweep in sorted(sweep for sweep in sweeps if any(sweep.is_relative_to(path.resolve()) for path in paths)):
        copies = sorted((sweep / FOLDER).glob("*")) if not (sweep / FOLDER).is_symlink() else []
        copies = [copy for copy in copies if re.fullmatch(COPY, copy.name) and (copy.is_symlink() or is_stored(copy))]
        runs = folders_in([sweep])
        noted = set[str]().union(*(run.code_hashes for run in runs))
        unused = [copy for copy in copies if copy.name not in noted and not _is_awaited(copy, runs)]
        if unused:
            yield Removable("copies of code that no run names", tuple(unused))


def _removables_of(folder: RunFolder) -> Iterator[Removable]:
    with suppress(Unreadable):
        result = folder.result
        checkpoints = tuple(path for name in CHECKPOINTS if (path := folder.path / name).is_file())
        if result and result.status == FINISHED and checkpoints:
            yield Removable(CHECKPOINTS_KIND, checkpoints, folder)
        if result and result.status == FINISHED and (kept := tuple(kept_files(folder.path).values())):
            yield Removable(KEPT_KIND, kept, folder)
    if left := tuple(path for pattern in LEFT_BEHIND for path in sorted(folder.path.glob(pattern))):
        yield Removable("damaged or incomplete files", left, folder)


def _is_awaited(copy: Path, runs: Sequence[RunFolder]) -> bool:
    """Return whether a queued job may still execute this copy of deepnets."""
    return copy.name.startswith("deepnets-") and not all(run.is_complete for run in runs)


def _remove(removable: Removable, keep_weights: bool) -> str | None:
    """Remove the files; returns None, or the reason if one of them cannot be removed."""
    try:
        if removable.run is None:
            for path in removable.paths:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                if re.fullmatch(HASH, path.name):  # from the empty folder, reports see that this version had been here
                    path.mkdir()
            return None
        with removable.run.hold():
            if removable.kind == CHECKPOINTS_KIND:
                if keep_weights and not (removable.run.path / WEIGHTS).exists():
                    write_weights(read_weights(removable.run.path, builds=False), removable.run.path)
                if origin := Origin.read(removable.run.path):  # `inspect` then does not call them missing
                    origin.model_copy(update={"cleaned": True}).write(removable.run.path)
            for path in removable.paths:
                path.unlink()
    except (Locked, UserError, OSError) as error:
        return str(error)
    return None


def _size(path: Path) -> int:
    if path.is_symlink() or not path.exists():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(os.lstat(os.path.join(above, name)).st_size for above, _, names in os.walk(path) for name in names)
