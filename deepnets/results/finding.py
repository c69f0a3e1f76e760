"""Tests claims about two rows: looks at the first seeds of both rows, and says what they answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import count, islice
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np

from deepnets.config.claim import Claim, Measured, Relation
from deepnets.results.cell import FAIL_ABOVE
from deepnets.results.columns import FAIL_MARGIN
from deepnets.results.statistics import CONFIDENCE, TEST_SET_NOTE, WORST_ERROR, image_noise, power, welch

LOOKS = {3: 0.005, 5: 0.015, 10: 0.03}  # seeds of each row at a look: the part of the 5 % error that this look spends
MOST = max(LOOKS)

CLAIM_RULE = (
    f"A claim is looked at three times at most: when the first {', '.join(map(str, LOOKS))} seeds of both rows have "
    "ended; seeds that somebody had seen before the claim was written down do not count. Each look is Welch's t "
    f"test on the mean errors; the looks divide an error of {100 * (1 - CONFIDENCE):.0f}% among them, "
    f"{', '.join(f'{100 * spent:g}%' for spent in LOOKS.values())}, so that intervals are wider at earlier looks. "
    "The first look whose interval leaves out 0 answers: supported on the claimed side, contradicted on the other. "
    "No difference: the interval lies within plus and minus the margin, if the sweep states one for the scale. "
    "Undecided: no look has answered. At the protocol of a published table a run fails by the paper's bound "
    f"({FAIL_ABOVE:.0f}%, or the claim's own); elsewhere it fails above {FAIL_ABOVE:.0f}%, unless it is "
    f"{FAIL_MARGIN:.0f} percent points better than the plain net of its depth, or than guessing if the table "
    "has none or the row is that net. The claim that a row fails is supported only if all of its runs fail too, and no "
    "run of the other row does; it is contradicted if none of its runs fails and the interval does not lie on the "
    "claimed side; it is not shown at this scale if a row that learns in the paper fails here by the same rule. "
    f"A diverged run counts as {WORST_ERROR:.0f}%. p (Holm) is the smallest p of the looks, corrected for the part of "
    "the error that each spends and for the distinct pairs of rows in the sweep; it is a second mark, not the answer. "
    "P is the share of pairs of runs in which the first row's error is higher; ties count half. "
    f"{TEST_SET_NOTE}"
)


class Outcome(StrEnum):
    """What the runs answer to a claim."""

    supported = "supported"
    contradicted = "contradicted"
    no_difference = "no difference"
    not_shown = "not shown at this scale"
    undecided = "undecided"


class Waiting(NamedTuple):
    """An ended run that gets its number only when `command` analyses it; `known` is as in `Side`."""

    seed: int
    known: bool
    command: str


@dataclass(frozen=True)
class Side:
    """The runs of a row that have ended: errors in percent, seeds, and whether the claim was `known` when each began.

    `wrong` says for each run which test images it got wrong, (images,), None if that is not known. `identities` are the
    runs' identities apart from their seeds: rows with different names but equal identities are the same experiment.
    `waiting` are the ended runs without a number. In a random search, each trial counts as a seed.
    """

    row: str
    errors: tuple[float, ...]
    known: tuple[bool, ...]
    seeds: tuple[int, ...]
    wrong: tuple[np.ndarray | None, ...] = ()
    identities: frozenset[str] = frozenset()
    waiting: tuple[Waiting, ...] = ()

    @cached_property
    def unseen(self) -> dict[int, float]:
        """The error of each seed that nobody had seen before the claim was written down."""
        ended = zip(self.seeds, self.errors, self.known, strict=True)
        return {seed: error for seed, error, known in ended if known and seed not in self._seen}

    def first(self, seeds: int) -> list[int]:
        """Return the first unseen seeds, ended or not, so that a look cannot choose among the trained seeds."""
        return list(islice((seed for seed in count() if seed not in self._seen), seeds))

    def at(self, seeds: int) -> list[float] | None:
        """Return the errors of the `first` seeds; None while one of them has not ended."""
        chosen = self.first(seeds)
        return [self.unseen[seed] for seed in chosen] if self.unseen.keys() >= {*chosen} else None

    @cached_property
    def _seen(self) -> set[int]:
        ended = [*zip(self.seeds, self.known, strict=True), *((run.seed, run.known) for run in self.waiting)]
        return {seed for seed, known in ended if not known}


@dataclass(frozen=True)
class Look:
    """Welch's test on the first `seeds` seeds of both rows.

    `difference` is the first row's mean error minus the second's, in percent points; `low` and `high` bound it with
    1 - `spent` confidence; `p` is for this look alone.
    """

    seeds: int
    spent: float
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Finding:
    """A claim about two rows of a column, and what their runs say about it.

    `fail_above` is in percent; `margin` is in percent points, None if the sweep states none for this scale. `learns`
    says that the rows which learn in the paper also learn here, by `fail_above`. `p_holm` is set later, when all
    findings of a column are known. `analyses` is empty, since errors need no analysis.
    """

    claim: Claim
    first: Side
    second: Side
    fail_above: float
    margin: float | None = None
    learns: bool = True
    p_holm: float | None = None
    unit: ClassVar[str] = "seed"  # what a look counts
    analyses: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[int, int]:
        return len(self.first.errors), len(self.second.errors)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.first, self.second

    @property
    def number(self) -> str:
        """Which error of the runs is compared: `test` or `training`."""
        return self.claim.error.value

    @property
    def other(self) -> str:
        """The second row, with its sweep's name if it is of another sweep."""
        return self.claim.second if "/" in self.claim.second else self.second.row

    @property
    def text(self) -> str:
        """The claim in words, with this finding's rows, e.g. `identity is lower than none, in training error`."""
        return replace(self.claim, first=self.first.row, second=self.other).text

    @property
    def seen_before(self) -> int:
        """How many runs began before the claim was written down, or repeat a seed that had been seen."""
        return sum(self.seeds) - len(self.first.unseen) - len(self.second.unseen)

    @cached_property
    def looks(self) -> list[Look]:
        """The looks that the unseen seeds allow, first to last."""
        sides = [(self.first.at(seeds), self.second.at(seeds), spent) for seeds, spent in LOOKS.items()]
        return [Look(len(one), spent, *welch(one, other, spent)) for one, other, spent in sides if one and other]

    @property
    def difference(self) -> float | None:
        """The first row's mean error minus the second's, in percent points, at the last look or over all runs."""
        if self.looks:
            return self.looks[-1].difference
        return fmean(self.first.errors) - fmean(self.second.errors) if all(self.seeds) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference at the last look; None before the first look."""
        return (self.looks[-1].low, self.looks[-1].high) if self.looks else None

    @property
    def p(self) -> float | None:
        """The smallest p of the looks, each corrected for its part of the error; None before the first look."""
        return min((min(1.0, look.p * (1 - CONFIDENCE) / look.spent) for look in self.looks), default=None)

    @property
    def superiority(self) -> float | None:
        """P(first > second): the share of pairs of runs in which the first has the larger error; ties count half."""
        pairs = [(a > b) + (a == b) / 2 for a in self.first.errors for b in self.second.errors]
        return fmean(pairs) if pairs else None

    @property
    def image_noise(self) -> float | None:
        """How far the choice of test images alone may move the difference, in percent points; see `statistics`."""
        if self.claim.error != Measured.test:
            return None
        return image_noise(self.first.wrong, self.second.wrong)

    @cached_property
    def outcome(self) -> Outcome:
        """The answer of the first look that decides the claim by `CLAIM_RULE`; else undecided."""
        answers = map(self._answer, self.looks)
        return next((answer for answer in answers if answer is not Outcome.undecided), Outcome.undecided)

    @property
    def next_look(self) -> int | None:
        """How many seeds of each row the next look needs; None if the claim is decided, or no look can decide it."""
        if self.outcome is not Outcome.undecided:
            return None
        done = self.looks[-1].seeds if self.looks else 0
        seeds = min((seeds for seeds in LOOKS if seeds > done), default=None)
        return None if seeds is None or self._is_hopeless(seeds) else seeds

    @property
    def lacking(self) -> tuple[list[int], list[int]] | None:
        """The seeds that each row lacks for the next look; None if there is no next look."""
        if (seeds := self.next_look) is None:
            return None
        first, second = ([seed for seed in side.first(seeds) if seed not in side.unseen] for side in self.sides)
        return first, second

    @property
    def chance(self) -> float | None:
        """The probability that the next look shows a difference, if difference and spread stay as they are."""
        if (seeds := self.next_look) is None or min(self.seeds) < 2:
            return None
        return power(*_difference_and_spread(self.first.errors, self.second.errors), seeds, LOOKS[seeds])

    def _is_hopeless(self, seeds: int) -> bool:
        """Whether no look can decide that the first row fails, because of how the first `seeds` seeds ended.

        If one of its runs fails, the claim cannot be contradicted. If another one learns, or if a run of the second row
        fails, it cannot be supported. *No difference* takes a margin, and *not shown* a row that does not learn here.
        """
        if self.claim.relation is not Relation.fails or not self.learns or self.margin is not None:
            return False
        ended = [{seed: side.unseen[seed] for seed in side.first(seeds) if seed in side.unseen} for side in self.sides]
        fails = [{error > self.fail_above for error in errors.values()} for errors in ended]
        return True in fails[0] and (False in fails[0] or True in fails[1])

    def _answer(self, look: Look) -> Outcome:
        low, high = (-look.high, -look.low) if self.claim.relation is Relation.below else (look.low, look.high)
        on_its_side, on_the_other = low > 0, high < 0
        if self.claim.relation is Relation.fails:
            if not self.learns:
                return Outcome.not_shown
            first, second = ([error > self.fail_above for error in side.at(look.seeds) or []] for side in self.sides)
            on_the_other = not on_its_side and not any(first)
            on_its_side = on_its_side and all(first) and not any(second)
        if on_its_side:
            return Outcome.supported
        if on_the_other:
            return Outcome.contradicted
        within = self.margin is not None and -self.margin < low and high < self.margin
        return Outcome.no_difference if within else Outcome.undecided


def _difference_and_spread(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means, and the pooled standard deviation of the two rows."""
    return fmean(first) - fmean(second), math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)
