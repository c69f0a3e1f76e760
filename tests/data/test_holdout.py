import pytest
import torch

from deepnets.data.holdout import hold_out
from deepnets.errors import UserError

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize(
    ("count", "shares"),
    [(10, [5, 3, 2]), (11, [6, 3, 2]), (13, [6, 4, 3]), (1, [1, 0, 0])],  # 11: 5.5, 3.3, 2.2; 13: 6.5, 3.9, 2.6
)
def test_shares_are_the_classes_proportions_by_the_largest_remainder(count: int, shares: list[int]) -> None:
    _, held = hold_out(LABELS, count, 3)
    assert LABELS[held].bincount(minlength=3).tolist() == shares


def test_splits_are_disjoint_complete_and_in_order() -> None:
    kept, held = hold_out(LABELS, 25, 3)
    assert len(held) == 25
    assert sorted(kept.tolist() + held.tolist()) == list(range(100))
    assert kept.tolist() == sorted(kept.tolist())


def test_the_same_images_are_held_out_whatever_the_random_state() -> None:
    torch.manual_seed(1)
    first = hold_out(LABELS, 25, 3)[1]
    torch.manual_seed(2)
    assert torch.equal(first, hold_out(LABELS, 25, 3)[1])


def test_held_out_images_are_not_just_the_first_of_their_class() -> None:
    _, held = hold_out(torch.arange(1000) % 10, 100, 10)
    assert held.max() > 900


def test_a_class_without_training_images_is_refused() -> None:
    with pytest.raises(UserError, match=r"validation=99 of 100 .* class 1 \(30 images\)"):
        hold_out(LABELS, 99, 3)
