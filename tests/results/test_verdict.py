"""The verdict on a printed number, which was drawn by chance as well."""

from dataclasses import replace

import numpy as np
import pytest

from deepnets.results.published import PublishedRow, published_of
from deepnets.results.verdict import AGREES, COMPATIBLE, DIFFERS, Printed, printed_of, true_difference, verdict_of

OURS = (8.8, 9.0, 9.2)  # their standard deviation is 0.2


def test_three_seeds_tell_little_of_a_single_run_and_more_of_a_median() -> None:
    assert true_difference(OURS, Printed(9.0)) == pytest.approx((-0.99, 0.99), abs=0.005)
    assert true_difference(OURS, Printed(8.5)) == pytest.approx((-0.49, 1.49), abs=0.005)
    assert true_difference(OURS, Printed(9.0, "median", 5)) == pytest.approx((-0.68, 0.68), abs=0.005)
    assert true_difference(OURS, Printed(9.0, "mean", 5)) == pytest.approx((-0.63, 0.63), abs=0.005)
    assert true_difference(OURS[:2], Printed(9.0)) is None


@pytest.mark.parametrize("statistic", ["mean", "median", "best"])
@pytest.mark.parametrize(("seeds", "runs"), [(3, 1), (3, 5), (5, 5), (10, 4)])
def test_the_interval_holds_the_true_difference_19_times_of_20(statistic: str, seeds: int, runs: int) -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(50, 1, (4000, seeds)), random.normal(48, 1, (4000, runs))
    numbers = {"mean": theirs.mean(1), "median": np.median(theirs, 1), "best": theirs.min(1)}[statistic]
    held = []
    for errors, number in zip(ours, numbers, strict=True):
        low, high = true_difference(tuple(errors), Printed(float(number), statistic, runs))
        held.append(low <= 2 <= high)
    assert 0.935 < np.mean(held) < (0.965 if statistic == "mean" else 0.975)  # of a median or best one: no less


def test_a_verdict_needs_a_margin_to_agree() -> None:
    row = PublishedRow(test_error=9.0, statistic="median of 5")
    assert verdict_of(OURS, row, is_fail=False) == COMPATIBLE
    assert verdict_of(OURS, replace(row, margin=0.6), is_fail=False) == COMPATIBLE
    assert verdict_of(OURS, replace(row, margin=0.7), is_fail=False) == AGREES
    assert verdict_of(OURS, replace(row, test_error=8.3, margin=9.0), is_fail=False) == DIFFERS


@pytest.mark.parametrize(
    ("sweep", "row", "printed"),
    [
        ("he2016_table1", "identity", Printed(6.61, "median", 5)),
        ("he2015_table6", "resnet20", Printed(8.75)),
        ("he2015_table6", "resnet110", Printed(6.61, "mean", 5)),
        ("srivastava2015_table1", "highway_mnist_w16", Printed(0.60, "mean", 5)),
        ("he2016_table1", "none", None),
    ],
)
def test_what_a_row_is_compared_with(sweep: str, row: str, printed: Printed | None) -> None:
    assert printed_of(published_of(sweep).rows[row]) == printed
