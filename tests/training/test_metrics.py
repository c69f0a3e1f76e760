"""Sums over batches against the definition."""

import pytest
import torch

from deepnets.training.fit import Sums


def test_batches_of_different_length_weigh_by_their_images() -> None:
    sums = Sums(torch.device("cpu"))
    right, wrong = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    sums.add(torch.tensor(3.0), torch.cat([right, right, wrong]), torch.zeros(3, dtype=torch.long))
    sums.add(torch.tensor(1.0), wrong, torch.zeros(1, dtype=torch.long))
    assert sums.mean().loss == 1
    assert sums.mean().error == 50


def test_a_non_finite_loss_stays_visible() -> None:
    sums = Sums(torch.device("cpu"))
    for loss in (1.0, float("nan"), 1.0):
        sums.add(torch.tensor(loss), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    assert sums.mean().loss != pytest.approx(3)
    assert torch.isnan(sums.values[0])


def test_top_five_is_wrong_where_no_guess_of_five_is_right() -> None:
    sums = Sums(torch.device("cpu"), top=5)
    logits = torch.arange(8.0).expand(4, 8)  # the five highest are classes 3 to 7
    sums.add(torch.tensor(0.0), logits, torch.tensor([7, 3, 2, 0]))
    assert (sums.mean().error, sums.mean().top_error) == (75, 50)
    few = Sums(torch.device("cpu"), top=5)
    few.add(torch.tensor(0.0), torch.zeros(2, 3), torch.tensor([1, 2]))
    assert few.mean().top_error == 0  # there are but three classes
