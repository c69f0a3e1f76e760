"""A long measurement in parts, each of which is stored at once: the same command resumes where the last one ended."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepnets.runs.folder import write_atomically
from deepnets.system.printing import print_line

Found = dict[str, Any]


class Unfinished(Exception):
    """A part goes on with the next command."""


@dataclass(frozen=True)
class Part:
    """What is measured in so many seconds at most; raises `Unfinished`, or TimeoutExpired when it must start anew.

    `limit` is in seconds, too: what takes longer is noted as absent, so that it costs the parts behind it no more.
    """

    name: str
    measure: Callable[[float], Found]
    limit: float = float("inf")


def stored(file: Path) -> dict[str, Found]:
    """What is known of each part, by its name."""
    return json.loads(file.read_text()) if file.is_file() else {}


def follow(parts: Sequence[Part], file: Path, minutes: float) -> bool:
    """Measure in their order the parts that `file` does not hold, until the minutes are over; whether it holds all.

    What takes longer than its limit or all the minutes is noted as absent, and so is what fails, with the reason.
    """
    known, begun = stored(file), time.monotonic()
    for part in parts:
        if part.name in known:
            continue
        left = 60 * minutes - (time.monotonic() - begun)
        if left <= 0:
            break
        seconds = min(left, part.limit)
        is_all = seconds == part.limit or left > 0.95 * 60 * minutes
        try:
            found = part.measure(seconds)
        except Unfinished:
            break
        except subprocess.TimeoutExpired:
            if not is_all:
                break
            found = {"absent": f"takes more than {seconds / 60:.3g} minutes"}
        known[part.name] = found
        write_atomically(file, json.dumps(known, indent=1) + "\n")
        print_line(f"{part.name}: {_in_a_line(found)}")
    done = sum(part.name in known for part in parts)
    print_line(f"{done} of {len(parts)} parts are in {file}" + ("; the same command goes on" * (done < len(parts))))
    return done == len(parts)


def _in_a_line(found: Found) -> str:
    text = json.dumps(found)
    return text if len(text) < 150 else text[:147] + "..."
