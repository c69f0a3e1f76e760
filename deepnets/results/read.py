"""Run folders as they are on disk, finished or not."""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from deepnets.config import is_execution
from deepnets.errors import UserError
from deepnets.folder import RunFolder, flat, run_folders
from deepnets.status import DIVERGED, FAILED, FINISHED, State, state_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where PyYAML has it
_is_execution = cache(is_execution)


@dataclass(frozen=True)
class Run:
    """One run: its settings, where it came from, its result (empty until it ends), and what it is doing now."""

    folder: RunFolder
    config: dict[str, Any]
    origin: dict[str, Any]
    result: dict[str, Any]
    state: State

    @property
    def row(self) -> str:
        """The row of the table, as its folder is named."""
        return self.folder.path.parent.name

    @property
    def grid(self) -> Path:
        """The folder of the table."""
        return self.folder.path.parent.parent

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def sweep(self) -> dict[str, Any]:
        """`axes` and `reported` of the table, empty for single runs."""
        return self.config.get("sweep") or {}

    @property
    def error(self) -> float | None:
        """Final test error in percent, infinite when the run diverged, None until it ends with one."""
        if self.state.name == DIVERGED:
            return math.inf
        return self.result.get("test_error") if self.state.name == FINISHED else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What makes the run what it is, by dotted key, apart from its seed."""
        return {key: value for key, value in flat(self.config).items() if key != "seed" and not _is_execution(key)}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """metrics.csv, an entry an epoch; empty before the first."""
        file = self.folder.path / "metrics.csv"
        if not file.is_file():
            return []
        with file.open() as lines:
            return [{name: float(value) for name, value in epoch.items() if value} for epoch in csv.DictReader(lines)]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in and below these folders, each once.

    Raises:
        UserError: a folder is not there, or has no run in it.
    """
    found: dict[Path, RunFolder] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; give a table's folder, as in outputs/<sweep>, or a run's")
        below = run_folders(path.resolve())
        if not below:
            raise UserError(f"{path}: no run in it (a run folder holds a config.yaml)")
        found |= {folder.path: folder for folder in below}
    return [_read(folder) for folder in found.values()]


def _read(folder: RunFolder) -> Run:
    try:
        config = _parsed((folder.path / "config.yaml").read_text())
        result = folder.result or {}
        # A finished run's status is in its result: the files of a state need not be read.
        done = result.get("status") in (FINISHED, DIVERGED)
        return Run(folder, config, folder.origin, result, State(result["status"]) if done else state_of(folder))
    except (yaml.YAMLError, ValueError, TypeError) as error:  # one broken file must not hide the other rows
        return Run(folder, {}, {}, {}, State(FAILED, reason=f"cannot be read: {' '.join(str(error).split())}"))


def _parsed(text: str) -> dict[str, Any]:
    """A configuration, key by key: rows share most of them, and what is known is not parsed again."""
    config: dict[str, Any] = {}
    for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        config |= _part(part)
    if not config:
        raise ValueError("config.yaml is empty")
    return config


@cache
def _part(text: str) -> dict[str, Any]:
    return yaml.load(text, LOADER) or {}
