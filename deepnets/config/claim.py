"""Reads the claims in a sweep file: statements of the paper about the rows of its table."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from deepnets.config.project import CONF
from deepnets.config.quantity import DRAWN, ClaimTest, are_names, is_number, read_test
from deepnets.config.schema import Search
from deepnets.config.sweep import ANY, SWEEPS, matching, names_at, sweep_of
from deepnets.errors import UserError, nearest
from deepnets.system.printing import print_error

EXAMPLE = "{claim: identity is lower than none, error: test, place: Table 1}"
REGISTERED_EXAMPLE = (
    "{sentence: it says, rows: [identity, none], quantity: and how it is measured, margin: 0, place: 3}"
)


class Relation(StrEnum):
    """How the first row's error relates to the second's; `fails`: only the second learns."""

    below = "is lower than"
    above = "is higher than"
    fails = "fails against"


class Measured(StrEnum):
    """Which error a claim compares: the test or the training error, after the last epoch."""

    test = "test"
    training = "training"


@dataclass(frozen=True)
class Claim:
    """The paper says at `place` how the `error` of row `first` relates to the `error` of row `second`.

    In a sweep with several axes, both names may be values of one axis; the claim is then about each pair of rows that
    differ only in that axis. `second` may be a row of another sweep, SWEEP/ROW. `above` is the error in percent above
    which a run of the published protocol has failed, if the paper names one.
    """

    first: str
    relation: Relation
    second: str
    error: Measured
    place: str
    above: float | None = None

    @property
    def text(self) -> str:
        """The claim in words: `identity is lower than none, in training error`."""
        return f"{self.first} {self.relation} {self.second}" + ", in training error" * (self.error != Measured.test)

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits, which depend on `text` but not on `place` and `above`."""
        return _hash(self.text)

    def concerns(self, row: str) -> bool:
        """Return whether a row of the claim's sweep is one of its rows, or has one of its values of an axis."""
        return not {row, *row.split(",")}.isdisjoint((self.first, self.second))


@dataclass(frozen=True)
class Registered:
    """A claim that no `Relation` can express, written down before the runs that will test it.

    `sentence` says what the paper states at `place`, and `rows` names the rows that it is about: ROW, SWEEP/ROW, or
    analysis/NAME/NET for a network that the analysis NAME initialises itself. `quantity` says what is measured, in
    which unit, and whether its 95 % interval must lie above, below or within `margin`, a number in that unit; nothing
    else decides the claim. `test` says how to compute the quantity, and may be added later.
    """

    sentence: str
    rows: tuple[str, ...]
    quantity: str
    margin: float
    place: str
    test: ClaimTest | None = None

    @property
    def elsewhere(self) -> str:
        """The other sweep, or analysis/NAME, that has the rows; empty if one of them is in the claim's own sweep."""
        sweeps = [row.rpartition("/")[0] for row in (self.test.rows if self.test else self.rows)]
        return "" if "" in sweeps else sweeps[0]

    @property
    def text(self) -> str:
        """The sentence, and in brackets how it will be tested."""
        return f"{self.sentence} ({self.quantity}; margin {self.margin:g}; rows {'; '.join(self.rows)})"

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits, which depend on all but `place` and `test`, so that a test may be added later."""
        return _hash(json.dumps([self.sentence, list(self.rows), self.quantity, self.margin]))

    def concerns(self, row: str) -> bool:
        """Return whether a row of the claim's sweep is one of its rows, or has one of its values of an axis."""
        return not {row, *row.split(",")}.isdisjoint(self.rows)


def claims_of(sweep: Any) -> list[Claim]:
    """Return the claims of a sweep's node (a mapping or `Sweep`) that have a `Relation`; none if there is no sweep.

    Raises:
        UserError: a claim is not written as `EXAMPLE` or `REGISTERED_EXAMPLE`.
    """
    return [claim for claim in _claims(sweep) if isinstance(claim, Claim)]


def registered_of(sweep: Any) -> list[Registered]:
    """Return the registered claims of a sweep's node, with and without a test; raises as `claims_of`."""
    return [claim for claim in _claims(sweep) if isinstance(claim, Registered)]


def decidable_of(sweep: Any) -> list[Claim | Registered]:
    """Return the claims that runs can decide: all but registered ones without a test; raises as `claims_of`."""
    return [claim for claim in _claims(sweep) if isinstance(claim, Claim) or claim.test]


def margins_of(sweep: Any) -> dict[str, float]:
    """Return a sweep's margin by scale, in percent points: rows whose errors differ by less count as equal.

    Raises:
        UserError: the margins are not a positive number for each scale.
    """
    written = (sweep.get("margins") if isinstance(sweep, Mapping) else getattr(sweep, "margins", None)) or {}
    if not isinstance(written, Mapping) or not all(
        isinstance(scale, str) and type(margin) in (int, float) and 0 < margin < math.inf
        for scale, margin in written.items()
    ):
        raise UserError(f"sweep.margins={written}: must be percent points by scale, as {{full: 0.5, deep: 2}}")
    return dict(written)


def registered_on_file(folder: Path) -> tuple[tuple[str, Registered], ...]:
    """Return the registered claims that have a test, from all sweep files in a folder, each with its sweep's name."""
    claims = all_claims(folder)
    return tuple((sweep, claim) for sweep, claim in claims if isinstance(claim, Registered) and claim.test)


@cache
def claims_on_file(folder: Path) -> tuple[str, ...]:
    """Return every claim of all sweep files in a folder, as SWEEP/HASH."""
    return tuple(f"{sweep}/{claim.hash}" for sweep, claim in all_claims(folder))


@cache
def all_claims(folder: Path) -> tuple[tuple[str, Claim | Registered], ...]:
    """Read the claims of all sweep files in a folder, once, as this takes 50 ms; a file in error is named and skipped.

    A run then does not note the claims of this file, and so counts for none of them.
    """
    claims: list[tuple[str, Claim | Registered]] = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            claims += [(file.stem, claim) for claim in _claims(sweep_of(file))]
        except UserError as error:
            said = str(error).removeprefix(f"{file}: ")
            print_error(f"{file}: {said}; the claims of this file are left out")
    return tuple(claims)


def check_claims(file: Path, search: Search | None = None) -> None:
    """Check that the rows in a sweep file's claims and the scales in its margins exist, before any seed is trained.

    `search` is where a command finds the file's options; see `names_at`. A row must exist at one scale or more. A file
    is not checked if Hydra must compose it to know its rows.

    Raises:
        UserError: a row or scale does not exist; the message gives the nearest one that does.
    """
    sweep = sweep_of(file)
    scales = sorted({option.stem for folder in (CONF, file.parents[1]) for option in folder.glob("scale/*.yaml")})
    for scale in margins_of(sweep):
        _check_name(scale, scales, f"{file}: sweep.margins: no scale")
    rows_of_file = cache(lambda of_rows: _names_in(of_rows, scales, search))
    for claim in decidable_of(sweep):
        names = (claim.first, claim.second) if isinstance(claim, Claim) else claim.test.rows if claim.test else ()
        for name in names:
            other, _, row = name.rpartition("/")
            if other.startswith(DRAWN):
                continue
            of_rows = file.with_name(f"{other}.yaml") if other else file
            if not of_rows.is_file():
                of_rows = SWEEPS / of_rows.name
            rows = rows_of_file(of_rows) if of_rows.is_file() else set()
            parts = {part for each in rows for part in each.split(",")} - {ANY}
            if rows or not of_rows.is_file():
                text = claim.text if isinstance(claim, Claim) else claim.sentence
                _check_name(row, [*rows, *([] if "," in row else parts)], f"{file}: sweep.claims: {text}: no row")


def _names_in(file: Path, scales: Sequence[str], search: Search | None) -> set[str]:
    """Return the names of a file's rows at these scales; with `ANY` only at full scale, as a file may lack others."""
    return {name for scale in scales for name in names_at(file, scale, search) if ANY not in name or scale == "full"}


def _check_name(name: str, names: Sequence[str], wrong: str) -> None:
    if matching(name, names) is None:
        raise UserError(f"{wrong} {name}{nearest(name, names)}")


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
    if not isinstance(node, Mapping) or not {"claim"} <= {*node} <= {"claim", "error", "place", "above"}:
        raise UserError(wrong)
    match = re.fullmatch(rf"(\S+) ({'|'.join(Relation)}) (\S+)", str(node["claim"]).strip())
    error = node.get("error", Measured.test)
    if not match or error not in [*Measured]:
        raise UserError(wrong)
    first, relation, second = match.groups()
    above = node.get("above")
    if above is not None and (relation != Relation.fails or type(above) not in (int, float) or not 0 < above < 100):
        raise UserError(wrong)
    return Claim(first, Relation(relation), second, Measured(error), str(node.get("place", "")), above)


def _registered(node: Mapping[str, Any]) -> Registered:
    wrong = f"sweep.claims: {node}: must be as {REGISTERED_EXAMPLE}"
    if {*node} - {"test", "place"} != {"sentence", "rows", "quantity", "margin"}:
        raise UserError(f"{wrong}; the first four are needed, and only place and test may be added")
    sentence, rows, quantity, margin = (node[key] for key in ("sentence", "rows", "quantity", "margin"))
    if not all(isinstance(text, str) and text.strip() for text in (sentence, quantity)):
        raise UserError(f"{wrong}; sentence and quantity are texts")
    if not are_names(rows):
        raise UserError(f"{wrong}; rows is a list of names")
    if not is_number(margin) or margin < 0:
        raise UserError(f"{wrong}; margin is a number of at least 0, in the quantity's unit")
    claim = Registered(sentence, tuple(rows), quantity, float(margin), str(node.get("place", "")))
    if "test" not in node:
        return claim
    return replace(claim, test=read_test(node["test"], sentence, claim.rows, quantity, claim.margin))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
