"""Run folders as they are on disk, finished or not."""

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from deepnets.config.build import check_types
from deepnets.config.identity import flat, is_execution, upgrade
from deepnets.config.safe_yaml import LONGEST, plain_yaml
from deepnets.results.consistency import Files, contradiction, repetitions
from deepnets.runs.contents import DIVERGED, FAILED, FINISHED, Origin, Result, unpacked
from deepnets.runs.folder import RunFolder, folders_in
from deepnets.runs.status import UNREADABLE, State, in_a_line, read_states
from deepnets.system.files import LONGEST_METRICS, read_text

_is_execution = cache(is_execution)


@dataclass(frozen=True)
class Run:
    """One run: its settings, where it came from, its result (empty until it ends), and what it is doing now.

    What is in a file that cannot be read is empty, and the file is named in `unread`, with the error. Files that
    contradict each other give neither result nor history, and `contradiction` says how.
    """

    folder: RunFolder
    config: dict[str, Any]
    origin: dict[str, Any]
    result: dict[str, Any]
    state: State
    unread: tuple[str, ...] = ()
    contradiction: str = ""

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
        """`axes` of the table, empty for single runs."""
        return self.config.get("sweep") or {}

    @property
    def error(self) -> float | None:
        """Final test error in percent, infinite when the run diverged, None until it ends with one."""
        if self.state.name == DIVERGED:
            return math.inf
        return self.result.get("test_error") if self.state.name == FINISHED else None

    @property
    def options(self) -> dict[str, Any]:
        """The option chosen in each group, where the run noted it."""
        chosen = self.origin.get("choices") or {}
        return {group: option for group, option in chosen.items() if not group.startswith("hydra/")}

    @cached_property
    def test_wrong(self) -> np.ndarray | None:
        """Which test images the run got wrong, (images,) bool; None where that was not noted.

        They were noted after the last completed epoch, by one view: not where `error` is of another epoch or view.
        """
        if "test_right" not in self.result or self.error is None:
            return None
        wrong = ~unpacked(self.result["test_right"], self.result["data"]["test"])
        return wrong if math.isclose(100 * wrong.mean(), self.error, abs_tol=1e-3) else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What makes the run what it is, by dotted key, apart from its seed."""
        return {key: value for key, value in flat(self.config).items() if key != "seed" and not _is_execution(key)}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """metrics.csv, an entry an epoch; empty before the first. Epochs that cannot be read are left out."""
        return [] if self.contradiction else self._metrics[0]

    @cached_property
    def files(self) -> Files | None:
        """The files that must agree; None while the run has not ended."""
        if self.state.name not in (FINISHED, DIVERGED):
            return None
        is_readable = (self.folder.path / "metrics.csv").exists() and not self._metrics[1]
        return Files(self.folder, self.config, self.result, self.history if is_readable else None)

    @property
    def broken(self) -> list[str]:
        """The files that could not be read as they should, each with the reason."""
        return [f"{self.folder}/{what}" for what in (*self.unread, *self._metrics[1])]

    @cached_property
    def _metrics(self) -> tuple[list[dict[str, float]], list[str]]:
        epochs, wrong = [], []
        file = self.folder.path / "metrics.csv"
        try:
            lines = read_text(file, LONGEST_METRICS).splitlines()
            for number, epoch in enumerate(csv.DictReader(lines), 1):
                try:
                    epochs.append({name: float(value) for name, value in epoch.items() if value})
                except (ValueError, TypeError) as error:  # a word, or more values than columns
                    wrong.append(f"metrics.csv, epoch {number}: {in_a_line(error)}")
        except FileNotFoundError:
            return [], []
        except UNREADABLE as error:
            wrong.append(f"metrics.csv: {in_a_line(error)}")
        more = [f"metrics.csv: {len(wrong) - 1} more epochs"] * (len(wrong) > 1)
        return epochs, wrong[:1] + more


def example(runs: Sequence[Run], key: Callable[[Run], float] | None = None) -> Run:
    """The run that stands for its row, which has several seeds: the one of median error, or of another `key`.

    Of an even number it is the worse of the two in the middle; while none has ended it is the one that is furthest.
    """
    errors = [(run.error, run) for run in runs if run.error is not None]
    ended = [run for _, run in sorted(errors, key=lambda pair: key(pair[1]) if key else pair[0])]
    return ended[len(ended) // 2] if ended else max(runs, key=lambda run: len(run.history))


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of `folders_in`; raises as it does."""
    runs = [_read(folder) for folder in folders_in(paths)]
    wrong = {run.folder: words for run in runs if run.files and (words := contradiction(run.files))}
    wrong |= repetitions([run.files for run in runs if run.files and run.folder not in wrong])
    return [_without_result(run, wrong[run.folder]) if run.folder in wrong else run for run in runs]


def _without_result(run: Run, words: str) -> Run:
    """The run with what contradicts what, and without the numbers, of which nobody knows the right one."""
    return replace(run, result={}, state=State(FAILED, reason="contradicts itself"), contradiction=words)


def _read(folder: RunFolder) -> Run:
    """One broken file hides neither the others nor the other rows."""
    unread: dict[str, str] = {}

    def tried(name: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read()
        except UNREADABLE as error:
            unread[name] = f"{name}: {in_a_line(error)}"
            return {}

    config = tried("config.yaml", lambda: _parsed(read_text(folder.path / "config.yaml", LONGEST)))
    origin = tried(Origin.FILE, lambda: folder.origin.model_dump(exclude_unset=True))
    result = tried(Result.FILE, lambda: folder.result.model_dump(exclude_unset=True) if folder.result else {})
    if broken := [unread[name] for name in ("config.yaml", "result.json") if name in unread]:
        state = State(FAILED, reason=f"cannot be read: {'; '.join(broken)}")
    elif result.get("status") in (FINISHED, DIVERGED):  # the files of a state need not be read
        state = State(result["status"])
    else:
        state = read_states([folder])[folder]  # which asks SLURM once about all that are queued
    return Run(folder, config, origin, result, state, tuple(unread.values()))


def _parsed(text: str) -> dict[str, Any]:
    """A configuration, key by key: rows share most of them, and what is known is not parsed again."""
    config: dict[str, Any] = {}
    for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        config |= _part(part)
    if not config:
        raise ValueError("config.yaml is empty")
    config = upgrade(config)
    check_types(config)
    return config


@cache
def _part(text: str) -> dict[str, Any]:
    part = plain_yaml(text) or {}
    if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
        raise ValueError("it holds no settings by name")
    return part
