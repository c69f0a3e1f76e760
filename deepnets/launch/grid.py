"""Check the runs of a sweep, freeze them into their folders, and pass the folders to the launcher."""

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from deepnets.config.build import build
from deepnets.config.claim import claims_of, claims_on_file
from deepnets.config.identity import identity_hash
from deepnets.config.places import git_commit, home
from deepnets.config.schema import Config, Row
from deepnets.config.sweep_file import SWEEPS
from deepnets.errors import UserError
from deepnets.launch.ending import lines_of
from deepnets.launch.launcher import Launcher
from deepnets.runs.afterwards import inspect
from deepnets.runs.folder import Locked, RunFolder, Unreadable, run_folders
from deepnets.runs.naming import folders_of
from deepnets.system.files import write_atomically
from deepnets.system.printing import print_line
from deepnets.training.checks import check


def launch(rows: list[Row]) -> int:
    """Train every run that is not finished, by the launcher they choose; returns the exit code: 1 when one failed.

    All runs are checked before the first is written down, and all are written down before the first trains.

    Raises:
        UserError: names every run that cannot start.
    """
    folders, first = folders_of(rows), rows[0].config
    launcher: Launcher = build("launcher", first.launcher, first.trusted_targets)
    wrong = {}
    for row, folder in zip(rows, folders, strict=True):
        try:
            _check(row, folder, launcher)
        except UserError as error:
            wrong[folder] = error
    if len(rows) == 1 and wrong:
        raise next(iter(wrong.values()))
    if wrong:
        reasons = lines_of({folder: str(error) for folder, error in wrong.items()})
        raise UserError("\n".join([f"{len(wrong)} of {len(rows)} runs cannot start; none was started", *reasons]))
    to_execute = []
    for row, folder in zip(rows, folders, strict=True):
        try:
            if row.config.overwrite or not folder.is_complete:
                folder.freeze(row.config, _origin(row, folder))
            else:
                for line in inspect(folder):
                    print_line(line)
        except Locked as error:  # another process is running it, and was checked to run the same,
            if row.config.overwrite:  # or else may leave behind what is not this run's
                print_line(f"{error}; skipped")
                continue
        to_execute.append(folder)
    _copy_sweep(rows[0], folders[0])
    return launcher.execute(to_execute, first) if to_execute else 0


def launchable(config: Config, launcher: Launcher) -> Config:
    """The configuration as far as this process can check it, for `deepnets.training.checks`.

    Raises:
        UserError: the launcher does not execute such a run.
    """
    launcher.check(config)
    # What runs elsewhere needs neither the devices of this process nor its data on one of them.
    return config if launcher.in_process else replace(config, device="cpu")


def _check(row: Row, folder: RunFolder, launcher: Launcher) -> None:
    folder.check(row.config)
    claims_of(row.config.sweep)
    if row.config.overwrite or not folder.is_complete:
        check(launchable(row.config, launcher))
    elif folder.config.dataset.get("root") != row.config.dataset.get("root"):
        print_line(f"{folder}: was trained on the data in {folder.config.dataset.get('root')}")


def _copy_sweep(row: Row, folder: RunFolder) -> None:
    """Put the file of somebody's own sweep beside its runs: it says what they are compared with."""
    name = f"{row.choices.get('sweep')}.yaml"
    for place in row.search.places:
        file = Path(place.removeprefix("file://")) / "sweep" / name
        if row.config.sweep and file.is_file():
            write_atomically(folder.path.parents[1] / name, file.read_bytes())


def _origin(row: Row, folder: RunFolder) -> dict[str, Any]:
    return {
        "command": _typed_command(),
        "overrides": list(row.overrides),
        "choices": row.choices,
        "commit": git_commit(),
        "claims": _claims_known(row, folder),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _typed_command() -> str:
    """This command as it was typed, without the path of Python."""
    program, *words = sys.argv
    verb = program.split() if program.startswith("deepnets ") else [os.path.basename(sys.executable), program]
    return shlex.join([*verb, *words])


def _claims_known(row: Row, folder: RunFolder) -> list[str]:
    """The claims, as SWEEP/HASH, that stand in a sweep file before anybody can have seen what this run will show.

    A result counts towards these claims only. A run whose identity has a result already, on record or in the folder
    that it overwrites, will bring the same bits: it knows only the claims that the earlier one knew.
    """
    folders = [SWEEPS, *(Path(place.removeprefix("file://")) / "sweep" for place in row.search.places)]
    seen = _known_on_record(home() / "outputs" / "records").get(identity_hash(row.config), [])
    seen = [*seen, *([earlier.get("claims", [])] if (earlier := folder.completed) else [])]
    on_file = [claim for sweeps in folders for claim in claims_on_file(sweeps)]
    # Runs frozen before claims were named by their sweep noted bare hashes.
    return [claim for claim in on_file if all({claim, claim.rpartition("/")[2]} & {*known} for known in seen)]


@cache
def _known_on_record(records: Path) -> dict[str, list[list[str]]]:
    """The claims that each run on record knew, by the run's identity. Reading 400 records takes 0.05 s."""
    known: dict[str, list[list[str]]] = {}
    for folder in run_folders(records):
        with suppress(Unreadable):  # a report names it
            if result := folder.result:
                known.setdefault(result.get("identity", ""), []).append(result.get("claims", []))
    return known
