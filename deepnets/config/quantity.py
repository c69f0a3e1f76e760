"""Reads the `test` of a registered claim: which number each run gives, and where the rows' means must lie."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from deepnets.config.project import PACKAGE
from deepnets.errors import UserError, nearest

TEST_EXAMPLE = "test: {of: test error, each: [identity minus none]}"
OF_EXAMPLE = "{analyze: lesion --only single, table: single, median: error, where: {unit: [15, 45]}, minus: {unit: 0}}"
FORMS = ("each", "mean", "slope", "log_slope", "order", "share_above")
REDUCTIONS = {"mean": 1, "median": 1, "min": 1, "max": 1, "slope": 2, "tau": 2, "pearson": 2}  # columns that each needs
BASES = {"e": math.e, 2: 2.0, 10: 10.0}
REGION = re.compile(r"must lie (above|below)( minus)? the margin|must lie within plus and minus the margin")
COLUMN = re.compile(r"(?:(log2|log10|abs) )?(\w+)(?: below (-?\d+(?:\.\d+)?))?")

# A row analysis/NAME/NET is not trained: the analysis NAME initialises the network NET itself.
DRAWN = "analysis/"
Conditions = tuple[tuple[str, Any], ...]  # each chooses lines of a CSV file: (column, value) or (column, (low, high))


class RunNumber(StrEnum):
    """A registered claim is about one of these numbers of a run, in percent or nats, or about an `Analysed` one."""

    test_error = "test error"
    training_error = "training error"
    training_loss = "training loss"


@dataclass(frozen=True)
class CsvColumn:
    """A column of a CSV file, or its log2, log10 or abs (`function`).

    If `below` is given, each value becomes 1 if it is less than `below`, and otherwise 0.
    """

    name: str
    function: str = ""
    below: float | None = None

    def __str__(self) -> str:
        return f"{self.function} {self.name}".strip() + ("" if self.below is None else f" below {self.below:g}")


@dataclass(frozen=True)
class Analysed:
    """A number that `deepnets analyze` measures on a run: a `reduction` of `columns` in its CSV file `table`.

    `where` chooses lines by a column's value or range. Lines with the same value in the column `by` are averaged first.
    `minus` chooses other lines: its conditions are added to those of `where`, or replace those on the same column. The
    number that these lines give is subtracted. Results of the `analysis` with other `options` do not count.
    """

    analysis: str
    options: tuple[tuple[str, str], ...]
    table: str
    reduction: str
    columns: tuple[CsvColumn, ...]
    where: Conditions = ()
    minus: Conditions = ()
    by: str = ""

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return f"{self.analysis}_{self.table}.csv"

    @property
    def words(self) -> str:
        """The options as a user types them."""
        return "".join(f" --{name} {value}" for name, value in self.options)

    def __str__(self) -> str:
        return f"{self.reduction} of {', '.join(map(str, self.columns))} ({self.analysis})"


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of the rows' means, plus a `constant`: `a minus b` has the weights 1 and -1."""

    weights: tuple[tuple[str, float], ...]
    constant: float = 0.0

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(row for row, _ in self.weights)


@dataclass(frozen=True)
class ClaimTest:
    """Says how runs test a registered claim.

    Each run gives a number, the quantity `of`, or its logarithm to the base `log`. The quantity is read after the share
    `at` of the run's iterations (1: after the last epoch). Each of the `contrasts` between the rows' means must lie
    between `low` and `high`. Without contrasts, Kendall's tau-b must lie there: it compares the runs' numbers with the
    places of their rows in `order`.

    If `is_share`, a run's number is the share of the epochs after `at` in which its quantity is above the quantity of
    the other row's run with the same seed. With `best`, each row is a network of a random search; the row's mean is
    over its best trials, and `best` is their share of all trials.
    """

    of: RunNumber | Analysed
    contrasts: tuple[Contrast, ...]
    order: tuple[str, ...]
    low: float
    high: float
    at: float = 1.0
    log: float | None = None
    is_share: bool = False
    best: float | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows whose runs the test needs, each once."""
        return tuple(dict.fromkeys([*self.order, *(row for each in self.contrasts for row in each.rows)]))


def read_test(node: Any, sentence: str, rows: Sequence[str], quantity: str, margin: float) -> ClaimTest:
    """Read the `test` of the claim that has this sentence, rows, quantity and margin.

    Raises:
        UserError: the test is not written as `TEST_EXAMPLE`, names rows that the claim does not have, or is an order
            although the claim has a margin; or the quantity does not say where it must lie.
    """
    wrong = f'sweep.claims: "{sentence}": test: {node}: must be as {TEST_EXAMPLE}'
    keys = {"of", "at", "log", "best", *FORMS}
    if not isinstance(node, Mapping) or not {*node} <= keys or len({*node} & {*FORMS}) != 1:
        unknown = [str(key) for key in node if key not in keys] if isinstance(node, Mapping) else []
        raise UserError(
            f"{wrong}, with one of {', '.join(FORMS)}; only `of`, `at`, `log` and `best` may stand beside it"
            + (f"; {unknown[0]} is unknown{nearest(unknown[0], [*keys])}" if unknown else "")
        )
    (form,) = {*node} & {*FORMS}
    of = node.get("of", RunNumber.test_error)
    if isinstance(of, Mapping):
        if {"at", "log", "best"} & {*node} or form == "share_above":
            raise UserError(
                f"{wrong}; `at`, `log`, `best` and `share_above` are for errors and losses, not for an analysis"
            )
        of = _analysed(of, f"{wrong.partition(': must be')[0]}: of")
    elif of in [*RunNumber]:
        of = RunNumber(of)
    else:
        raise UserError(
            f"{wrong}; `of` is one of {', '.join(RunNumber)}, or {OF_EXAMPLE}{nearest(str(of), [*RunNumber])}"
        )
    at = node.get("at", 0.0 if form == "share_above" else 1.0)
    if not is_number(at) or not 0 <= at <= 1 or (at == 0 and form != "share_above"):
        raise UserError(f"{wrong}; `at` is a share of the iterations, above 0 and at most 1")
    if "log" in node and node["log"] not in BASES:
        raise UserError(f"{wrong}; `log` is the base, one of {', '.join(map(str, BASES))}")
    best = node.get("best")
    if best is not None and not (is_number(best) and 0 < best < 1 and form == "each" and of == RunNumber.training_loss):
        raise UserError(
            f"{wrong}; `best` is a share of a search's trials, between 0 and 1; it needs `each` and `of: training loss`"
        )
    low, high = _region(quantity, margin, wrong)
    contrasts, order = _contrasts(form, node[form], rows, wrong)
    if order and margin:
        raise UserError(f"{wrong}; an order is tested with margin 0")
    log = BASES.get(node.get("log"))
    test = ClaimTest(of, contrasts, order, low, high, float(at), log, form == "share_above", best)
    if unknown := [row for row in test.rows if not {row, *row.split(",")} & {*rows}]:
        raise UserError(f"{wrong}; the claim's rows lack {', '.join(unknown)}{nearest(unknown[0], rows)}")
    return test


def _region(quantity: str, margin: float, wrong: str) -> tuple[float, float]:
    """Read the lower and upper bound of a quantity from its text."""
    if not (region := REGION.search(" ".join(quantity.split()))):
        raise UserError(
            f"{wrong.partition(': test:')[0]}: the quantity {quantity!r} must say where it must lie, in these words: "
            '"must lie above the margin", "must lie below the margin", either with "minus the margin", or "must lie '
            'within plus and minus the margin"'
        )
    bound = -margin if region[2] else margin
    return {"above": (bound, math.inf), "below": (-math.inf, bound)}.get(region[1], (-margin, margin))


def _analysed(node: Mapping[str, Any], place: str) -> Analysed:
    """Read an `of` that names a number of an analysis."""
    wrong = f"{place}: must be as {OF_EXAMPLE}"
    keys = {"analyze", "table", "where", "minus", "by", *REDUCTIONS}
    if unknown := [str(key) for key in node if key not in keys]:
        raise UserError(f"{wrong}; {unknown[0]} is unknown{nearest(unknown[0], [*keys])}")
    chosen = [key for key in REDUCTIONS if key in node]
    if len(chosen) != 1 or not {"analyze", "table"} <= {*node}:
        raise UserError(f"{wrong}, with analyze, table and one of {', '.join(REDUCTIONS)}")
    columns = node[chosen[0]]
    texts = columns if are_names(columns) else [columns]
    matches = [COLUMN.fullmatch(text) if isinstance(text, str) else None for text in texts]
    if len(texts) != REDUCTIONS[chosen[0]] or not all(matches):
        number = "a column" if REDUCTIONS[chosen[0]] == 1 else "two columns, [x, y]"
        raise UserError(
            f"{wrong}; {chosen[0]} takes {number}: NAME or NAME below 0, with or without log2, log10 or abs in front"
        )
    analysis, *options = str(node["analyze"]).split()
    names = sorted(
        file.stem
        for file in (PACKAGE / "analysis" / "commands").glob("[a-z]*.py")
        if file.stem not in ("output", "subject")
    )
    if analysis not in names:
        raise UserError(f"{place}: analyze {analysis}: no such analysis{nearest(analysis, names)}")
    if len(options) % 2 or not all(name.startswith("--") for name in options[::2]):
        raise UserError(f"{wrong}; after the analysis write only options with a value, as --only single")
    return Analysed(
        analysis,
        tuple((name.removeprefix("--"), value) for name, value in zip(options[::2], options[1::2], strict=True)),
        str(node["table"]),
        chosen[0],
        tuple(CsvColumn(each[2], each[1] or "", float(each[3]) if each[3] else None) for each in matches if each),
        _lines(node.get("where", {}), wrong),
        _lines(node.get("minus", {}), wrong),
        str(node.get("by", "")),
    )


def _lines(node: Any, wrong: str) -> Conditions:
    """Read which lines of a table to use: for each column a word, a number or a range."""
    chosen: list[tuple[str, Any]] = []
    for column, value in node.items() if isinstance(node, Mapping) else [("", None)]:
        if isinstance(value, Sequence) and len(value) == 2 and all(map(is_number, value)):
            chosen.append((str(column), tuple(value)))
        elif isinstance(value, str) or is_number(value):
            chosen.append((str(column), value))
        else:
            raise UserError(f"{wrong}; `where` and `minus` give a column a value or a range, as {{unit: [1, 40]}}")
    return tuple(chosen)


def _contrasts(form: str, node: Any, rows: Sequence[str], wrong: str) -> tuple[tuple[Contrast, ...], tuple[str, ...]]:
    """Read the test's contrasts and the rows of its order; a test has only one of them, and the other is empty."""
    if form in ("slope", "log_slope"):
        if not isinstance(node, Mapping) or len(node) < 2 or not all(map(is_number, node)):
            raise UserError(f"{wrong}; a {form} is a mapping from two or more numbers, as {{20: a minus b, 56: c}}")
        if not all(isinstance(each, str) or is_number(each) for each in node.values()):
            raise UserError(f'{wrong}; a {form} has one text for each number, as {{8: "a minus b"}}, and no lists')
        if form == "log_slope" and min(node) <= 0:
            raise UserError(f"{wrong}; a log_slope is over numbers above 0")
        places = [math.log10(number) if form == "log_slope" else number for number in node]
        centre = fmean(places)
        spread = sum((place - centre) ** 2 for place in places)
        weights = [(place - centre) / spread for place in places]
        return (_sum([*map(str, node.values())], weights, rows),), ()
    if not are_names(node):
        raise UserError(f"{wrong}; {form} is a list, as [a minus b, a minus c]")
    if form == "share_above":
        if len({*node}) != 2 or len(node) != 2:
            raise UserError(f"{wrong}; a share_above has two different rows, as [a, b]")
        return (Contrast(((node[0], 1.0), (node[1], 0.0))),), ()
    if form == "order":
        if len({*node}) != len(node) or len(node) < 2:
            raise UserError(f"{wrong}; an order has two or more different rows")
        return (), tuple(node)
    if form == "mean":
        return (_sum(node, [1 / len(node)] * len(node), rows),), ()
    return tuple(_sum([text], [1.0], rows) for text in node), ()


def _sum(texts: Sequence[str], weights: Sequence[float], rows: Sequence[str]) -> Contrast:
    """Add up terms such as `a minus b`; a number that is no row is a constant."""
    by_row: dict[str, float] = {}
    constant = 0.0
    for text, weight in zip(texts, weights, strict=True):
        for place, term in enumerate(map(str.strip, text.split(" minus "))):
            signed = -weight if place else weight
            if term not in rows and re.fullmatch(r"-?\d+(\.\d+)?", term):
                constant += signed * float(term)
            else:
                by_row[term] = by_row.get(term, 0.0) + signed
    return Contrast(tuple(by_row.items()), constant)


def are_names(node: Any) -> bool:
    """Return whether the node is a list of one or more strings."""
    return (
        isinstance(node, Sequence)
        and not isinstance(node, str)
        and bool(node)
        and all(isinstance(name, str) for name in node)
    )


def is_number(value: Any) -> bool:
    """Return whether the value is a finite int or float, and not a bool."""
    return type(value) in (int, float) and math.isfinite(value)
