"""A claim about two rows, and what their runs say: the test, its outcome and the seeds that it still lacks."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

import numpy as np
from scipy import stats

from deepnets.config.claim import Claim, Measured, Relation
from deepnets.results.cell import FAIL_ABOVE
from deepnets.results.statistics import CONFIDENCE, FEWEST_SEEDS, WORST_ERROR, image_noise

FAILS_AT_SCALE = 80.0  # percent; where the protocol is not the paper's: near the 90 of guessing one class of ten

IMAGE_NOISE = (
    "Test set: half of the interval of the difference over the choice of test images, from the images that each run "
    "got right."
)
RULE = (
    f"A claim is supported if the {100 * CONFIDENCE:.0f}% interval of the difference of mean errors (Welch's t, over "
    "seeds) lies on the claimed side of 0, contradicted if it lies on the other side, and undecided otherwise or with "
    f"fewer than {FEWEST_SEEDS} seeds of a row. A run fails if its error is not finite or above {FAIL_ABOVE:.0f}% "
    f"({FAILS_AT_SCALE:.0f}% if the paper prints no fails or the protocol is not the paper's; or above the error that "
    "the claim's paper names for its protocol). That a row fails is supported if all of its runs fail, none of the "
    "other row fails, and the interval lies on that side; it is contradicted if none of its runs fails and the "
    "interval does not lie on that side. Runs set up before the claim was written down (seen before) do not count "
    f"towards supported. A diverged run counts as {WORST_ERROR:.0f}%. P is the share of pairs of runs in which the "
    f"first row's error is higher. {IMAGE_NOISE} More seeds: those that the first and the second row still lack for "
    "an interval that leaves out 0 four times of five, if difference and spread stay as they are; runs seen before do "
    "not count."
)


class Outcome(StrEnum):
    """What the runs say about a claim."""

    supported = "supported"
    contradicted = "contradicted"
    undecided = "undecided"


@dataclass(frozen=True)
class Side:
    """The runs of a row that have ended: `errors` in percent, and how many of them knew the claim at launch.

    `wrong` says which test images made these errors, (images,) for each run, None where that is not known.
    """

    row: str
    wrong: tuple[np.ndarray | None, ...]
    errors: tuple[float, ...]
    known: tuple[bool, ...]

    @property
    def counted(self) -> tuple[float, ...]:
        """The errors of the runs that were set up when the claim stood."""
        return tuple(error for error, known in zip(self.errors, self.known, strict=True) if known)


@dataclass(frozen=True)
class Finding:
    """A claim about two rows of a column, and what their runs say; `fail_above` in percent."""

    claim: Claim
    first: Side
    second: Side
    fail_above: float

    @property
    def seeds(self) -> tuple[int, int]:
        return len(self.first.errors), len(self.second.errors)

    @property
    def other(self) -> str:
        """The second row, with its sweep where that is another."""
        return self.claim.second if "/" in self.claim.second else self.second.row

    @property
    def text(self) -> str:
        """`identity is lower than none, in training error`, with the rows of this finding."""
        return replace(self.claim, first=self.first.row, second=self.other).text

    @property
    def seen_before(self) -> int:
        """Runs that were set up before the claim was written down."""
        return sum(not known for known in (*self.first.known, *self.second.known))

    @property
    def difference(self) -> float | None:
        """Of the mean errors, first minus second, in percent points; None without runs of both."""
        return fmean(self.first.errors) - fmean(self.second.errors) if all(self.seeds) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference, over seeds; None below `FEWEST_SEEDS`."""
        return welch_interval(self.first.errors, self.second.errors)

    @property
    def superiority(self) -> float | None:
        """P(first > second): the share of pairs of runs, ties half."""
        pairs = [(a > b) + (a == b) / 2 for a in self.first.errors for b in self.second.errors]
        return fmean(pairs) if pairs else None

    @property
    def image_noise(self) -> float | None:
        """Half of the interval of the difference over the choice of test images, in percent points."""
        if self.claim.error != Measured.test:
            return None
        return image_noise(self.first.wrong, self.second.wrong)

    @property
    def outcome(self) -> Outcome:
        """By `RULE`."""
        outcome = self._outcome(self.first.errors, self.second.errors)
        if outcome is Outcome.supported:
            return self._outcome(self.first.counted, self.second.counted)
        return outcome

    @property
    def more_seeds(self) -> tuple[int, int] | None:
        """What the rows lack beside their `counted` seeds, by `seeds_needed`; None where no more can support it."""
        if self.outcome is not Outcome.undecided or not self._may_fail:
            return None
        counted = len(self.first.counted), len(self.second.counted)
        total = seeds_needed(self.first.errors, self.second.errors, min(counted) + 1)
        return None if total is None else (max(total - counted[0], 0), max(total - counted[1], 0))

    @property
    def _may_fail(self) -> bool:
        """Whether each first run fails and no second one does, where the claim is about that."""
        fails = [[error > self.fail_above for error in side.errors] for side in (self.first, self.second)]
        return self.claim.relation is not Relation.fails or (all(fails[0]) and not any(fails[1]))

    def _outcome(self, first: Sequence[float], second: Sequence[float]) -> Outcome:
        interval = welch_interval(first, second)
        if interval is None:
            return Outcome.undecided
        low, high = interval
        if self.claim.relation is Relation.below:
            low, high = -high, -low
        on_its_side, on_the_other = low > 0, high < 0
        if self.claim.relation is Relation.fails:
            fails = [error > self.fail_above for error in first]
            on_the_other = not on_its_side and not any(fails)
            on_its_side &= all(fails) and not any(error > self.fail_above for error in second)
        if on_its_side:
            return Outcome.supported
        return Outcome.contradicted if on_the_other else Outcome.undecided


def welch_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """Of the difference of means, at `CONFIDENCE`; None below `FEWEST_SEEDS`. Rows without any spread have no width."""
    if min(len(first), len(second)) < FEWEST_SEEDS:
        return None
    if len(set(first)) == len(set(second)) == 1:
        return first[0] - second[0], first[0] - second[0]
    with warnings.catch_warnings():  # a row without spread beside one with some is tested soundly
        warnings.filterwarnings("ignore", "Precision loss occurred in moment calculation", RuntimeWarning)
        found = stats.ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    return float(found.low), float(found.high)


def seeds_needed(
    first: Sequence[float], second: Sequence[float], least: int = FEWEST_SEEDS, power: float = 0.8, most: int = 100
) -> int | None:
    """Seeds of each row for an interval that leaves out 0 with probability `power`, from the spread seen so far.

    The difference and the spread are taken to be those of these errors; each row needs two at least. Never below
    `least`; None where it is more than `most`, or nothing is known.
    """
    if min(len(first), len(second)) < 2:
        return None
    difference = abs(fmean(first) - fmean(second))
    spread = math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 2)
    for n in range(max(least, FEWEST_SEEDS), most + 1):
        freedom = 2 * n - 2
        if not spread:
            return n if difference else None
        bound = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
        if stats.nct.sf(bound, freedom, difference / spread * math.sqrt(n / 2)) >= power:
            return n
    return None
