"""Tests claims about rows: looks at the first seeds of each row, and says what they answer."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import count, islice
from statistics import fmean
from typing import ClassVar, NamedTuple

import numpy as np

from deepnets.config.claim import Claim, Measured, Registered, Relation
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
    "The first look whose interval leaves out 0 answers: supported on the claimed side, contradicted on the other. Its "
    "numbers are shown; if a later look alone answers otherwise, the last column says so. Two rows without any spread "
    "between their seeds are not tested. "
    "No difference: the interval lies within plus and minus the margin, if the sweep states one for the scale. "
    "Undecided: no look has answered. At the protocol of a published table a run fails by the paper's bound "
    f"({FAIL_ABOVE:.0f}%, or the claim's own); elsewhere it fails above {FAIL_ABOVE:.0f}%, unless it is "
    f"{FAIL_MARGIN:.0f} percent points better than the plain net of its depth, or than guessing if the table "
    "has none or the row is that net. The claim that a row fails is supported only if all of its runs at the look fail "
    "too, and none of the other row's does. It is contradicted if none of them fails and the interval lies on the "
    f"other side, or, at {MOST} seeds, not on the claimed one. It is not shown at this scale if a row that learns in "
    f"the paper fails here by the same rule. A diverged run counts as {WORST_ERROR:.0f}%. p (Holm) is the smallest p "
    "of the looks, corrected for the part of the error that each spends and for the number of distinct tests of two "
    "rows in the sweep; it is a second mark, not the answer. "
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
    """A test on the first `seeds` seeds of each row: a number, its bounds, and what they answer.

    For two rows, the number is the first row's mean error minus the second's, in percent points. `low` and `high`
    bound it with 1 - `spent` confidence; `p` is for this look alone, nan if the test has none.
    """

    seeds: int
    spent: float
    difference: float
    low: float
    high: float
    outcome: Outcome
    p: float = math.nan


@dataclass(frozen=True)
class Finding(ABC):
    """A claim about rows of a column, and what their runs say about it.

    `p_holm` is set later, when all findings of a column are known; a registered claim has none.
    """

    claim: Claim | Registered
    sides: tuple[Side, ...]
    p_holm: float | None = field(default=None, kw_only=True)
    counted: ClassVar[str] = "seed"  # what a look counts
    superiority: ClassVar[float | None] = None
    image_noise: ClassVar[float | None] = None

    @property
    @abstractmethod
    def text(self) -> str:
        """The claim in words, e.g. `identity is lower than none, in training error`."""

    @property
    @abstractmethod
    def other(self) -> str:
        """The rows but the first one, by name."""

    @property
    @abstractmethod
    def number(self) -> str:
        """Which number of the runs the claim is about."""

    @cached_property
    @abstractmethod
    def looks(self) -> list[Look]:
        """The looks that the unseen seeds allow, first to last."""

    @property
    @abstractmethod
    def chance(self) -> float | None:
        """The probability that the next look answers, if the rows' means and spreads stay as they are."""

    @property
    def sizes(self) -> dict[int, float]:
        """The part of the error that each look spends, by its number of seeds."""
        return LOOKS

    @abstractmethod
    def _so_far(self) -> float:
        """Return the number over all runs, when each row has one; it is shown before the first look."""

    @abstractmethod
    def _is_hopeless(self, seeds: int) -> bool:
        """Whether no look can decide the claim, because of how some of the first `seeds` seeds ended."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """How many runs of each row have ended."""
        return tuple(len(side.errors) for side in self.sides)

    @property
    def seen_before(self) -> int:
        """How many runs began before the claim was written down, or repeat a seed that had been seen."""
        return sum(self.seeds) - sum(len(side.unseen) for side in self.sides)

    @cached_property
    def shown(self) -> Look | None:
        """The first look that answers, which decides the claim; else the last look; None before the first."""
        answering = (look for look in self.looks if look.outcome is not Outcome.undecided)
        return next(answering, self.looks[-1] if self.looks else None)

    @property
    def later(self) -> Look | None:
        """The last look if it alone does not give the answer that an earlier one gave."""
        last = self.looks[-1] if self.looks else None
        return last if last and last.outcome is not self.outcome else None

    @property
    def outcome(self) -> Outcome:
        """The answer of the first look that decides the claim; else undecided."""
        return self.shown.outcome if self.shown else Outcome.undecided

    @property
    def difference(self) -> float | None:
        """The number at the look that is `shown`, or over all runs."""
        if self.shown:
            return self.shown.difference
        return self._so_far() if all(self.seeds) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the number at the look that is `shown`; None before the first look or without bounds."""
        bounds = (self.shown.low, self.shown.high) if self.shown else (math.inf, math.inf)
        return bounds if all(map(math.isfinite, bounds)) else None

    @property
    def next_look(self) -> int | None:
        """How many seeds of each row the next look needs; None if the claim is decided, or no look can decide it."""
        if self.outcome is not Outcome.undecided:
            return None
        done = self.looks[-1].seeds if self.looks else 0
        seeds = min((seeds for seeds in self.sizes if seeds > done), default=None)
        return None if seeds is None or self._is_hopeless(seeds) else seeds

    @property
    def lacking(self) -> tuple[list[int], ...] | None:
        """The seeds that each row must still train for the next look; None if there is no next look."""
        if (seeds := self.next_look) is None:
            return None
        trained = [{*side.unseen, *(run.seed for run in side.waiting)} for side in self.sides]
        return tuple(
            [seed for seed in side.first(seeds) if seed not in trained_seeds]
            for side, trained_seeds in zip(self.sides, trained, strict=True)
        )

    @property
    def analyses(self) -> list[str]:
        """The commands that analyse the ended runs which lack their number for the next look."""
        chosen = [(side, side.first(seeds)) for side in self.sides if (seeds := self.next_look)]
        return [run.command for side, first in chosen for run in side.waiting if run.seed in first]


@dataclass(frozen=True)
class PairFinding(Finding):
    """A claim about the errors of two rows.

    `fail_above` is in percent; `margin` is in percent points, None if the sweep states none for this scale. `learns`
    says that the rows which learn in the paper also learn here, by `fail_above`.
    """

    claim: Claim
    fail_above: float
    margin: float | None = None
    learns: bool = True

    @property
    def number(self) -> str:
        """Which error of the runs is compared: `test` or `training`."""
        return self.claim.error.value

    @property
    def other(self) -> str:
        """The second row, with its sweep's name if it is of another sweep."""
        return self.claim.second if "/" in self.claim.second else self.sides[1].row

    @property
    def text(self) -> str:
        return replace(self.claim, first=self.sides[0].row, second=self.other).text

    @cached_property
    def looks(self) -> list[Look]:
        chosen = [([side.at(seeds) for side in self.sides], spent) for seeds, spent in LOOKS.items()]
        return [self._look(one, other, spent) for (one, other), spent in chosen if one and other]

    def _so_far(self) -> float:
        one, other = (fmean(side.errors) for side in self.sides)
        return one - other

    @property
    def p(self) -> float | None:
        """The smallest p of the looks, each corrected for its part of the error; None before the first look."""
        return min((min(1.0, look.p * (1 - CONFIDENCE) / look.spent) for look in self.looks), default=None)

    @property
    def superiority(self) -> float | None:  # type: ignore[override]
        """P(first > second): the share of pairs of runs in which the first has the larger error; ties count half."""
        one, other = (side.errors for side in self.sides)
        pairs = [(a > b) + (a == b) / 2 for a in one for b in other]
        return fmean(pairs) if pairs else None

    @property
    def image_noise(self) -> float | None:  # type: ignore[override]
        """How far the choice of test images alone may move the difference, in percent points; see `statistics`."""
        return image_noise(*(side.wrong for side in self.sides)) if self.claim.error is Measured.test else None

    @property
    def chance(self) -> float | None:
        if (seeds := self.next_look) is None or min(self.seeds) < 2:
            return None
        return power(*_difference_and_spread(*(side.errors for side in self.sides)), seeds, LOOKS[seeds])

    def _is_hopeless(self, seeds: int) -> bool:
        """Whether no look can decide that the first row fails.

        If one of its runs fails, the claim cannot be contradicted. If another one learns, or if a run of the second row
        fails, it cannot be supported. *No difference* takes a margin, and *not shown* a row that does not learn here.
        """
        if self.claim.relation is not Relation.fails or not self.learns or self.margin is not None:
            return False
        ended = [{seed: side.unseen[seed] for seed in side.first(seeds) if seed in side.unseen} for side in self.sides]
        fails = [{error > self.fail_above for error in errors.values()} for errors in ended]
        return True in fails[0] and (False in fails[0] or True in fails[1])

    def _look(self, one: Sequence[float], other: Sequence[float], spent: float) -> Look:
        """Test the first seeds of the two rows, and answer by `CLAIM_RULE`."""
        test = welch(one, other, spent)
        low, high = (-test.high, -test.low) if self.claim.relation is Relation.below else (test.low, test.high)
        on_its_side, on_the_other = low > 0, high < 0
        if self.claim.relation is Relation.fails:
            fails, others = ([error > self.fail_above for error in errors] for errors in (one, other))
            on_the_other = not any(fails) and (on_the_other or (len(one) == MOST and not on_its_side))
            on_its_side = on_its_side and all(fails) and not any(others)
        if self.claim.relation is Relation.fails and not self.learns:
            outcome = Outcome.not_shown
        elif on_its_side or on_the_other:
            outcome = Outcome.supported if on_its_side else Outcome.contradicted
        else:
            within = self.margin is not None and -self.margin < low and high < self.margin
            outcome = Outcome.no_difference if within else Outcome.undecided
        return Look(len(one), spent, test.difference, test.low, test.high, outcome, test.p)


def _difference_and_spread(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means, and the pooled standard deviation of the two rows."""
    return fmean(first) - fmean(second), math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)
