"""How the folders of a sweep are executed: here, in a pool of devices, or by SLURM."""

from typing import ClassVar, Protocol

from deepnets.config.schema import Config
from deepnets.runs.folder import RunFolder


class Launcher(Protocol):
    """What `launcher=` chooses; each executes `python -m deepnets.run FOLDER` or what that calls.

    `in_process`: runs are executed in this very process, so that what is read while they are checked is used again.
    """

    in_process: ClassVar[bool]

    def check(self, config: Config) -> None:
        """Whether this run can be executed so; called for each before any is frozen.

        Raises:
            UserError: it cannot be, for example for want of devices.
        """

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Execute the frozen folders, finished ones among them; returns the exit code.

        `config` is the first run's, for what is the same in all: `fail_fast`, `trusted_targets` and their like.
        """
