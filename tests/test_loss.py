"""The built-in loss agrees with its formula, and evaluation does not depend on the loss that is minimised."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepnets.config.identity import identity_hash
from deepnets.loss import CrossEntropy
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from tests.command import row

CPU = torch.device("cpu")
LOGITS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 4, 1, 1, 2, 3])


def test_without_smoothing_it_is_the_sum_of_cross_entropies_to_the_bit() -> None:
    assert torch.equal(CrossEntropy(0.0)(LOGITS, LABELS), cross_entropy(LOGITS, LABELS, reduction="sum"))


def test_smoothing_spreads_a_share_of_the_target_over_all_classes() -> None:
    targets = torch.eye(5)[LABELS]
    by_hand = -(LOGITS.log_softmax(1) * (0.9 * targets + 0.1 / 5)).sum()
    loss = CrossEntropy(0.1)
    assert loss(LOGITS, LABELS).item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert loss(LOGITS, targets).item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_a_smoothed_run_is_another_one_and_is_tested_by_cross_entropy(tmp_path: Path) -> None:
    words = "model=highway_fc10", "model.depth=3", "model.width=4", "epochs=1"
    plain, smoothed = (row(tmp_path, *words, *more).config for more in ([], ["loss.smoothing=0.5"]))
    assert identity_hash(plain) != identity_hash(smoothed)
    training = prepare(smoothed, CPU, torch.float32)
    done = next(dict(state.completed) for state in fit(training) if state.completed)

    def mean_loss(loss: CrossEntropy) -> Tensor:
        with torch.no_grad():
            return sum(loss(training.model(x), y) for x, y in training.evaluated["test"]) / 360

    assert done["test"].loss == pytest.approx(mean_loss(CrossEntropy(0.0)).item(), rel=1e-5)
    assert not math.isclose(done["test"].loss, mean_loss(CrossEntropy(0.5)).item(), rel_tol=1e-3)
