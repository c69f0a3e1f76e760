"""Builds comparisons: the run that a bench measures, candidates that take turns, and a table of their ratios.

Candidates take turns so that other load on the machine slows all of them alike. A long bench measures in parts: each
result is stored at once, so that the same command resumes where the last one ended. Most parts run deepnets' commands
as users type them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from deepnets.command import add_trust_option
from deepnets.config.compose import compose
from deepnets.config.schema import Config
from deepnets.config.trust import trusted, trusted_search
from deepnets.runs.folder import run_folders
from deepnets.system.files import write_atomically
from deepnets.system.printing import as_text, print_line
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training
from deepnets.training.hardware import choose_precision, find_device, wait

Candidates = dict[str, Callable[[], float]]
Measurement = dict[str, list[float]]
SETTLE_SECONDS = 1.0  # after the turn of a loader, its workers still fill their queue
PartResult = dict[str, Any]
DEEPNETS = [sys.executable, "-m", "deepnets"]


@dataclass(frozen=True)
class Comparison:
    """The `values` of each candidate by its name, one for each repeat, in `unit`.

    `absent` gives the reason for each candidate that could not be measured; `notes` explain the numbers.
    """

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]
    absent: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def summary(self) -> dict[str, dict[str, float]]:
        """Return median, low and high of each candidate's values, and of its ratios (first candidate / this one)."""
        first = next(iter(self.values.values()), [])
        summary = {}
        for name, values in self.values.items():
            ratios = [a / b for a, b in zip(first, values, strict=True)]
            summary[name] = _spread("", values) | _spread("ratio_", ratios)
        return summary

    def as_json(self) -> dict[str, Any]:
        """Return the summary with its unit, the absent candidates and the notes, in JSON's types."""
        return {
            "unit": self.unit,
            "candidates": self.summary(),
            "absent": dict(self.absent),
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return the summary as a table to print."""
        first = next(iter(self.values), "the first")
        table = Table("", f"median {self.unit}", "range", f"{first} is ... times this", "range", box=None)
        table.title, table.title_justify = as_text(self.title), "left"
        for name, row in self.summary().items():
            table.add_row(
                as_text(name),
                f"{row['median']:,.4g}",
                f"{row['low']:,.4g} to {row['high']:,.4g}",
                f"{row['ratio_median']:.3g}",
                f"{row['ratio_low']:.3g} to {row['ratio_high']:.3g}",
            )
        for name, reason in self.absent.items():
            table.add_row(as_text(name), as_text(f"absent: {reason}"))
        return table


def in_turns(candidates: Mapping[str, Callable[[], float]], repeats: int, settle_seconds: float = 0.0) -> Measurement:
    """Call each candidate once to warm up, then `repeats` times in turns; return their values by name.

    Every second round goes backwards, so that no candidate always follows the same one. Each turn begins after
    `settle_seconds`, so that the workers of the last candidate have come to rest.
    """
    results: Measurement = {name: [] for name in candidates}
    with Console(stderr=True).status("", refresh_per_second=1) as line:  # shown only on a terminal
        for name, measure in candidates.items():
            line.update(as_text(f"warming up: {name}"))
            measure()
        for repeat in range(repeats):
            names = list(candidates)
            for name in reversed(names) if repeat % 2 else names:
                line.update(as_text(f"{repeat + 1} of {repeats}: {name}"))
                time.sleep(settle_seconds)
                results[name].append(candidates[name]())
    return results


def seconds_of(steps: Iterator, iterations: int, device: torch.device) -> float:
    """Take `iterations` steps and return the seconds that they took."""
    started = time.perf_counter()
    for _ in range(iterations):
        next(steps)
    wait(device)
    return time.perf_counter() - started


@dataclass(frozen=True)
class BenchRun:
    """The run that a bench measures: its configuration, composed from `overrides`, its device and its precision."""

    overrides: tuple[str, ...]
    config: Config
    device: torch.device
    precision: torch.dtype

    def training(self) -> Training:
        """Build the run's training, as it is before the first iteration."""
        return prepare(self.config, self.device, self.precision)


def compose_run(overrides: Sequence[str]) -> BenchRun:
    """Return the run that scripts/train.py makes from these overrides."""
    config = compose(overrides, trusted_search()).config
    device = find_device(config.device)
    return BenchRun(tuple(overrides), config, device, choose_precision(config.precision, device))


def chosen_run(arguments: argparse.Namespace) -> BenchRun:
    """Return the run that the options of `add_run_options` choose."""
    return compose_run(overrides_of(arguments))


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Return the options of `add_run_options` as overrides; a typed OPTION replaces the one with the same key."""
    overrides = {"model": arguments.model, "dataset": arguments.dataset}
    if getattr(arguments, "root", None):
        overrides["dataset.root"] = arguments.root
    typed = {override.partition("=")[0] for override in arguments.overrides}
    return [*(f"{key}={value}" for key, value in overrides.items() if key not in typed), *arguments.overrides]


def add_run_options(parser: argparse.ArgumentParser, model: str, dataset: str = "cifar10") -> None:
    """Add the options that choose the run of a bench; `model` and `dataset` are the defaults."""
    if dataset != "synthetic":
        parser.add_argument("--root", metavar="DIR", help=f"folder with {dataset}, as dataset.root of scripts/train.py")
    parser.add_argument("--model", default=model, help=f"the network, as in conf/model (default: {model})")
    add_overrides(parser)
    add_trust_option(parser)
    parser.set_defaults(dataset=dataset)


def trust_words() -> list[str]:
    """Return the words with which another command trusts the classes that this process trusts."""
    return [f"--trust={name}" for name in trusted()]


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Let a bench accept overrides of scripts/train.py."""
    parser.add_argument("overrides", nargs="*", metavar="OPTION", help="any other option of scripts/train.py")


class Unfinished(Exception):
    """Raised by a part whose time is over, if the next command can continue it."""


@dataclass(frozen=True)
class Part:
    """A part of a long measurement: `measure(seconds)` may take that many seconds, never more than `limit`.

    When its time is over, `measure` raises `Unfinished` (the next command continues the part) or TimeoutExpired (the
    next command starts it anew). A part that takes longer than its limit is noted as absent, to leave time for others.
    """

    name: str
    measure: Callable[[float], PartResult]
    limit: float = float("inf")


def stored(file: Path) -> dict[str, PartResult]:
    """Return the results of the parts that the file holds, by name."""
    return json.loads(file.read_text()) if file.is_file() else {}


def follow(parts: Sequence[Part], file: Path, minutes: float) -> bool:
    """Measure the parts that `file` lacks, in order, until the minutes are over; return whether none is missing.

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
        had_full_time = seconds == part.limit or left > 0.95 * 60 * minutes
        try:
            result = part.measure(seconds)
        except Unfinished:
            break
        except subprocess.TimeoutExpired:
            if not had_full_time:
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
    """Train the runs of these overrides; return the values of each key in their results, or why there are none."""
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


def precision_name(precision: torch.dtype) -> str:
    """Return the name of a precision, e.g. "bfloat16"."""
    return str(precision).removeprefix("torch.")


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest value, with `prefix` before their names."""
    return {
        prefix + "median": statistics.median(values),
        prefix + "low": min(values),
        prefix + "high": max(values),
    }


def _in_a_line(result: PartResult) -> str:
    text = json.dumps(result)
    return text if len(text) < 150 else text[:147] + "..."
