"""Check the runs of a sweep, freeze them into their folders, and pass the folders to the launcher."""

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepnets.command import called
from deepnets.config.build import build
from deepnets.config.claim import Claim, claims_of
from deepnets.config.places import git_commit
from deepnets.config.schema import Config, Row
from deepnets.config.sweep_file import SWEEPS, sweep_of
from deepnets.errors import UserError
from deepnets.launch.ending import lines_of
from deepnets.launch.launcher import Launcher
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.naming import folders_of
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
                folder.freeze(row.config, _origin(row))
        except Locked as error:  # another process is running it, and was checked to run the same,
            if row.config.overwrite:  # or else may leave behind what is not this run's
                print_line(f"{error}; skipped")
                continue
        to_execute.append(folder)
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


def _origin(row: Row) -> dict[str, Any]:
    return {
        "command": shlex.join(called()),
        "overrides": list(row.overrides),
        "choices": row.choices,
        "commit": git_commit(),
        "claims": [claim.hash for claim in [*claims_of(row.config.sweep), *_claims_elsewhere(row)]],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _claims_elsewhere(row: Row) -> list[Claim]:
    """What the files of other sweeps claim about rows of the row's sweep."""
    if not row.config.sweep:
        return []
    prefix = f"{row.choices['sweep']}/"
    folders = [SWEEPS, *(Path(place.removeprefix("file://")) / "sweep" for place in row.search.places)]
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    naming = [file for file in files if prefix.encode() in file.read_bytes()]  # YAML takes a hundred times as long
    return [claim for file in naming for claim in claims_of(sweep_of(file)) if claim.second.startswith(prefix)]
