"""What a paper states about the rows of its table, as data of the sweep file."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deepnets.errors import UserError

EXAMPLE = "{claim: identity is lower than none, error: test, place: Table 1}"


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
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]


def claims_of(sweep: Any) -> list[Claim]:
    """The claims of a sweep's node, a mapping or `Sweep`; none of no sweep.

    Raises:
        UserError: one is not written as a claim is.
    """
    written = sweep.get("claims") if isinstance(sweep, Mapping) else getattr(sweep, "claims", None)
    if not isinstance(written or [], Sequence) or isinstance(written, str):
        raise UserError(f"sweep.claims={written}: must be a list of claims, as {EXAMPLE}")
    return [_claim(node) for node in written or []]


def _claim(node: Any) -> Claim:
    wrong = (
        f"sweep.claims: {node}: must be as {EXAMPLE}; relations: {', '.join(Relation)}; errors: {', '.join(Measured)}; "
        f'above, the error in percent from which a row fails, only with "{Relation.fails}"'
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
