"""Reads a paper's numbers about a table's rows from the sweep file, and says whether measured errors agree."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import scipy
from annotated_types import Gt
from pydantic import AllowInfNan, ConfigDict, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from deepnets.config.claim import margins_of
from deepnets.config.identity import folder_name
from deepnets.config.sweep import SWEEPS, problem_of_statistic, sweep_of
from deepnets.errors import brief
from deepnets.results.statistics import CONFIDENCE, FEWEST_SEEDS, WORST_ERROR
from deepnets.system.printing import percent

FAIL = "fail"
AGREES, COMPATIBLE, DIFFERS, TOO_FEW = "agrees", "compatible", "differs", f"n < {FEWEST_SEEDS}"
VERDICT_RULE = (
    "Verdict, from 3 seeds on: the printed number is itself drawn by chance (it is of one run, or the best, median or "
    "mean of several), so the true difference from the paper is known within an interval only, at 95% by our seeds' "
    "mean and spread. differs: the interval leaves out 0; agrees: it holds 0 and lies within the margin that the sweep "
    "states for the full protocol; compatible: neither, and the table says where the true difference lies. A diverged "
    "run counts as 100%. The column difference subtracts the printed number from our median, not from our mean."
)
STATISTICS = ("test_error", "mean", "std", "best", "top5_error", "view")
Number = Annotated[float, Strict(), AllowInfNan(False)] | None


class _Reported(TypedDict, total=False):
    """The node `reported` of a sweep file: numbers and views by row, and facts about all rows."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    test_error: dict[Any, Number | Literal["fail"]]
    mean: dict[Any, Number]
    std: dict[Any, Number]
    best: dict[Any, Number]
    top5_error: dict[Any, Number]
    view: dict[Any, str]
    literature: list[Any]
    best_epochs: Annotated[int, Strict(), Gt(0)]
    statistic: str


REPORTED = TypeAdapter(_Reported)


@dataclass(frozen=True)
class PublishedRow:
    """The paper's numbers of a row, in percent; `test_error` may be "fail", or None if the paper prints none.

    The paper averages a run's `best_epochs` lowest test errors; if it is None, the paper takes the last epoch's error.
    `view` says how test images were cropped. If `is_literature`, the net is another paper's, and no run trains it.
    `statistic` says what the numbers are, e.g. "best of 5". A difference below `margin` percent points counts as none.
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
        """The row's further numbers, e.g. `mean 7.69 ± 0.12, best 7.60`."""
        numbers = []
        if self.mean is not None:
            numbers.append(f"mean {self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else ""))
        return ", ".join([*numbers, *([f"best {self.best:.2f}"] if self.best is not None else [])])


@dataclass(frozen=True)
class Published:
    """The published numbers, by the name of the row's folder; `statistic` says what they are.

    `problems` has a line for each entry of the sweep file that is left out because it has a wrong type.
    """

    statistic: str | None = None
    rows: dict[str, PublishedRow] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def best_epochs(self) -> int | None:
        """The `best_epochs` that all rows share; see `PublishedRow`."""
        return next((row.best_epochs for row in self.rows.values()), None)


def published_of(name: str, sweeps: Path = SWEEPS) -> Published:
    """Read the published numbers from `sweeps`/NAME.yaml; there are none if the file is missing.

    Raises:
        UserError: as `sweep_of` and `margins_of`.
    """
    file = sweeps / f"{name}.yaml"
    sweep = sweep_of(file)
    reported, problems = _readable(sweep.get("reported") or {})
    if problem := problem_of_statistic(reported.get("statistic")):
        problems.append(f"{problem}; it counts as single")
    literature = {folder_name(str(row)) for row in reported.get("literature") or ()}
    shared: dict[str, Any] = {
        "best_epochs": reported.get("best_epochs"),
        "statistic": reported.get("statistic"),
        "margin": margins_of(sweep).get("full"),
    }
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for name_of_numbers in STATISTICS:
        for row, value in reported.get(name_of_numbers, {}).items():
            rows[folder_name(str(row))][name_of_numbers] = value
    printed = {row: PublishedRow(**values, is_literature=row in literature, **shared) for row, values in rows.items()}
    return Published(reported.get("statistic"), printed, tuple(f"{file}: {problem}" for problem in problems))


@dataclass(frozen=True)
class Printed:
    """A printed error in percent: the "best", "median" or "mean" of several `runs`; for one run all three are equal."""

    error: float
    statistic: str = "mean"
    runs: int = 1


def verdict_of(errors: Sequence[float], row: PublishedRow, is_fail: bool) -> str:
    """Return the verdict by `VERDICT_RULE`; it is empty if the paper prints nothing or there are no errors.

    `is_fail` says whether the measured runs fail, as the table defines it.
    """
    if row.test_error is None or not errors:
        return ""
    if len(errors) < FEWEST_SEEDS:
        return TOO_FEW
    if is_fail or row.test_error == FAIL:
        return AGREES if is_fail and row.test_error == FAIL else DIFFERS
    printed = printed_of(row)
    interval = true_difference(errors, printed) if printed else None
    if interval is None:
        return DIFFERS
    low, high = interval
    if low > 0 or high < 0:
        return DIFFERS
    return AGREES if row.margin is not None and -row.margin <= low and high <= row.margin else COMPATIBLE


def printed_of(row: PublishedRow) -> Printed | None:
    """Return the printed number to compare with: the mean if the paper says of how many runs, else the test error.

    It is None if the paper prints no number for the row.
    """
    statistic = row.statistic or ""
    if row.mean is not None and (match := re.search(r"mean of (\d+)", statistic)):
        return Printed(row.mean, "mean", int(match[1]))
    if not isinstance(row.test_error, int | float):
        return None
    if match := re.match(r"(best|median|mean) of (\d+)", statistic):
        return Printed(row.test_error, match[1], int(match[2]))
    return Printed(row.test_error)


def true_difference(errors: Sequence[float], printed: Printed) -> tuple[float, float] | None:
    """Return the interval of the expected error here minus the paper's, in percentage points, at `CONFIDENCE`.

    It is a prediction interval: if nothing differs, the printed number is one more draw from the same distribution.
    If errors are normal, it is exact for one run and for a mean; for a median or a best run it is approximate, because
    Student's distribution is assumed. None if there are fewer than `FEWEST_SEEDS` errors.
    """
    if len(errors) < FEWEST_SEEDS:
        return None
    measured, n = [min(error, WORST_ERROR) for error in errors], len(errors)
    spread = stdev(measured)
    shift, variance = _drawn(printed.statistic, printed.runs)
    variance += 1 / n + shift**2 / (2 * (n - 1))  # of the measured mean, and of the shift in measured spreads
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * spread * math.sqrt(variance)
    difference = fmean(measured) + shift * spread - printed.error
    return difference - half, difference + half


@cache
def _drawn(statistic: str, runs: int) -> tuple[float, float]:
    """Return the expectation and the variance of a statistic of `runs` standard normal numbers."""
    if statistic == "mean" or runs == 1:
        return 0.0, 1 / runs
    if statistic == "median" and runs % 2 == 0:  # halfway between the variances of one run less and one more
        return 0.0, (_drawn(statistic, runs - 1)[1] + _drawn(statistic, runs + 1)[1]) / 2
    place = 1 if statistic == "best" else (runs + 1) // 2
    uniform = scipy.stats.beta(place, runs - place + 1)  # the `place`-th smallest of `runs` numbers drawn from [0, 1]
    first, second = (uniform.expect(lambda u, power=power: scipy.stats.norm.ppf(u) ** power) for power in (1, 2))
    return float(first), float(second - first**2)


def _readable(reported: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the entries of `reported` that have the types of `_Reported`, and a line about each of the rest."""
    if not isinstance(reported, dict):
        return {}, [f"sweep.reported is {brief(reported)}, not a node; it is left out"]
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in reported.items() if value}
    problems: dict[str, str] = {}
    try:
        REPORTED.validate_python(kept)
    except ValidationError as error:
        for each in error.errors():
            place = [str(part) for part in each["loc"][:2]]
            path = ".".join(["sweep", "reported", *place])
            wrong = f"{each['msg']}, not {brief(each['input'])}"
            if each["type"] == "extra_forbidden":
                wrong = f"no such key; reported has {', '.join(_Reported.__annotations__)}"
            problems.setdefault(path, f"{path}: {wrong}; it is left out")
            name, entries = place[0], kept.get(place[0])
            if len(place) > 1 and isinstance(entries, dict):
                kept[name] = {row: value for row, value in entries.items() if str(row) != place[1]}
            else:
                kept.pop(name, None)
    return kept, list(problems.values())
