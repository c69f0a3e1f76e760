"""Submits the arrays of a sweep to SLURM, all or none, and a job that writes the report; one folder has their files."""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from deepnets.errors import UserError
from deepnets.launch.slurm_queue import FILES, key_of, slurm_answer
from deepnets.launch.task import ARRAYS, ROWS, snapshot, verifying_lines
from deepnets.runs.code import FOLDER
from deepnets.runs.contents import Job, Result
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.jobs import LOGS
from deepnets.system.files import make_own_folder, write_atomically

SCRIPT = ".sh"
REPORT = "report"  # the name of the job that writes the report, of its script and of its log


class Submission:
    """The jobs that one command submits for a sweep: `directory` holds their files, `copy` the code that they execute.

    `arrays` are the numbers of the arrays, and `report` is the number of the job that writes the report.
    """

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.directory = sweep, _new_directory(sweep / FILES)
        earlier = {*(sweep / FOLDER).glob("*")}
        self.copy = snapshot(sweep)
        self.arrays: list[str] = []
        self.report: str | None = None
        self._has_new_copy = self.copy is not None and self.copy not in earlier
        self._before: dict[Path, bytes | None] = {}  # earlier contents of runs' files; None: no file

    def submit(self, name: str, script: str, tasks: Mapping[RunFolder, int]) -> str:
        """Submit an array with this script, note its tasks in the runs' folders, and return a line to print about it.

        Raises:
            UserError: SLURM refuses it.
        """
        file = (self.directory / name).with_suffix(SCRIPT)
        file.with_suffix(ROWS).write_text("".join(f"{task} {key_of(each)}\n" for each, task in tasks.items()))
        for folder in tasks:
            if (result := folder.path / Result.FILE).is_file():  # an earlier attempt failed
                with suppress(Locked), folder.hold():  # another process may have begun to execute the run just now
                    self._before[result] = result.read_bytes()
                    folder.retry()
        submitted = datetime.now(UTC)  # the time before sbatch, as a task may start at once
        array = _number(file, script)
        self.arrays.append(array)
        write_atomically(self.directory / ARRAYS, " ".join(self.arrays))
        for folder, task in tasks.items():
            noted = folder.path / Job.FILE
            self._before[noted] = noted.read_bytes() if noted.is_file() else None
            Job(job=f"{array}_{task}", submitted=submitted).write(folder.path)
        return f"job     {array}: {_counted(tasks)}; logs in {self._link(array)}"

    def submit_report(self, directives: Sequence[str], setup: Sequence[str]) -> str:
        """Submit a job that writes the report of the sweep when all arrays have ended; returns a line to print.

        Raises:
            UserError: SLURM refuses it.
        """
        self.report = submit_after(self.arrays, self.directory, REPORT, [str(self.sweep)], directives, setup, self.copy)
        log = f"{RunFolder(self.sweep)}/{LOGS}/{self.arrays[-1]}/{REPORT}.out"
        return f"report  {self.report}: goes to {RunFolder(self.sweep)}/report when these runs have ended; log in {log}"

    def undo(self) -> str:
        """Cancel the submitted arrays; returns text that says so, for the end of an error message.

        If no task has begun, this also removes the submission's files, and the runs' files get their earlier contents.

        Raises:
            UserError: SLURM does not cancel the arrays; the message says how to cancel them.
        """
        if self.arrays:
            try:
                slurm_answer("scancel", *self.arrays)
            except UserError as error:
                raise UserError(f"{error}; still in the queue: cancel it by scancel {' '.join(self.arrays)}") from error
        ending = f"; cancelled what was submitted before: {', '.join(self.arrays)}" if self.arrays else ""
        if any(self.directory.glob("*.out")):  # a task has begun; it saves now and needs its files
            return ending
        for file, content in self._before.items():
            if content is not None:
                write_atomically(file, content)
            else:
                file.unlink(missing_ok=True)
        for array in self.arrays:
            (self.sweep / LOGS / array).unlink(missing_ok=True)
        shutil.rmtree(self.directory)
        if self.copy and self._has_new_copy:
            shutil.rmtree(self.copy)
        for folder in (FILES, LOGS, FOLDER):
            with suppress(OSError):  # the folder has files of another submission, or does not exist
                (self.sweep / folder).rmdir()
        return ending

    def _link(self, array: str) -> str:
        """Link the array's number to the submission's files, in place of an older link; returns the link's name."""
        make_own_folder(self.sweep / LOGS)
        link, new = self.sweep / LOGS / array, self.sweep / LOGS / f"{array}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(Path("..", self.directory.relative_to(self.sweep)))
        new.replace(link)
        return f"{RunFolder(self.sweep)}/{LOGS}/{array}"


def submit_after(
    arrays: Sequence[str],
    directory: Path,
    verb: str,
    words: Sequence[str],
    directives: Sequence[str],
    setup: Sequence[str],
    copy: Path | None,
) -> str:
    """Submit a job that executes `deepnets VERB WORDS` when the arrays have ended; returns its number.

    Its script and its log are in `directory`, named after the verb.

    Raises:
        UserError: SLURM refuses it.
    """
    lines = [f'eval {shlex.quote(line)} || exit "$?"' for line in setup]
    command = shlex.join([sys.executable, "-m", "deepnets", verb, *words])
    after = f"--dependency=afterany:{':'.join(arrays)}"
    head = [f"#SBATCH {shlex.quote(word)}" for word in (*directives, after, f"--output={directory / verb}.out")]
    # `verifying_lines` would fail the runs in `left`, but this job executes no runs.
    script = "\n".join(["#!/bin/bash", *head, "left=()", verifying_lines(copy), *lines, command, ""])
    return _number(directory / f"{verb}{SCRIPT}", script)


def _number(file: Path, script: str) -> str:
    """Submit a script and return the number of its job."""
    file.write_text(script)
    return slurm_answer("sbatch", "--parsable", str(file)).strip().split(";")[0]


def _counted(tasks: Mapping[RunFolder, int]) -> str:
    """Count the runs and tasks in words: `3 runs`, or `3 runs in 2 tasks`."""
    number = len(set(tasks.values()))
    return f"{len(tasks)} run{'s' * (len(tasks) > 1)}" + (f" in {number} tasks" if number < len(tasks) else "")


def _new_directory(parent: Path) -> Path:
    """Create the directory of a submission, named by the next free number."""
    make_own_folder(parent)
    for number in count(1):
        with suppress(FileExistsError):
            (parent / str(number)).mkdir()
            return parent / str(number)
    raise AssertionError
