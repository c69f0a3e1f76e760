"""What a paper prints about the rows of a table, read from its sweep file whenever a report is made."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepnets.config.claim import margins_of
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
    `statistic` says what the numbers of its table are, and a difference below `margin` percent points counts as none.
    """

    test_error: float | str | None = None
    mean: float | None = None
    std: float | None = None
    best: float | None = None
    top5_error: float | None = None
    view: str = ""
    is_literature: bool = False
    best_epochs: int | None = None
    statistic: str | None = None
    margin: float | None = None

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
    """The numbers by row, named as folders are; `statistic` says what they are."""

    statistic: str | None = None
    rows: dict[str, PublishedRow] = field(default_factory=dict)

    @property
    def best_epochs(self) -> int | None:
        """Of all its rows."""
        return next((row.best_epochs for row in self.rows.values()), None)


def published_of(name: str, sweeps: Path = SWEEPS) -> Published:
    """What `sweeps`/NAME.yaml prints; nothing where there is no such file.

    Raises:
        UserError: the file is not YAML.
    """
    sweep = sweep_of(sweeps / f"{name}.yaml")
    reported = sweep.get("reported") or {}
    literature = {plain(str(row)) for row in reported.get("literature") or ()}
    shared: dict[str, Any] = {
        "best_epochs": reported.get("best_epochs"),
        "statistic": reported.get("statistic"),
        "margin": margins_of(sweep).get("full"),
    }
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for name_of_numbers in STATISTICS:
        for row, value in (reported.get(name_of_numbers) or {}).items():
            rows[plain(str(row))][name_of_numbers] = value
    printed = {row: PublishedRow(**values, is_literature=row in literature, **shared) for row, values in rows.items()}
    return Published(reported.get("statistic"), printed)
