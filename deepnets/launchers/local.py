"""Rows one after the other, in this process: imports and data are shared."""

import sys
import traceback
from dataclasses import dataclass
from typing import ClassVar

from deepnets.config import Config
from deepnets.errors import UserError
from deepnets.folder import Locked, RunFolder
from deepnets.launchers.ending import print_ending
from deepnets.log import describe_result
from deepnets.run import run
from deepnets.status import state_of


@dataclass(frozen=True)
class Local:
    """Trains the rows in their order; one that fails does not stop the others unless `fail_fast` says so."""

    in_process: ClassVar[bool] = True

    def check(self, config: Config) -> None:
        """Nothing more than what every run needs."""

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Returns 1 when a row failed.

        Raises:
            Interrupted: a signal came; the row in flight is saved and the others do not start.
        """
        failed: dict[RunFolder, str] = {}
        elsewhere: set[RunFolder] = set()
        for number, folder in enumerate(folders, start=1):
            heading = f"[{number}/{len(folders)}] {folder}" if len(folders) > 1 else str(folder)
            if folder.is_complete:
                print(f"{heading}: already {describe_result(folder.result)}; nothing to train", flush=True)
                continue
            print(heading, flush=True)
            try:
                print(f"{folder}: {describe_result(run(folder, config.trusted_targets))}", flush=True)
            except Locked as error:
                print(f"{error}; left alone", flush=True)
                elsewhere.add(folder)
            except Exception as error:
                if len(folders) == 1:
                    raise
                if isinstance(error, UserError):
                    print(f"error: {error}", file=sys.stderr)
                else:
                    traceback.print_exception(error)
                failed[folder] = state_of(folder).reason or f"{type(error).__name__}: {error}"
                if config.fail_fast:
                    break
        return print_ending(folders, failed, elsewhere)
