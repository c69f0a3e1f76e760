"""Measures in parts: each result is stored at once, so that the same command resumes where the last one ended.

Most parts use the functions below to run deepnets' commands as users type them.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnets.runs.folder import run_folders
from deepnets.system.files import write_atomically
from deepnets.system.printing import print_line

PartResult = dict[str, Any]
DEEPNETS = [sys.executable, "-m", "deepnets"]


class Unfinished(Exception):
    """Raised by a part whose time is over and that the next command can continue."""


@dataclass(frozen=True)
class Part:
    """A part of a long measurement: `measure(seconds)` may take so many seconds, `limit` at most.

    When its time is over, `measure` raises `Unfinished` (the next command continues the part) or TimeoutExpired (it
    starts the part anew). A part that takes longer than its limit is noted as absent, to leave time for later parts.
    """

    name: str
    measure: Callable[[float], PartResult]
    limit: float = float("inf")


def stored(file: Path) -> dict[str, PartResult]:
    """Return the results of the parts that the file holds, by name."""
    return json.loads(file.read_text()) if file.is_file() else {}


def follow(parts: Sequence[Part], file: Path, minutes: float) -> bool:
    """Measure the parts that `file` lacks, in order, until the minutes are over; returns whether the file then has all.

    A part that fails, or takes longer than its limit or than all the minutes, is noted as absent, with the reason.
    """
    results, begun = stored(file), time.monotonic()
    for part in parts:
        if part.name in results:
            continue
        left = 60 * minutes - (time.monotonic() - begun)
        if left <= 0:
            break
        seconds = min(left, part.limit)
        is_all = seconds == part.limit or left > 0.95 * 60 * minutes
        try:
            result = part.measure(seconds)
        except Unfinished:
            break
        except subprocess.TimeoutExpired:
            if not is_all:
                break
            result = {"absent": f"takes more than {seconds / 60:.3g} minutes"}
        results[part.name] = result
        write_atomically(file, json.dumps(results, indent=1) + "\n")
        print_line(f"{part.name}: {_in_a_line(result)}")
    done = sum(part.name in results for part in parts)
    print_line(f"{done} of {len(parts)} parts are in {file}" + ("; the same command goes on" * (done < len(parts))))
    return done == len(parts)


def finished(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the command to its end.

    Raises:
        TimeoutExpired: the command takes longer than these seconds.
    """
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def results_of(overrides: Sequence[str], keys: Sequence[str], seconds: float) -> PartResult:
    """Train the runs of these overrides; returns the values of each key in their results, or why there are none."""
    with tempfile.TemporaryDirectory() as place:
        done = finished([*DEEPNETS, "train", *overrides, f"output_root={place}"], seconds)
        results = [folder.result for folder in run_folders(Path(place)) if folder.result]
        if done.returncode or not results:
            return {"absent": last_line(done)}
        return {key: [getattr(result, key) for result in results] for key in keys}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed: the last line that it printed as an error, or its exit code."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _in_a_line(result: PartResult) -> str:
    text = json.dumps(result)
    return text if len(text) < 150 else text[:147] + "..."
