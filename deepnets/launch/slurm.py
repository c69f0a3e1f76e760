"""The runs of a sweep as a job array of SLURM, which alone schedules, requeues and cancels them."""

import math
import shlex
import shutil
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Annotated, ClassVar

import filelock
from annotated_types import Ge, Le

from deepnets.config.project import program
from deepnets.config.schema import Config
from deepnets.errors import UserError, printable
from deepnets.launch.batch_script import batch_script
from deepnets.launch.ending import Tally, lines_of
from deepnets.launch.slurm_queue import ROWS, Retry, key_of, queued_rows, rows_of, slurm_answer
from deepnets.runs.contents import Job
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.status import follow, read_state
from deepnets.system.files import make_own_folder
from deepnets.system.ranges import Count, Name, Size

POLL_SECONDS = 5  # between two looks at the queue, which all users of a cluster share
EARLY_SECONDS = 60  # SLURM signals up to this much earlier than asked


@dataclass(frozen=True)
class Slurm:
    """`sbatch` with these options: a task for each run that is neither complete nor in the queue; see conf/launcher/.

    A run that is warned of its time limit saves, is queued again and resumes; so does a preempted one.
    """

    in_process: ClassVar[bool] = False

    partition: Name | None
    account: Name | None
    time: Count | Name | None
    nodes: Size
    gpus: Annotated[int, Ge(0), Le(1024)] | None
    cpus: Size | None
    at_once: Size | None
    warning: Annotated[int, Ge(1), Le(65_535)]  # as sbatch takes it
    options: dict[str, bool | int | str] | None
    wait: bool
    retry: Retry | None

    def check(self, config: Config) -> None:
        """Whether runs like this one can be submitted from here.

        Raises:
            UserError: options do not go together, or there is no SLURM here.
        """
        processes = self._processes(config)
        if processes % self.nodes:
            raise UserError(f"devices={config.devices}: cannot be divided among launcher.nodes={self.nodes}")
        if self.gpus and self.gpus * self.nodes < processes:
            raise UserError(
                f"launcher.gpus={self.gpus}: devices={config.devices} needs {processes // self.nodes} on each "
                "node, or 0 to train on CPUs"
            )
        if self.time is not None and _seconds(self.time) < self.warning + EARLY_SECONDS:
            raise UserError(
                f"launcher.time={self.time}: leaves no time to train; a run saves and is queued again "
                f"{self.warning} to {self.warning + EARLY_SECONDS} seconds before its limit. Give more, or a shorter "
                "launcher.warning"
            )
        if not shutil.which("sbatch"):
            raise UserError(
                "launcher=slurm: no sbatch on this machine; submit from one that has it, or use launcher=pool or local"
            )

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Submit what is to be trained and return at once, or with `wait` when no run is in the queue any more.

        Returns 1 when a run has failed and is not submitted again, 130 on Ctrl-C while waiting: the jobs continue.

        Raises:
            UserError: SLURM refuses the job, or does not answer.
        """
        with filelock.FileLock(Path(config.output_root) / ".slurm.lock"):  # whoever comes second finds it in the queue
            rows = rows_of(folders, self.retry)
            arrays = [self._submit(alike, config) for alike in self._alike(rows.new)]
        arrays += sorted({task.split("_")[0] for task in rows.queued.values()}, key=int)
        complete = sum(folder.is_complete for folder in folders)
        print(
            f"{len(rows.new)} of {len(folders)} runs submitted; {len(rows.queued)} in the queue before, "
            f"{len(rows.elsewhere)} running elsewhere, {len(rows.failed)} failed before, {complete} complete"
        )
        if rows.failed:
            print(
                printable("\n".join(["launcher.retry=failed submits again what failed:", *lines_of(rows.failed)])),
                file=sys.stderr,
            )
        if arrays:
            print(f"cancel  scancel {' '.join(arrays)}")
        sweep = RunFolder(folders[0].path.parents[1])
        print(printable(f"status  {program('report')} {shlex.quote(str(sweep))} --status"), flush=True)
        if not self.wait:
            return 1 if rows.failed else 0
        try:
            follow(folders, lambda: not _is_queued(folders), POLL_SECONDS)
        except KeyboardInterrupt:
            print(f"\nThe jobs continue; to cancel them: scancel {' '.join(arrays)}", file=sys.stderr)
            return 130
        ended = {folder: read_state(folder) for folder in folders if folder not in rows.elsewhere}
        missing = {row: state for row, state in ended.items() if not row.is_complete}
        reasons = {row: state.reason or f"{state.name}, and no longer in the queue" for row, state in missing.items()}
        return Tally(folders, reasons, set(rows.elsewhere)).print()

    def _processes(self, config: Config) -> int:
        """Of a run on all nodes; for devices=auto one per GPU that is asked for, and at least one per node."""
        return (self.gpus or 1) * self.nodes if config.devices == "auto" else config.devices

    def _alike(self, folders: Collection[RunFolder]) -> list[list[RunFolder]]:
        """The runs by what each task of an array gets: mostly all in one."""
        processes = {folder: self._processes(folder.config) for folder in folders}
        return [
            list(rows) for _, rows in groupby(sorted(folders, key=processes.__getitem__), key=processes.__getitem__)
        ]

    def _submit(self, rows: list[RunFolder], config: Config) -> str:
        """The number of the array that executes these runs, which are alike in what they need."""
        directory = _new_directory(rows[0].path.parents[1] / ".slurm")
        (directory / ROWS).write_text("".join(f"{key_of(folder)}\n" for folder in rows))
        script = batch_script(
            self.directives(directory, len(rows), rows[0].config),
            directory / ROWS,
            config.trusted_targets,
            several_nodes=self.nodes > 1,
            fail_fast=config.fail_fast,
        )
        (directory / "rows.sh").write_text(script)
        for folder in rows:
            with suppress(Locked), folder.hold():  # another process may have begun to run it a moment ago
                folder.retry()
        submitted = datetime.now(UTC)  # before, as a task may start at once
        array = slurm_answer("sbatch", "--parsable", str(directory / "rows.sh")).strip().split(";")[0]
        for task, folder in enumerate(rows):
            Job(job=f"{array}_{task}", submitted=submitted).write(folder.path)
        print(f"job     {array}: {len(rows)} runs", flush=True)
        return array

    def directives(self, directory: Path, rows: int, config: Config) -> list[str]:
        """The options of sbatch for an array of so many runs like this one, recorded in `directory`."""
        processes = self._processes(config) // self.nodes
        tasks = processes if self.nodes > 1 else 1  # on one node the run starts its processes itself
        gpus = (0 if config.device == "cpu" else processes) if self.gpus is None else self.gpus
        given = {
            "job-name": f"deepnets:{directory.parents[1].name}",
            "array": f"0-{rows - 1}" + (f"%{self.at_once}" if self.at_once else ""),
            "output": str(directory / "%a.out"),
            "open-mode": "append",
            "requeue": True,
            "signal": f"B:USR1@{self.warning}",
            "partition": self.partition,
            "account": self.account,
            "time": self.time,
            "nodes": self.nodes,
            "ntasks-per-node": tasks,
            "cpus-per-task": self.cpus and self.cpus * processes // tasks,
            "gpus-per-node": gpus or None,
            **(self.options or {}),
        }
        if self.gpus is None and {"gres", "gpus", "gpus-per-task", "gpus-per-node"} & (self.options or {}).keys():
            given["gpus-per-node"] = (self.options or {}).get("gpus-per-node")  # they are asked for by another option
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]


def _new_directory(parent: Path) -> Path:
    make_own_folder(parent)
    for number in count(1):
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)
    raise AssertionError


def _is_queued(folders: list[RunFolder]) -> bool:
    try:
        return not queued_rows().keys().isdisjoint(key_of(folder) for folder in folders)
    except UserError:  # the controller is busy for a moment
        return True


def _seconds(limit: int | str) -> float:
    """SLURM's minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; else no limit."""
    days, _, clock = str(limit).rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [days or "0", *parts]) or len(parts) > 3:
        return math.inf
    units = [3600, 60, 1] if days else {1: [60], 2: [60, 1], 3: [3600, 60, 1]}[len(parts)]
    return 86400 * int(days or 0) + sum(unit * int(part) for unit, part in zip(units, parts, strict=False))
