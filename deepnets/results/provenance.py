"""Where results come from, as sheets: settings, environment, commands."""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from deepnets.config.project import program
from deepnets.results.read import Run
from deepnets.results.sheet import NOTHING, Sheet, setting_text, short_commit

MOST_KEYS = 40  # a page that shows more differences than a reader can take in helps nobody


def difference_sheet(runs: Sequence[Run], title: str) -> Sheet:
    """The settings that differ between rows, a line each; where seeds of a row differ too, both values are given."""
    rows: dict[str, list[Run]] = {}
    for run in runs:
        if run.config:
            rows.setdefault(run.row, []).append(run)
    values = {row: texts([run.settings for run in same]) for row, same in rows.items()}
    keys = dict.fromkeys(key for settings in values.values() for key in settings)
    differing = [key for key in keys if len({settings.get(key, NOTHING) for settings in values.values()}) > 1]
    lines = [(row, *(values[row].get(key, NOTHING) for key in differing[:MOST_KEYS])) for row in values]
    more = len(differing) - MOST_KEYS
    return Sheet(title, ("row", *differing[:MOST_KEYS]), tuple(lines), note=f"{more} more keys differ." * (more > 0))


def texts(settings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Settings of several runs as they would be typed; several values of a key where they differ."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return {key: " or ".join(dict.fromkeys(setting_text(each, key) for each in settings)) for key in keys}


def environment_sheet(runs: Sequence[Run]) -> Sheet:
    """On what the runs that ended were trained, with how many of them."""
    header = ("device", "precision", "threads", "torch", "Python", "commit", "runs", "hours")
    ended = [run.result for run in runs if "device" in run.result]
    keys = [_environment(result) for result in ended]
    hours = {
        key: sum(r.get("seconds", 0.0) for r, k in zip(ended, keys, strict=True) if k == key) / 3600 for key in keys
    }
    lines = [(*key, str(count), f"{hours[key]:.3g}") for key, count in Counter(keys).most_common()]
    return Sheet("Environment", header, tuple(lines))


def command_sheet(runs: Sequence[Run]) -> Sheet:
    """The command that makes the first run of each row alone; the note has the commands as they were typed."""
    rows: dict[str, Run] = {}
    typed: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.origin.keys() >= {"command", "overrides"}:
            rows.setdefault(run.row, run)
            typed.setdefault(run.origin["command"], {})[run.row] = None
    lines = [(row, " ".join([program("train"), shlex.join(run.origin["overrides"])])) for row, run in rows.items()]
    notes = [
        f"Typed for {'all rows' if len(of) == len(rows) else ', '.join(of)}: {command}" for command, of in typed.items()
    ]
    return Sheet("Commands", ("row", "its first run alone"), tuple(lines), note="\n".join(notes))


def _environment(result: dict[str, Any]) -> tuple[str, ...]:
    names = (result.get(name, NOTHING) for name in ("device", "precision", "threads"))
    torch, python = result.get("versions", {}).get("torch", NOTHING), result.get("python", NOTHING)
    return (*map(str, names), torch, python, short_commit(result.get("commit")))
