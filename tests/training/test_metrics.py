"""Sums over batches against the definition."""

import pytest
import torch

from deepnets.training.metrics import Sums


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
