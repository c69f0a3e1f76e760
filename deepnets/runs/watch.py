"""A table of what every run of a sweep is doing, once or refreshed; read from files alone."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deepnets.runs.folder import RunFolder, folders_in
from deepnets.runs.status import (
    DEAD,
    DIVERGED,
    FAILED,
    FINISHED,
    PREEMPTED,
    QUEUED,
    RUNNING,
    STATES,
    WAITING,
    State,
    read_state,
    read_states,
)
from deepnets.system.printing import as_text, console_for

REFRESH_SECONDS = 2.0
STYLES = {FINISHED: "green", RUNNING: "cyan", PREEMPTED: "yellow", DIVERGED: "yellow", FAILED: "red", DEAD: "bold red"}
# Where not all runs fit on the screen: what somebody may want to act on comes first.
URGENCY = (RUNNING, DEAD, FAILED, PREEMPTED, QUEUED, WAITING, DIVERGED, FINISHED)
COLUMNS: dict[str, dict[str, Any]] = {
    "state": {"no_wrap": True},
    "epoch": {"justify": "right", "no_wrap": True},
    "error %": {"justify": "right", "no_wrap": True},
    "images/s": {"justify": "right", "no_wrap": True},
    "left": {"justify": "right", "no_wrap": True},
    "heartbeat": {"justify": "right", "no_wrap": True},
    "remark": {"overflow": "fold", "min_width": 16},
}
AROUND_TABLE = 4  # lines of the screen for its header, its caption, and what stands below it


def show(paths: list[Path], watch: bool) -> int:
    """Print the states of all run folders below `paths`; `watch` refreshes them until every run has ended, or Ctrl-C.

    Raises:
        UserError: a folder is not there, or has no run in it.
    """
    folders = folders_in(paths)
    if watch:
        with suppress(KeyboardInterrupt):
            follow(folders, lambda: all(read_state(each).name in (FINISHED, DIVERGED, FAILED) for each in folders))
    console_for().print(table_of(folders))
    return 0


def follow(folders: list[RunFolder], is_over: Callable[[], bool], seconds: float = REFRESH_SECONDS) -> None:
    """Show the runs until it is over: a table on a terminal, elsewhere a line whenever the counts of states change."""
    shown, over = "", False
    with live_table(folders) as is_live:
        while not over:
            over = is_over()
            if not is_live and (now := counted(list(read_states(folders).values()))) != shown:
                print(shown := now, flush=True)
            if not over:
                time.sleep(seconds)


@contextmanager
def live_table(folders: list[RunFolder]) -> Iterator[bool]:
    """The table stands below all that is printed meanwhile, and is read anew now and then; False without a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield False
        return
    with Live(
        get_renderable=lambda: table_of(folders, most=max(console.height - AROUND_TABLE, 1)),
        console=console,
        refresh_per_second=1 / REFRESH_SECONDS,
        transient=True,
    ):
        yield True


def table_of(folders: list[RunFolder], most: int | None = None) -> Table:
    """A line per run, the most urgent of them where there are more than `most`; the caption counts all by state."""
    states = read_states(folders)
    shown = folders
    if most is not None and len(folders) > most:
        shown = sorted(folders, key=lambda folder: URGENCY.index(states[folder].name))[:most]
    above = os.path.commonpath([folder.path.resolve() for folder in folders])
    sweep = Path(above) if len(folders) > 1 else Path(above).parents[1]
    cells = {folder: _cells(folder, states[folder]) for folder in shown}
    table = Table(
        box=None,
        caption=counted(list(states.values())) + (f"; {len(shown)} of them shown" if shown is not folders else ""),
        caption_justify="left",
    )
    table.add_column("run", overflow="fold", min_width=20)
    columns = [name for name in COLUMNS if any(row[name] for row in cells.values())]
    for name in columns:
        table.add_column(name, **COLUMNS[name])
    for folder, row in cells.items():
        name = str(folder.path.resolve().relative_to(sweep))
        words = [name, *(row[column] for column in columns)]
        table.add_row(*map(as_text, words), style=STYLES.get(states[folder].name))
    return table


def counted(states: list[State]) -> str:
    """`8 runs: 3 running, 5 waiting`."""
    counts = Counter(state.name for state in states)
    parts = [f"{counts[name]} {name}" for name in STATES if counts[name]]
    return f"{len(states)} run{'s' * (len(states) > 1)}: {', '.join(parts)}"


def _cells(folder: RunFolder, state: State) -> dict[str, str]:
    progress = state.progress
    is_running, is_silent = state.name == RUNNING, state.name == DEAD
    error = (folder.result or {}).get("test_error") if state.name == FINISHED else progress and progress.test_error
    place = [f"job {state.job}" if state.job else "", f"on {state.host}" if is_silent else "", state.reason or ""]
    return {
        "state": state.name,
        "epoch": f"{progress.epoch}/{progress.epochs}" if progress else "starting" if is_running else "",
        "error %": f"{error:.2f}" if isinstance(error, int | float) else "",
        "images/s": f"{progress.images_per_second:,.0f}" if is_running and progress else "",
        "left": str(timedelta(seconds=round(progress.seconds_left))) if is_running and progress else "",
        "heartbeat": f"{timedelta(seconds=round(state.silent or 0))} ago" if is_running or is_silent else "",
        "remark": " ".join(filter(None, place)),
    }
