"""What a paper states about the rows of its table, as data of the sweep file."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from deepnets.config.sweep import sweep_of
from deepnets.errors import UserError

EXAMPLE = "{claim: identity is lower than none, error: test, place: Table 1}"
REGISTERED_EXAMPLE = (
    "{sentence: it says, rows: [identity, none], quantity: and how it is measured, margin: 0, place: 3}"
)


class Relation(StrEnum):
    """Of the first row's error to the second's; fails: the first row does not learn what the second one does."""

    below = "is lower than"
    above = "is higher than"
    fails = "fails against"


class Measured(StrEnum):
    """The error that a claim is about, of the last epoch."""

    test = "test"
    training = "training"


@dataclass(frozen=True)
class Claim:
    """Row `first` stands in `relation` to row `second`, in `error`, as the paper says at `place`.

    A name without commas may be one value of a sweep with several axes: the claim is about each pair of rows that
    differ in it alone. `second` may be of another sweep, SWEEP/ROW. A run of the published protocol fails `above` this
    error in percent, where the paper names one.
    """

    first: str
    relation: Relation
    second: str
    error: Measured
    place: str
    above: float | None = None

    @property
    def text(self) -> str:
        """`identity is lower than none, in training error`."""
        return f"{self.first} {self.relation} {self.second}" + ", in training error" * (self.error != Measured.test)

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits of what is claimed, wherever it is printed and whatever it counts as a fail."""
        return _hash(self.text)


@dataclass(frozen=True)
class Registered:
    """A claim that no `Relation` can express, written down before the runs that will test it.

    `sentence` says what the paper states at `place`, `rows` names the rows it is about (ROW, SWEEP/ROW, or
    analysis/NAME/NET for the networks that an analysis draws itself). `quantity` says what is measured, in which unit,
    and on which side of `margin`, a number in that unit, its 95 % interval must lie: one test, and only one.
    """

    sentence: str
    rows: tuple[str, ...]
    quantity: str
    margin: float
    place: str

    @property
    def text(self) -> str:
        """The sentence, and in brackets how it will be tested."""
        return f"{self.sentence} ({self.quantity}; margin {self.margin:g}; rows {'; '.join(self.rows)})"

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits of all but the place; what a file adds later, to run the test, is outside it."""
        return _hash(json.dumps([self.sentence, list(self.rows), self.quantity, self.margin]))


def claims_of(sweep: Any) -> list[Claim]:
    """The claims of a sweep's node (a mapping or `Sweep`) that can be tested; none where there is no sweep.

    Raises:
        UserError: one is not written as a claim is.
    """
    return [claim for claim in _claims(sweep) if isinstance(claim, Claim)]


def registered_of(sweep: Any) -> list[Registered]:
    """The claims of a sweep's node that cannot be tested yet; raises as `claims_of`."""
    return [claim for claim in _claims(sweep) if isinstance(claim, Registered)]


def margins_of(sweep: Any) -> dict[str, float]:
    """The margin that a sweep's node states for each scale, in percent points: a smaller difference counts as none.

    Raises:
        UserError: it is not a positive number for each scale.
    """
    written = (sweep.get("margins") if isinstance(sweep, Mapping) else getattr(sweep, "margins", None)) or {}
    if not isinstance(written, Mapping) or not all(
        isinstance(scale, str) and type(margin) in (int, float) and 0 < margin < math.inf
        for scale, margin in written.items()
    ):
        raise UserError(f"sweep.margins={written}: must be percent points by scale, as {{full: 0.5, deep: 2}}")
    return dict(written)


@cache
def claims_on_file(folder: Path) -> tuple[str, ...]:
    """Every claim of all sweep files in a folder, as SWEEP/HASH. Read once in a process: 10 ms for 50 files.

    Raises:
        UserError: as `claims_of`.
    """
    claims = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            claims += [f"{file.stem}/{claim.hash}" for claim in _claims(sweep_of(file))]
        except UserError as error:
            raise UserError(str(error) if str(file) in str(error) else f"{file}: {error}") from error
    return tuple(claims)


def _claims(sweep: Any) -> list[Claim | Registered]:
    written = sweep.get("claims") if isinstance(sweep, Mapping) else getattr(sweep, "claims", None)
    if not isinstance(written or [], Sequence) or isinstance(written, str):
        raise UserError(f"sweep.claims={written}: must be a list of claims, as {EXAMPLE}")
    return [
        _registered(node) if isinstance(node, Mapping) and "sentence" in node else _claim(node)
        for node in written or []
    ]


def _claim(node: Any) -> Claim:
    wrong = (
        f"sweep.claims: {node}: must be as {EXAMPLE}; relations: {', '.join(Relation)}; errors: {', '.join(Measured)}; "
        f'above, the error in percent from which a row fails, only with "{Relation.fails}"; '
        f"a claim that these cannot express: {REGISTERED_EXAMPLE}"
    )
    if not isinstance(node, Mapping) or not {"claim", "place"} <= {*node} <= {"claim", "error", "place", "above"}:
        raise UserError(wrong)
    found = re.fullmatch(rf"(\S+) ({'|'.join(Relation)}) (\S+)", str(node["claim"]).strip())
    error = node.get("error", Measured.test)
    if not found or error not in [*Measured]:
        raise UserError(wrong)
    first, relation, second = found.groups()
    above = node.get("above")
    if above is not None and (relation != Relation.fails or type(above) not in (int, float) or not 0 < above < 100):
        raise UserError(wrong)
    return Claim(first, Relation(relation), second, Measured(error), str(node["place"]), above)


def _registered(node: Mapping[str, Any]) -> Registered:
    wrong = f"sweep.claims: {node}: must be as {REGISTERED_EXAMPLE}"
    if {*node} != {"sentence", "rows", "quantity", "margin", "place"}:
        raise UserError(f"{wrong}; all five are needed, and no others")
    sentence, rows, quantity, margin = (node[key] for key in ("sentence", "rows", "quantity", "margin"))
    if not all(isinstance(text, str) and text.strip() for text in (sentence, quantity)):
        raise UserError(f"{wrong}; sentence and quantity are texts")
    if (
        not isinstance(rows, Sequence)
        or isinstance(rows, str)
        or not rows
        or not all(isinstance(row, str) for row in rows)
    ):
        raise UserError(f"{wrong}; rows is a list of names")
    if type(margin) not in (int, float) or not math.isfinite(margin) or margin < 0:
        raise UserError(f"{wrong}; margin is a number of at least 0, in the quantity's unit")
    return Registered(sentence, tuple(rows), quantity, float(margin), str(node["place"]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
