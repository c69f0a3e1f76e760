"""What a grid ended as: a table of its rows, and what failed and why."""

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from deepnets.runs.console import print_line
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import state_of


def print_ending(
    folders: list[RunFolder], failed: Mapping[RunFolder, str], elsewhere: Collection[RunFolder] = ()
) -> int:
    """Print the table, where the results are, and why rows failed; returns the exit code: 1 when one did.

    `failed` holds the rows that failed just now, `elsewhere` those left to another process.
    """
    together = Path(os.path.commonpath([folder.path.resolve() for folder in folders]))
    grid = together if len(folders) > 1 else together.parents[1]
    if len(folders) > 1:
        table = Table(Column("row", overflow="fold"), "status", "test error %", "train error %", "seconds", box=None)
        for folder in folders:
            result = folder.result or {}
            status = "failed" if folder in failed else state_of(folder).name
            if folder in elsewhere and not folder.is_complete:
                status = "running in another process"
            cells = [result.get(name) for name in ("test_error", "train_error", "seconds")]
            row = str(folder.path.resolve().relative_to(grid))
            table.add_row(row, status, *("" if cell is None else f"{cell:.2f}" for cell in cells))
        Console(highlight=False).print(table)
    print_line(f"results      {RunFolder(together)}")
    print_line(f"TensorBoard  tensorboard --logdir {shlex.quote(str(RunFolder(grid)))}")
    if failed:
        print("\n".join([f"{len(failed)} of {len(folders)} runs failed", *lines_of(failed)]), file=sys.stderr)
    return 1 if failed else 0


def lines_of(reasons: Mapping[RunFolder, str]) -> list[str]:
    """A line per reason; folders that share one share the line."""
    folders: dict[str, list[RunFolder]] = {}
    for folder, reason in reasons.items():
        folders.setdefault(reason, []).append(folder)
    others = {reason: f" and {len(same) - 1} more" if len(same) > 1 else "" for reason, same in folders.items()}
    return [f"  {same[0]}{others[reason]}: {reason}" for reason, same in folders.items()]
