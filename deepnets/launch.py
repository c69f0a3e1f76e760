"""Check the rows of a grid, freeze them into their folders, and execute the folders."""

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from deepnets.assembly import check
from deepnets.config import Row
from deepnets.errors import UserError
from deepnets.folder import RunFolder
from deepnets.log import describe_result
from deepnets.naming import folders_of
from deepnets.revision import git_commit
from deepnets.run import run


def launch(rows: list[Row]) -> int:
    """Train every row that is not finished, one after the other; returns the exit code: 1 when a row failed.

    All rows are checked before the first is written down, and all are written down before the first trains.

    Raises:
        UserError: names every row that cannot run.
    """
    folders = folders_of(rows)
    wrong = {}
    for row, folder in zip(rows, folders, strict=True):
        try:
            _check(row, folder)
        except UserError as error:
            wrong[folder] = error
    if len(rows) == 1 and wrong:
        raise next(iter(wrong.values()))
    if wrong:
        raise UserError("\n".join([f"{len(wrong)} of {len(rows)} rows cannot run; none was started", *_lines(wrong)]))
    for row, folder in zip(rows, folders, strict=True):
        if row.config.overwrite or not folder.is_complete:
            folder.freeze(row.config, _origin(row))
    return execute(folders, rows[0].config.trusted_targets)


def execute(folders: list[RunFolder], trusted: Sequence[str]) -> int:
    """Run the folders one after the other; a row that fails does not stop the others. Returns the exit code.

    `trusted` are the user's own targets that the configurations may name; they were given for the whole command.
    """
    failed: dict[RunFolder, Exception] = {}
    for number, folder in enumerate(folders, start=1):
        heading = f"[{number}/{len(folders)}] {folder}" if len(folders) > 1 else str(folder)
        if folder.is_complete:
            print(f"{heading}: already {describe_result(folder.result)}; nothing to train", flush=True)
            continue
        print(heading, flush=True)
        try:
            result = run(folder, trusted)
            print(f"{folder}: {describe_result(result)}", flush=True)
        except Exception as error:
            if len(folders) == 1:
                raise
            if isinstance(error, UserError):
                print(f"error: {error}", file=sys.stderr)
            else:
                traceback.print_exception(error)
            failed[folder] = error
    _print_ending(folders)
    if failed:
        print("\n".join([f"{len(failed)} of {len(folders)} rows failed", *_lines(failed)]), file=sys.stderr)
    return 1 if failed else 0


def _check(row: Row, folder: RunFolder) -> None:
    folder.check(row.config)
    if row.config.overwrite or not folder.is_complete:
        check(row.config)
    elif folder.config.dataset.get("root") != row.config.dataset.get("root"):
        print(f"{folder}: was trained on the data in {folder.config.dataset.get('root')}", flush=True)


def _origin(row: Row) -> dict[str, Any]:
    return {
        "command": shlex.join([os.path.basename(sys.executable), *sys.argv]),
        "overrides": list(row.overrides),
        "choices": row.choices,
        "commit": git_commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _lines(errors: dict[RunFolder, Exception]) -> list[str]:
    """A line per error; folders that share one share the line."""
    folders: dict[str, list[RunFolder]] = {}
    for folder, error in errors.items():
        folders.setdefault(str(error), []).append(folder)
    others = {text: f" and {len(same) - 1} more" if len(same) > 1 else "" for text, same in folders.items()}
    return [f"  {same[0]}{others[text]}: {text}" for text, same in folders.items()]


def _print_ending(folders: list[RunFolder]) -> None:
    together = Path(os.path.commonpath([folder.path.resolve() for folder in folders]))
    grid = together if len(folders) > 1 else together.parents[1]
    if len(folders) > 1:
        table = Table(Column("row", overflow="fold"), "status", "test error %", "train error %", "seconds", box=None)
        for folder in folders:
            result = folder.result or {"status": "failed"}
            cells = [result.get(name) for name in ("test_error", "train_error", "seconds")]
            row = str(folder.path.resolve().relative_to(grid))
            table.add_row(row, result["status"], *("" if cell is None else f"{cell:.2f}" for cell in cells))
        Console(highlight=False).print(table)
    print(f"results      {RunFolder(together)}")
    print(f"TensorBoard  tensorboard --logdir {shlex.quote(str(RunFolder(grid)))}")
