"""Run folders as they are on disk, finished or not."""

import csv
import math
import re
from collections.abc import Callable, Sequence
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
# What a file that is cut off, or that another program wrote, may lead to.
UNREADABLE = (yaml.YAMLError, csv.Error, KeyError, AttributeError, ValueError, TypeError, OSError)


@dataclass(frozen=True)
class Run:
    """One run: its settings, where it came from, its result (empty until it ends), and what it is doing now.

    What is in a file that cannot be read is empty, and the file is named in `unread`, with the error.
    """

    folder: RunFolder
    config: dict[str, Any]
    origin: dict[str, Any]
    result: dict[str, Any]
    state: State
    unread: tuple[str, ...] = ()

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
        """metrics.csv, an entry an epoch; empty before the first. Epochs that cannot be read are left out."""
        return self._metrics[0]

    @property
    def broken(self) -> list[str]:
        """The files that could not be read as they should, each with the reason."""
        return [f"{self.folder}/{what}" for what in (*self.unread, *self._metrics[1])]

    @cached_property
    def _metrics(self) -> tuple[list[dict[str, float]], list[str]]:
        epochs, wrong = [], []
        file = self.folder.path / "metrics.csv"
        if not file.is_file():
            return [], []
        try:
            with file.open() as lines:
                for number, epoch in enumerate(csv.DictReader(lines), 1):
                    try:
                        epochs.append({name: float(value) for name, value in epoch.items() if value})
                    except (ValueError, TypeError) as error:  # a word, or more values than columns
                        wrong.append(f"metrics.csv, epoch {number}: {_line(error)}")
        except UNREADABLE as error:
            wrong.append(f"metrics.csv: {_line(error)}")
        more = [f"metrics.csv: {len(wrong) - 1} more epochs"] * (len(wrong) > 1)
        return epochs, wrong[:1] + more


def example(runs: Sequence[Run], key: Callable[[Run], float | None] = lambda run: run.error) -> Run:
    """The run that stands for its row, which has several seeds: the one of median error, or of another `key`.

    Of an even number it is the worse of the two in the middle; while none has ended it is the one that is furthest.
    """
    ended = sorted((run for run in runs if run.error is not None), key=key)
    return ended[len(ended) // 2] if ended else max(runs, key=lambda run: len(run.history))


def folders_in(paths: Sequence[Path]) -> list[RunFolder]:
    """The run folders in and below these folders, each once.

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
    return list(found.values())


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of `folders_in`; raises as it does."""
    return [_read(folder) for folder in folders_in(paths)]


def read_state(folder: RunFolder) -> State:
    """`state_of` the folder; failed, with the reason, where one of the files it is read from is broken."""
    try:
        return state_of(folder)
    except UNREADABLE as error:
        return State(FAILED, reason=f"cannot be read: {_broken_of_state(folder)}: {_line(error)}")


def _read(folder: RunFolder) -> Run:
    """One broken file hides neither the others nor the other rows."""
    unread: dict[str, str] = {}

    def tried(name: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read()
        except UNREADABLE as error:
            unread[name] = f"{name}: {_line(error)}"
            return {}

    config = tried("config.yaml", lambda: _parsed((folder.path / "config.yaml").read_text()))
    origin = tried("origin.json", lambda: _checked_origin(folder))
    result = tried("result.json", lambda: _checked_result(folder))
    if broken := [unread[name] for name in ("config.yaml", "result.json") if name in unread]:
        state = State(FAILED, reason=f"cannot be read: {'; '.join(broken)}")
    elif result.get("status") in (FINISHED, DIVERGED):  # the files of a state need not be read
        state = State(result["status"])
    else:
        state = read_state(folder)
    return Run(folder, config, origin, result, state, tuple(unread.values()))


def _checked_result(folder: RunFolder) -> dict[str, Any]:
    result = folder.result or {}
    if not isinstance(result, dict):
        raise ValueError(f"a {type(result).__name__} instead of an object")
    if result and not isinstance(result.get("status"), str):
        raise ValueError("it holds no status")
    if not isinstance(result.get("test_error"), int | float | None):
        raise ValueError(f"test_error is {result['test_error']!r}, no number")
    return result


def _checked_origin(folder: RunFolder) -> dict[str, Any]:
    origin = folder.origin
    if not isinstance(origin, dict):
        raise ValueError(f"a {type(origin).__name__} instead of an object")
    return origin


def _broken_of_state(folder: RunFolder) -> str:
    names = ("result.json", "status.json", "job.json")
    for name in names:
        try:
            if name == "result.json":
                _checked_result(folder)
            else:
                folder.read_json(name)
        except UNREADABLE:
            return name
    return ", ".join(name for name in names if (folder.path / name).is_file())


def _line(error: Exception) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


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
