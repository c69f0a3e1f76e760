"""Figures of candidates, which are measured in turns, so that what else the machine does meets all of them alike.

Each is given with the ratio of the first candidate to it, as a table and for JSON.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table

from deepnets.system.printing import as_text
from deepnets.training.hardware import wait

Candidates = dict[str, Callable[[], float]]
Measurement = dict[str, list[float]]
SETTLE_SECONDS = 1.0  # a loader's workers go on filling their queue after its turn


@dataclass(frozen=True)
class Figures:
    """`values` of each candidate by its name, one a repeat, all of `unit`.

    `absent` says of candidates that could not be measured why, `notes` what the numbers cannot.
    """

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]
    absent: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def summary(self) -> dict[str, dict[str, float]]:
        """By candidate: median, lowest and highest value, and the same of the first's ratio to it, repeat by repeat."""
        first = next(iter(self.values.values()), [])
        summary = {}
        for name, values in self.values.items():
            ratios = [a / b for a, b in zip(first, values, strict=True)]
            summary[name] = _spread("", values) | _spread("ratio_", ratios)
        return summary

    def as_json(self) -> dict[str, Any]:
        """All of it, in types that JSON has."""
        return {
            "unit": self.unit,
            "candidates": self.summary(),
            "absent": dict(self.absent),
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """The summary to be printed."""
        first = next(iter(self.values), "the first")
        table = Table("", f"median {self.unit}", "range", f"{first} is ... times this", "range", box=None)
        table.title, table.title_justify = as_text(self.title), "left"
        for name, of in self.summary().items():
            table.add_row(
                as_text(name),
                f"{of['median']:,.4g}",
                f"{of['low']:,.4g} to {of['high']:,.4g}",
                f"{of['ratio_median']:.3g}",
                f"{of['ratio_low']:.3g} to {of['ratio_high']:.3g}",
            )
        for name, reason in self.absent.items():
            table.add_row(as_text(name), as_text(f"absent: {reason}"))
        return table


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    return {
        prefix + "median": statistics.median(values),
        prefix + "low": min(values),
        prefix + "high": max(values),
    }


def in_turns(candidates: Mapping[str, Callable[[], float]], repeats: int, settle_seconds: float = 0.0) -> Measurement:
    """What each candidate returns: called once to warm up, then `repeats` times in turns, by its name.

    Every second round goes backwards, so that none always follows the same other. Where some have workers, each turn
    begins after SETTLE_SECONDS.
    """
    for measure in candidates.values():
        measure()
    results: Measurement = {name: [] for name in candidates}
    for repeat in range(repeats):
        names = list(candidates)
        for name in reversed(names) if repeat % 2 else names:
            time.sleep(settle_seconds)
            results[name].append(candidates[name]())
    return results


def seconds_of(steps: Iterator, iterations: int, device: torch.device) -> float:
    """That so many of the steps take."""
    started = time.perf_counter()
    for _ in range(iterations):
        next(steps)
    wait(device)
    return time.perf_counter() - started
