"""What became of the runs of a sweep: a table of them, and what failed and why."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Column, Table

from deepnets.runs.contents import FAILED
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.status import read_states
from deepnets.system.printing import as_text, print_error, print_line, print_rich


@dataclass
class Tally:
    """The runs of a sweep: those that `failed` just now and why, and those `elsewhere`, in another process."""

    folders: list[RunFolder]
    failed: dict[RunFolder, str] = field(default_factory=dict)
    elsewhere: set[RunFolder] = field(default_factory=set)

    def heading(self, folder: RunFolder) -> str:
        """The run's place in the sweep, where there are several."""
        number = f"[{self.folders.index(folder) + 1}/{len(self.folders)}] " if len(self.folders) > 1 else ""
        return f"{number}{folder}"

    def is_complete(self, folder: RunFolder) -> bool:
        """Whether nothing is left to train, which is printed then."""
        if result := folder.completed:
            print_line(f"{self.heading(folder)}: already {describe_result(result)}; nothing to train")
        return bool(result)

    def skip(self, folder: RunFolder, error: Locked) -> None:
        print_line(f"{error}; skipped")
        self.elsewhere.add(folder)

    def print(self) -> int:
        """Print the table, where the results are, and why runs failed; returns the exit code: 1 when one did."""
        together = Path(os.path.commonpath([folder.path.resolve() for folder in self.folders]))
        above = together if len(self.folders) > 1 else together.parents[1]
        if len(self.folders) > 1:
            self._print_table(above)
        print_line(f"results      {RunFolder(together)}")
        print_line(f"TensorBoard  tensorboard --logdir {shlex.quote(str(RunFolder(above)))}")
        if self.failed:
            count = f"{len(self.failed)} of {len(self.folders)} runs failed"
            print_error("\n".join([count, *lines_of(self.failed)]))
        return 1 if self.failed else 0

    def _print_table(self, above: Path) -> None:
        table = Table(Column("run", overflow="fold"), "status", "test error %", "train error %", "seconds", box=None)
        states = read_states(self.folders)
        for folder in self.folders:
            result = folder.result
            status = FAILED if folder in self.failed else states[folder].name
            if folder in self.elsewhere and not folder.is_complete:
                status = "running in another process"
            cells = [result and getattr(result, name) for name in ("test_error", "train_error", "seconds")]
            name = str(folder.path.resolve().relative_to(above))
            table.add_row(as_text(name), status, *("" if cell is None else f"{cell:.2f}" for cell in cells))
        print_rich(table)


def lines_of(reasons: Mapping[RunFolder, str]) -> list[str]:
    """A line per reason; folders that share one share the line."""
    folders: dict[str, list[RunFolder]] = {}
    for folder, reason in reasons.items():
        folders.setdefault(reason, []).append(folder)
    others = {reason: f" and {len(same) - 1} more" if len(same) > 1 else "" for reason, same in folders.items()}
    return [f"  {same[0]}{others[reason]}: {reason}" for reason, same in folders.items()]
