"""What a paper prints about the rows of a table, read from its sweep file whenever a report is made."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepnets.config.identity import plain
from deepnets.config.sweep_file import SWEEPS, sweep_of
from deepnets.results.sheet import percent

FAIL = "fail"
STATISTICS = ("test_error", "mean", "std", "best", "top5_error", "view")


@dataclass(frozen=True)
class PublishedRow:
    """The numbers of a row, in percent; `test_error` may be "fail", or None where it is only drawn.

    `best_epochs`: the paper's rule is the mean of so many lowest test errors of a run; None: the last epoch's.
    `view` is how the test images were shown. A row that `is_literature` is of another paper's net, which no run trains.
    """

    test_error: float | str | None = None
    mean: float | None = None
    std: float | None = None
    best: float | None = None
    top5_error: float | None = None
    view: str = ""
    is_literature: bool = False
    best_epochs: int | None = None

    @property
    def text(self) -> str:
        """The number that the row's median is compared with."""
        return self.test_error if isinstance(self.test_error, str) else percent(self.test_error)

    @property
    def others(self) -> str:
        """`mean 7.69 ± 0.12, best 7.60`."""
        words = []
        if self.mean is not None:
            words.append(f"mean {self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else ""))
        return ", ".join([*words, *([f"best {self.best:.2f}"] if self.best is not None else [])])


@dataclass(frozen=True)
class Published:
    """The numbers by row, named as folders are; `statistic` says what they are; `warnings` name numbers in conflict."""

    statistic: str | None = None
    rows: dict[str, PublishedRow] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def best_epochs(self) -> int | None:
        """Of all its rows."""
        return next((row.best_epochs for row in self.rows.values()), None)


def published_of(name: str, frozen: Iterable[dict[str, Any]], sweeps: Path = SWEEPS) -> Published:
    """What `sweeps`/NAME.yaml prints; where that file is gone what the runs froze (`sweep.reported` of each).

    Numbers that a run froze and that are not those shown are named in a warning. Of runs that froze different numbers
    without a file the first counts.

    Raises:
        UserError: the file is not YAML.
    """
    frozen = [table for table in frozen if table]
    numbers, file = [_numbers(table) for table in frozen], sweeps / f"{name}.yaml"
    if file.is_file():
        reported = sweep_of(file).get("reported") or {}
        statistic, shown = reported.get("statistic"), _numbers(reported)
        best_epochs = reported.get("best_epochs")
        literature = {plain(str(row)) for row in reported.get("literature") or ()}
    else:
        literature = set()
        statistic = next((table["statistic"] for table in frozen if table.get("statistic")), None)
        best_epochs = next((table["best_epochs"] for table in frozen if table.get("best_epochs")), None)
        shown = {key: value for table in reversed(numbers) for key, value in table.items()}
        shown = {key: shown[key] for table in numbers for key in table}  # in the order of the first
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for (row, number), value in shown.items():
        rows[row][number] = value
    others = Counter(
        (*key, value) for table in numbers for key, value in table.items() if value != shown.get(key, value)
    )
    conflicts = [
        f"{row} ({number}) {shown[row, number]}, frozen in {runs} run{'s' * (runs > 1)} as {value}"
        for (row, number, value), runs in others.items()
    ]
    source = f"conf/sweep/{name}.yaml" if file.is_file() else "the first run"
    warnings = (f"published numbers are those of {source}: {'; '.join(conflicts)}",) if conflicts else ()
    return Published(
        statistic,
        {
            row: PublishedRow(**values, is_literature=row in literature, best_epochs=best_epochs)
            for row, values in rows.items()
        },
        warnings,
    )


def _numbers(reported: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Each value by row and statistic."""
    return {(plain(str(row)), name): value for name in STATISTICS for row, value in (reported.get(name) or {}).items()}
