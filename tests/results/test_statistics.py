"""Intervals and tests against enumeration and formulas written out."""

import math
import warnings
from fractions import Fraction
from itertools import combinations, pairwise, product
from statistics import fmean, median, variance

import numpy as np
import pytest
from scipy import stats

from deepnets.results.statistics import (
    Errors,
    compare_pairs,
    compare_rows,
    hedges_g,
    holm,
    median_interval,
    power,
    rank_agreement,
)

FIRST, SECOND = (6.1, 6.5, 6.3, 6.2, 6.9), (7.4, 7.0, 7.9)


@pytest.mark.parametrize("errors", [(6.0, 6.5, 9.0), (6.1, 6.5, 6.3, 6.2, 6.9), (5.0, 5.5, 5.9, 6.4, 6.8, 8.0)])
def test_the_interval_is_that_of_all_resamples(errors: tuple[float, ...]) -> None:
    medians = [median(sample) for sample in product(errors, repeat=len(errors))]
    low, high = np.quantile(medians, [0.025, 0.975], method="inverted_cdf")
    assert median_interval(errors) == pytest.approx((low, high), abs=1e-9)


def test_the_interval_is_the_same_every_time() -> None:
    errors = tuple(np.linspace(5, 9, 12) ** 1.1)
    assert median_interval(errors) == median_interval(errors)


@pytest.mark.parametrize(("published", "differ"), [(5, Fraction(1, 6)), (1, Fraction(1, 3))])
def test_how_often_runs_of_one_distribution_differ_by_chance(published: int, differ: Fraction) -> None:
    every = range(5 + published)  # all orders of ours and theirs are equally likely
    outside = []
    for ours in combinations(every, 5):
        low, high = median_interval(ours)
        assert (low, high) == (min(ours), max(ours))
        outside.append(not low <= median(set(every) - set(ours)) <= high)
    assert Fraction(sum(outside), len(outside)) == differ


def test_there_is_no_interval_of_two_seeds() -> None:
    assert median_interval((6.0, 6.1)) is None


def test_a_diverged_run_is_the_worst_in_the_interval() -> None:
    assert median_interval((6.0, 6.1, math.inf)) == (6.0, 100.0)


def test_a_pair_by_welch() -> None:
    (pair,) = compare_rows([Errors("a", FIRST), Errors("b", SECOND)])
    spread = [variance(errors) / len(errors) for errors in (FIRST, SECOND)]
    t = (fmean(FIRST) - fmean(SECOND)) / math.sqrt(sum(spread))
    freedom = sum(spread) ** 2 / (spread[0] ** 2 / 4 + spread[1] ** 2 / 2)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(spread))
    assert pair.seeds == (5, 3)
    assert pair.difference == pytest.approx(-31.0 / 30)
    assert pair.p == pytest.approx(2 * stats.t.cdf(t, freedom))
    assert (pair.low, pair.high) == pytest.approx((pair.difference - half, pair.difference + half))
    pooled = math.sqrt((4 * variance(FIRST) + 2 * variance(SECOND)) / 6)
    assert pair.effect == pytest.approx(pair.difference / pooled * (1 - 3 / 23))
    assert pair.effect == pytest.approx(hedges_g(FIRST, SECOND))
    assert pair.answer == "lower"


def test_intervals_widen_and_p_grows_with_the_number_of_pairs() -> None:
    (alone,) = compare_rows([Errors("a", FIRST), Errors("b", SECOND)])
    rows = [Errors("a", FIRST), Errors("b", SECOND), Errors("c", (6.2, 6.4, 6.6))]
    among = {(pair.first, pair.second): pair for pair in compare_rows(rows)}
    assert len(among) == 3
    pair = among["a", "b"]
    assert pair.p == alone.p
    assert pair.p_corrected == pytest.approx(min(1, 3 * alone.p))
    assert pair.low < alone.low
    assert pair.high > alone.high


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((9.0, 9.5), "fewer than 3 seeds"),
        ((9.0, 9.5, math.inf), "a run diverged"),
    ],
)
def test_no_claim_is_made(second: tuple[float, ...], why: str) -> None:
    (pair,) = compare_rows([Errors("a", FIRST), Errors("b", second)])
    assert all(map(math.isnan, (pair.difference, pair.p, pair.effect)))
    assert pair.answer == why
    assert pair.seeds == (5, len(second))


def test_one_row_without_spread_is_tested_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (pair,) = compare_rows([Errors("a", (6.0, 6.0, 6.0)), Errors("b", (7.0, 7.1, 7.3))])
    spread = variance((7.0, 7.1, 7.3)) / 3
    assert pair.p == pytest.approx(2 * stats.t.cdf((6.0 - fmean((7.0, 7.1, 7.3))) / math.sqrt(spread), 2))


def test_no_claim_without_spread() -> None:
    (pair,) = compare_rows([Errors("a", (6.0, 6.0, 6.0)), Errors("b", (7.0, 7.0, 7.0))])
    assert pair.answer == "no spread between seeds"


def test_pairs_without_a_claim_do_not_count_for_the_correction() -> None:
    pairs = [(Errors("a", FIRST), Errors("b", SECOND)), (Errors("a", FIRST), Errors("c", (9.0,)))]
    tested, silent = compare_pairs(pairs)
    assert tested.p_corrected == tested.p
    assert silent.second == "c"


def test_rows_of_equal_errors_do_not_count_for_the_correction() -> None:
    tested, equal = compare_pairs([(Errors("a", FIRST), Errors("b", FIRST)), (Errors("a", FIRST), Errors("c", SECOND))])
    assert (tested.second, tested.p_corrected) == ("c", tested.p)
    assert (equal.second, equal.answer) == ("b", "equal errors: the same runs")


def test_rows_of_mixed_code_are_not_tested() -> None:
    mixed = Errors("a", FIRST, is_mixed=True)
    (pair,) = compare_pairs([(Errors("b", SECOND), mixed)])
    assert pair.answer == "different code of yours trained the seeds of a row"


def test_rows_that_share_a_run_are_not_tested() -> None:
    one = Errors("a", FIRST, weights=("x", "y", *[None] * (len(FIRST) - 2)))
    for weights, is_tested in ((("y",), False), (("z",), True), ((None,), True)):
        other = Errors("b", SECOND, weights=weights + (None,) * (len(SECOND) - 1))
        (pair,) = compare_pairs([(one, other)])
        assert (pair.why_not == "") == is_tested
        assert is_tested or pair.answer.startswith("both rows have a run with the same final weights")


def test_a_small_difference_is_not_claimed() -> None:
    (pair,) = compare_rows([Errors("a", (6.0, 6.5, 7.0)), Errors("b", (6.1, 6.6, 7.2))])
    assert pair.answer == "no difference shown"


def test_the_agreement_of_two_rankings_counts_pairs() -> None:
    ours, theirs = (6.0, 6.2, 6.1, 7.0, math.inf, 8.0), (5.0, 5.1, 5.2, 5.3, math.inf, math.inf)
    alike = [(ours[i] - ours[j]) * (theirs[i] - theirs[j]) for i in range(6) for j in range(i) if (i, j) != (5, 4)]
    concordant, discordant = sum(sign > 0 for sign in alike), sum(sign < 0 for sign in alike)
    tau, p = rank_agreement(ours, theirs)
    assert tau == pytest.approx((concordant - discordant) / math.sqrt(15 * 14))  # one pair is tied on their side
    assert 0 < p < 0.1


@pytest.mark.parametrize("ours", [(1.0, 2.0, 3.0, 4.0), (2.0,) * 6])
def test_few_rows_or_rows_all_alike_have_no_ranking(ours: tuple[float, ...]) -> None:
    assert rank_agreement(ours, tuple(range(len(ours)))) is None


@pytest.mark.parametrize("seeds", [3, 6, 10])
def test_power_is_a_probability_that_grows_with_the_difference(seeds: int) -> None:
    chances = [power(difference / 4, 1.0, seeds, 0.01) for difference in range(200)]
    assert all(0 <= chance <= 1 for chance in chances)
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(chances))
    assert chances[0] == pytest.approx(0.01)
