"""Gradients by path: against all 2^n paths one by one, and against the gradient of the whole net."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis import paths
from deepnets.analysis.walk import Walk, walk_of
from deepnets.errors import UserError
from tests.networks import small_batch, small_network

NETWORKS = [
    ("model.depth=14",),
    ("model.depth=8", "model/ordering=full_preactivation"),
    ("model.depth=8", "model/ordering=bn_after_addition", "model/shortcut=projection"),
    ("model.depth=11", "model/shortcut=scaled_0.5_0.5", "model/block=bottleneck"),
    ("model.depth=8", "model/shortcut=exclusive_gating_b1"),
    ("model.depth=8", "model/shortcut=shortcut_only_gating_b0"),
    ("model.depth=8", "model/survival=linear_decay"),
    ("model=highway_fc10", "model.depth=4"),
]


def full_gradient(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(cross_entropy(model(x), labels, reduction="sum"), x)[0]


def enumerated(walk: Walk, x: Tensor, labels: Tensor) -> Tensor:
    """The sum of the gradients along all paths of each length, one path at a time."""
    sums = torch.zeros(len(walk) + 1, *x.shape, dtype=x.dtype)
    for code in product((False, True), repeat=len(walk)):
        sums[sum(code)] += paths.path_gradients(walk, x, labels, torch.tensor([code] * len(x)))
    return sums


@pytest.mark.parametrize("overrides", NETWORKS, ids=" ".join)
def test_all_paths_together_are_the_gradient_of_the_net(overrides: tuple[str, ...]) -> None:
    model, (x, labels) = small_network(*overrides), small_batch(2)
    by_length = enumerated(walk_of(model), x, labels)
    whole = full_gradient(model, x, labels)
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(by_length.sum(0), whole, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(paths.gradients_by_length(walk_of(model), x, labels), by_length, rtol=1e-9, atol=1e-14)


def linear_walk(matrices: list[Tensor]) -> Walk:
    """x + A_i x in unit i, and logits x: a net whose paths are products of matrices."""
    model = small_network("model=highway_fc10", f"model.depth={len(matrices) + 1}", "model/shortcut=identity")
    for unit, matrix in zip(model.units, matrices, strict=True):
        unit.branch = nn.Linear(10, 10, bias=False).double().requires_grad_(False)
        unit.branch.weight.copy_(matrix)
    model.stem, model.head = nn.Identity(), nn.Identity()
    return walk_of(model.eval())


def test_a_path_of_linear_branches_is_the_product_of_its_matrices() -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(10, 10, dtype=torch.float64) for _ in range(3))
    walk, x, labels = linear_walk([a, b, c]), torch.randn(1, 10, dtype=torch.float64), torch.tensor([4])
    logits = x
    for matrix in (a, b, c):
        logits = logits + logits @ matrix.T
    at_logits = torch.softmax(logits, 1) - torch.eye(10, dtype=torch.float64)[4]
    for chosen, expected in (
        ((0, 0, 0), at_logits),
        ((0, 1, 0), at_logits @ b),
        ((1, 0, 1), at_logits @ c @ a),
        ((1, 1, 1), at_logits @ c @ b @ a),
    ):
        found = paths.path_gradients(walk, x, labels, torch.tensor([chosen]).bool())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_paths_that_carry_less_than_float32_holds_are_measured_in_it() -> None:
    torch.manual_seed(0)
    a, b, c = (1e-20 * torch.randn(10, 10, dtype=torch.float64) for _ in range(3))
    walk, x, labels = linear_walk([a, b, c]), torch.randn(2, 10), torch.tensor([4, 7])
    for unit in walk.units:
        unit.float()
    at_logits = torch.softmax(x.double(), 1) - torch.eye(10, dtype=torch.float64)[labels]
    expected = (at_logits @ c @ b @ a).norm(dim=1)
    assert 0 < expected.max() < 1e-55
    norms = paths.norms_by_length(walk, x, labels, [3], 2, torch.Generator().manual_seed(0))[0]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    sums = paths.gradients_by_length(walk, x, labels)[3]
    torch.testing.assert_close(sums.norm(dim=1), expected, rtol=1e-5, atol=0)


def test_every_image_takes_its_own_path() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=8")), small_batch(3)
    codes = torch.tensor([[0, 0, 0], [1, 0, 1], [1, 1, 1]]).bool()
    together = paths.path_gradients(walk, x, labels, codes)
    for image in range(3):
        alone = paths.path_gradients(walk, x[image : image + 1], labels[image : image + 1], codes[image : image + 1])
        torch.testing.assert_close(together[image], alone[0], rtol=1e-9, atol=1e-14)


def test_sampled_norms_are_those_of_enumerated_paths_and_their_mean_converges() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=14")), small_batch(1)
    norms = paths.norms_by_length(walk, x, labels, [0, 2, 6], 300, torch.Generator().manual_seed(0))
    assert norms.shape == (3, 300)
    codes = torch.zeros(15, 6, dtype=torch.bool)
    for row, pair in zip(codes, combinations(range(6), 2), strict=True):
        row[list(pair)] = True
    all_of_two = paths.path_gradients(walk, x.expand(15, -1, -1, -1), labels.expand(15), codes).flatten(1).norm(dim=1)
    assert set(norms[1].round(12)) == set(all_of_two.numpy().round(12))
    assert norms[1].mean() == pytest.approx(all_of_two.mean().item(), abs=4 * norms[1].std() / 300**0.5)
    assert np.ptp(norms[0]) == pytest.approx(0, abs=1e-12)  # one path of length 0, one of length n
    assert np.ptp(norms[2]) == pytest.approx(0, abs=1e-12)


def test_draws_take_the_images_in_turn() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=8")), small_batch(2)
    norms = paths.norms_by_length(walk, x, labels, [3], 4, torch.Generator().manual_seed(0))[0]
    each = paths.path_gradients(walk, x, labels, torch.ones(2, 3, dtype=torch.bool)).flatten(1).norm(dim=1).tolist()
    assert norms.tolist() == pytest.approx(each * 2)


def test_the_numbers_of_paths_are_the_papers() -> None:
    share = paths.path_share(54, np.arange(55))
    assert share.sum() == pytest.approx(1)
    assert 100 * share[5:18].sum() == pytest.approx(0.45367, abs=5e-6)
    assert share[19:36].sum() == pytest.approx(0.98017, abs=5e-6)
    assert paths.path_share(4, [0, 1, 2]).tolist() == pytest.approx([1 / 16, 4 / 16, 6 / 16])


def test_effective_lengths_are_the_shortest_range_that_holds_the_share() -> None:
    assert paths.effective_lengths(np.array([0, 5, 40, 50, 5, 0]), share=0.9) == (2, 3)
    assert paths.effective_lengths(np.array([0, 5, 40, 50, 5, 0]), share=0.95) == (1, 3)
    assert paths.effective_lengths(np.array([1.0])) == (0, 0)


def test_means_are_of_images_and_decide_which_share_of_paths_is_effective() -> None:
    norms = np.array([[1.0, 10.0, 3.0, 20.0, 5.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    means = paths.means_by_image(norms, 2)
    assert means.tolist() == [[3, 15], [0, 0]]
    share = paths.path_share(2, [0, 1, 2])
    for length_one, interval in (([0, 0, 0], (0.25, 0.25)), ([0, 0, 300], (0.25, 0.5))):  # one image decides, or none
        means = np.array([[1, 1, 1], length_one, [0, 0, 0]])
        effective, found = paths.effective_paths(means, share, 500, np.random.default_rng(0))
        assert (effective, *found) == pytest.approx((interval[1], *interval))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_lengths_of_gradients_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(UserError, match="not finite"):
        paths.effective_lengths(np.array([1.0, value]))


def test_a_plain_net_has_a_single_path_and_is_refused() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=8", "model/shortcut=none")), small_batch(1)
    with pytest.raises(UserError, match="single path"):
        paths.path_gradients(walk, x, labels, torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(UserError, match="single path"):
        paths.gradients_by_length(walk, x, labels)


@pytest.mark.parametrize("deleted", range(5))
def test_surviving_paths_are_those_that_enter_no_deleted_branch(deleted: int) -> None:
    every = list(product((0, 1), repeat=4))
    left = [path for path in every if not any(path[:deleted])]
    assert paths.surviving_paths(4, deleted) == len(left)
    assert paths.surviving_paths(4, deleted, (1, 2)) == sum(1 <= sum(path) <= 2 for path in left)
    assert paths.surviving_paths(54, 0, (5, 17)) / 2**54 == pytest.approx(0.0045367, rel=1e-4)
