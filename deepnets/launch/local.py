"""Rows one after the other, or several at once as one batched network, in this process: imports and data are shared."""

import sys
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.launch.ending import lines_of, print_ending
from deepnets.runs.console import describe_result, print_line
from deepnets.runs.execute import run
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.grouping import groups_of
from deepnets.runs.status import state_of
from deepnets.runs.together import run_together
from deepnets.training.hardware import find_device
from deepnets.training.step import check_device


@dataclass(frozen=True)
class Local:
    """Trains the rows in their order, `stacked` at once where their networks are equal.

    A row that fails does not stop the others unless `fail_fast` says so.
    """

    in_process: ClassVar[bool] = True

    stacked: int

    def check(self, config: Config) -> None:
        """Whether the device of a row executes its steps.

        Raises:
            UserError: it does not, or `stacked` is out of range.
        """
        if self.stacked < 1:
            raise UserError(f"launcher.stacked={self.stacked}: must be at least 1")
        check_device(config.step.value, find_device(config.device))

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Returns 1 when a row failed.

        Raises:
            Interrupted: a signal came; the rows in flight are saved and the others do not start.
        """
        execution = _Execution(folders, config, self.stacked)
        execution.run()
        return print_ending(folders, execution.failed, execution.elsewhere)


@dataclass
class _Execution:
    """The rows that are to be trained, and what became of those that were not."""

    folders: list[RunFolder]
    config: Config
    stacked: int
    failed: dict[RunFolder, str] = field(default_factory=dict)
    elsewhere: set[RunFolder] = field(default_factory=set)

    def run(self) -> None:
        left = [folder for folder in self.folders if not folder.is_complete]
        groups, alone = groups_of(left, self.stacked, self.config.trusted_targets)
        if left and len(left) == len(alone):
            print_line("\n".join([f"launcher.stacked={self.stacked}: every run is trained alone", *lines_of(alone)]))
        complete = [[folder] for folder in self.folders if folder.is_complete]
        waiting = deque(sorted(complete + groups, key=lambda group: self.folders.index(group[0])))
        while waiting and not (self.failed and self.config.fail_fast):
            group = waiting.popleft()
            if len(group) == 1:
                self._train(group[0])
            else:
                waiting.extendleft(reversed(self._train_together(group)))

    def _train(self, folder: RunFolder) -> None:
        heading = self._heading(folder)
        if folder.is_complete:
            print_line(f"{heading}: already {describe_result(folder.result)}; nothing to train")
            return
        print_line(heading)
        try:
            self._note(folder, run(folder, self.config.trusted_targets))
        except Exception as error:
            if len(self.folders) == 1 and not isinstance(error, Locked):
                raise
            self._note(folder, error)

    def _train_together(self, group: list[RunFolder]) -> list[list[RunFolder]]:
        """Those that were left out, to be trained alone."""
        print_line("\n".join([f"{len(group)} runs at once", *map(self._heading, group)]))
        endings = run_together(group, self.config.trusted_targets)
        for folder, ending in endings.items():
            self._note(folder, ending)
        return [[folder] for folder in group if folder not in endings]

    def _heading(self, folder: RunFolder) -> str:
        return (
            f"[{self.folders.index(folder) + 1}/{len(self.folders)}] {folder}" if len(self.folders) > 1 else str(folder)
        )

    def _note(self, folder: RunFolder, ending: dict[str, Any] | Exception) -> None:
        if isinstance(ending, Locked):
            print_line(f"{ending}; skipped")
            self.elsewhere.add(folder)
            return
        if not isinstance(ending, Exception):
            print_line(f"{folder}: {describe_result(ending)}")
            return
        if isinstance(ending, UserError):
            print(f"error: {ending}", file=sys.stderr)
        else:
            traceback.print_exception(ending)
        self.failed[folder] = state_of(folder).reason or f"{type(ending).__name__}: {ending}"
