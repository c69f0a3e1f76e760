"""What a paper prints about the rows of a table, read from its sweep file whenever a report is made."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt
from pydantic import AllowInfNan, Strict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from deepnets.config.claim import margins_of
from deepnets.config.identity import plain
from deepnets.config.sweep import SWEEPS, sweep_of
from deepnets.errors import brief
from deepnets.results.sheet import percent

FAIL = "fail"
STATISTICS = ("test_error", "mean", "std", "best", "top5_error", "view")
Number = Annotated[float, Strict(), AllowInfNan(False)] | None


class _Reported(TypedDict, total=False):
    """`reported` of a sweep file: numbers and views by row, and what is said of all rows."""

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
    """The numbers by row, named as folders are; `statistic` says what they are.

    `problems` has a line for each entry of the sweep file that is left out because it is of another type.
    """

    statistic: str | None = None
    rows: dict[str, PublishedRow] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def best_epochs(self) -> int | None:
        """Of all its rows."""
        return next((row.best_epochs for row in self.rows.values()), None)


def published_of(name: str, sweeps: Path = SWEEPS) -> Published:
    """What `sweeps`/NAME.yaml prints; nothing where there is no such file.

    Raises:
        UserError: the file is not YAML.
    """
    file = sweeps / f"{name}.yaml"
    sweep = sweep_of(file)
    reported, problems = _readable(sweep.get("reported") or {})
    literature = {plain(str(row)) for row in reported.get("literature") or ()}
    shared: dict[str, Any] = {
        "best_epochs": reported.get("best_epochs"),
        "statistic": reported.get("statistic"),
        "margin": margins_of(sweep).get("full"),
    }
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for name_of_numbers in STATISTICS:
        for row, value in reported.get(name_of_numbers, {}).items():
            rows[plain(str(row))][name_of_numbers] = value
    printed = {row: PublishedRow(**values, is_literature=row in literature, **shared) for row, values in rows.items()}
    return Published(reported.get("statistic"), printed, tuple(f"{file}: {problem}" for problem in problems))


def _readable(reported: Any) -> tuple[dict[str, Any], list[str]]:
    """The entries of `_Reported` that are of their types, and a line for each other one."""
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
            problems.setdefault(path, f"{path}: {each['msg']}, not {brief(each['input'])}; it is left out")
            name, entries = place[0], kept.get(place[0])
            if len(place) > 1 and isinstance(entries, dict):
                kept[name] = {row: value for row, value in entries.items() if str(row) != place[1]}
            else:
                kept.pop(name, None)
    return kept, list(problems.values())
