"""What a bench has measured: values of candidates, each the ratio of the first to it, as a table and for JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table


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
        table.title, table.title_justify = self.title, "left"
        for name, of in self.summary().items():
            table.add_row(
                name,
                f"{of['median']:,.4g}",
                f"{of['low']:,.4g} to {of['high']:,.4g}",
                f"{of['ratio_median']:.3g}",
                f"{of['ratio_low']:.3g} to {of['ratio_high']:.3g}",
            )
        for name, reason in self.absent.items():
            table.add_row(name, f"absent: {reason}")
        return table


def _spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    return {
        prefix + "median": statistics.median(values),
        prefix + "low": min(values),
        prefix + "high": max(values),
    }
