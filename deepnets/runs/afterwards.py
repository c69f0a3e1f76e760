"""Files of a finished run that were damaged or lost after its end: named, and metrics.csv restored."""

import csv
from collections.abc import Iterator

from deepnets.config.identity import difference
from deepnets.errors import UserError
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import LAST, malformed
from deepnets.runs.contents import FINISHED, Origin, Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import as_csv
from deepnets.runs.status import UNREADABLE, in_a_line
from deepnets.system.files import LONGEST_METRICS, read_text, write_atomically

METRICS = "metrics.csv"


def inspect(folder: RunFolder) -> Iterator[str]:
    """A line about each file of a finished run that is missing or damaged; restores metrics.csv from a checkpoint.

    Records have no checkpoint, and none is missed there.
    """
    result = folder.completed
    if not result or result.status != FINISHED:
        return
    if wrong := _checkpoint_wrong(folder):
        yield f"{folder}: finished, but {LAST} {wrong}; overwrite=true trains the run again"
    if wrong := _metrics_wrong(folder, result):
        try:
            restored = _restored(folder, result)
        except (UserError, OSError) as error:
            restored = f"cannot be restored ({in_a_line(error)})"
        yield f"{folder}: finished, but {METRICS} {wrong}; {restored}"


def _checkpoint_wrong(folder: RunFolder) -> str | None:
    try:
        damage = checkpoint.damage_of(folder.path / LAST)
    except FileNotFoundError:
        return "is missing" if (folder.path / Origin.FILE).exists() else None
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"is damaged ({damage})" if damage else None


def _metrics_wrong(folder: RunFolder, result: Result) -> str | None:
    try:
        text = read_text(folder.path / METRICS, LONGEST_METRICS)
        rows = list(csv.DictReader(text.splitlines()))
        for value in (value for row in rows for value in row.values() if value != ""):
            float(value)
    except FileNotFoundError:
        return "is missing"
    except UNREADABLE as error:
        return f"is damaged ({in_a_line(error)})"
    if len(rows) != result.epochs or (rows and not text.endswith("\n")):
        return f"is damaged ({len(rows)} rows, {result.epochs} epochs)"
    return None


def _restored(folder: RunFolder, result: Result) -> str:
    """Write metrics.csv from a checkpoint of the run's end; returns what became of it."""
    state, _ = checkpoint.load(folder.path, malformed)
    is_last = state and state["training"]["iteration"] == result.iterations
    if not state or not is_last or difference(state.get("run", {}), folder.config):
        return "no checkpoint has its rows; overwrite=true trains the run again"
    with folder.hold():
        write_atomically(folder.path / METRICS, as_csv(state["history"]))
    return "restored from the checkpoint"
