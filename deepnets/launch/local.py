"""The launcher `local`: executes runs in this process, one after the other or several as one batched network.

The runs share the imported modules and the data in memory.
"""

import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from deepnets.config.schema import Config
from deepnets.data.loading import check_decoder
from deepnets.errors import UserError
from deepnets.launch.grid import Retry, Tally, failed_before, lines_by_reason
from deepnets.runs.execute import run
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.status import read_state
from deepnets.runs.together import Ending, groups_of, run_together
from deepnets.system.printing import print_error, print_line
from deepnets.system.ranges import Size
from deepnets.training.hardware import find_device
from deepnets.training.step import check_device


@dataclass(frozen=True)
class Local:
    """Trains the runs in order, up to `stacked` at once if their networks allow it.

    A run that fails does not stop the others unless `fail_fast` is set.
    """

    in_process: ClassVar[bool] = True

    stacked: Size
    retry: Retry | None

    def check(self, config: Config) -> None:
        """Check that the device of a run can execute its steps and, if the run asks for it, decode its images.

        Raises:
            UserError: the device cannot.
        """
        check_device(config.step, device := find_device(config.device))
        check_decoder(config.dataset.get("decoder", "cpu"), device)

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Accept any number of runs."""

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Train the runs that are not complete; returns 1 if one failed, else 0.

        Raises:
            Interrupted: a signal came; the runs in flight are saved and the others do not start.
        """
        folders = list(runs)
        config = runs[folders[0]]
        tally = Tally(folders, before=failed_before(folders, self.retry))
        left = [folder for folder in folders if not folder.is_complete and folder not in tally.before]
        groups, alone = groups_of(left, self.stacked)
        if left and len(left) == len(alone):
            print_line(
                "\n".join([f"launcher.stacked={self.stacked}: every run is trained alone", *lines_by_reason(alone)])
            )
        tally.begin()
        waiting = deque(groups)
        while waiting and not (tally.failed and config.fail_fast):
            group = waiting.popleft()
            if len(group) > 1:
                print_line("\n".join([f"{len(group)} runs at once", *map(tally.heading, group)]))
                endings = run_together(group)
                tally.end(len(endings))
                waiting.extendleft([folder] for folder in reversed(group) if folder not in endings)
                _note(endings, tally)
            else:
                print_line(tally.heading(group[0]))
                _note({group[0]: _alone(group[0], config, len(folders) == 1)}, tally)
                tally.end()
        return tally.print()


def _alone(folder: RunFolder, config: Config, is_only: bool) -> Ending:
    """Execute a run; returns its error, so that others go on. If the run is the only one, raises it unless `Locked`."""
    try:
        return run(folder)
    except Exception as error:
        if is_only and not isinstance(error, Locked):
            raise
        return error


def _note(endings: Mapping[RunFolder, Ending], tally: Tally) -> None:
    """Print how runs ended, and count those that failed."""
    for folder, ending in endings.items():
        if isinstance(ending, Locked):
            tally.skip(folder, ending)
        elif isinstance(ending, Exception):
            if isinstance(ending, UserError):
                print_error(f"error: {ending}")
            else:
                print_error("".join(traceback.format_exception(ending)))
            tally.failed[folder] = read_state(folder).reason or f"{type(ending).__name__}: {ending}"
        else:
            print_line(f"{folder}: {describe_result(ending)}")
