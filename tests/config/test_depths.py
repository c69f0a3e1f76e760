"""Depths that a family has, and what is said about others."""

import pytest

from deepnets.system.settings import units_of_stages


@pytest.mark.parametrize(
    ("depth", "stages", "kernels", "nearest"),
    [
        (21, 3, 2, "a depth is 2 \\+ 6 n: the nearest are 20 and 26"),
        (165, 3, 3, "a depth is 2 \\+ 9 n: the nearest are 164 and 173"),
        (110 - 1, 3, 1, "a depth is 2 \\+ 3 n: the nearest are 107 and 110"),
        (2, 3, 2, "the smallest is 8"),
        (7, 3, 2, "the smallest is 8"),
        (-4, 3, 2, "the smallest is 8"),
    ],
)
def test_an_impossible_depth_names_the_nearest(depth: int, stages: int, kernels: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"depth is {depth}; .*{nearest}"):
        units_of_stages(depth, None, stages, kernels)


@pytest.mark.parametrize(
    ("depth", "kernels", "n"), [(20, 2, 3), (1202, 2, 200), (164, 3, 18), (1001, 3, 111), (110, 1, 36)]
)
def test_a_published_depth_gives_its_n(depth: int, kernels: int, n: int) -> None:
    assert units_of_stages(depth, None, 3, kernels) == [n] * 3


def test_units_may_be_given_instead() -> None:
    assert units_of_stages(None, [3, 4, 6, 3], 4, 2) == [3, 4, 6, 3]


@pytest.mark.parametrize(
    ("depth", "units", "message"),
    [
        (None, None, "set one of them, and the other to null"),
        (20, [3, 3, 3], "set one of them, and the other to null"),
        (None, [3, 3], r"units: \[3, 3\] given; needs 3 numbers, one per stage, at least 1 each"),
        (None, [3, 3, 0], "at least 1 each"),
    ],
)
def test_depth_and_units_must_make_sense(depth: int | None, units: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        units_of_stages(depth, units, 3, 2)
