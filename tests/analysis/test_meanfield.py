"""Mean-field theory: against known critical points, closed forms and wide random nets."""

import numpy as np
import pytest
import torch
from torch import nn

from deepnets.analysis.meanfield import Moments, activated, critical_weight_variance, slope, theory_of, weighted
from deepnets.analysis.propagation import moments_of
from deepnets.analysis.walk import walk_of
from tests.networks import small_network


@pytest.mark.parametrize(("weights", "biases"), [(1.1154, 2.369e-4), (1.01971, 1.258e-6), (1.05, 2.01e-5)])
def test_the_critical_pairs_of_tanh(weights: float, biases: float) -> None:
    assert critical_weight_variance(nn.Tanh, biases) == pytest.approx(weights, rel=2e-4)


def test_without_biases_tanh_is_critical_at_1_and_relu_at_2() -> None:
    assert critical_weight_variance(nn.Tanh, 0.0) == 1
    assert critical_weight_variance(nn.Tanh, 1e-12) == pytest.approx(1, abs=1e-3)
    assert critical_weight_variance(nn.ReLU, 0.0) * slope(nn.ReLU, 3.0) == 1


@pytest.mark.parametrize("phi", [nn.ReLU, nn.Tanh])
def test_moments_are_those_of_gaussian_pairs(phi: type[nn.ReLU] | type[nn.Tanh]) -> None:
    rng = np.random.default_rng(0)
    first, other = rng.normal(size=(2, 1_000_000)) * 1.3
    second = 0.6 * first + 0.8 * other
    act = (lambda u: np.maximum(u, 0)) if phi is nn.ReLU else np.tanh
    found = activated(phi, Moments(1.3**2, 0.6 * 1.3**2))
    assert found.length == pytest.approx(np.mean(act(first) ** 2), rel=4e-3)
    assert found.product == pytest.approx(np.mean(act(first) * act(second)), rel=6e-3)
    derivative = first > 0 if phi is nn.ReLU else 1 - np.tanh(first) ** 2
    assert found.growth == pytest.approx(np.mean(derivative**2.0), rel=4e-3)


def test_equal_inputs_stay_equal_and_a_critical_relu_net_has_its_length_halved_by_the_last_relu() -> None:
    u = Moments(1.0, 1.0)
    for _ in range(30):
        u = weighted(activated(nn.ReLU, u), 2.0, 0.0)
    assert (u.length, u.correlation, u.growth) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("layer", ["[linear,tanh]", "[linear,relu]"])
def test_a_wide_random_net_follows_the_theory(layer: str) -> None:
    options = ["model=plain_fc10", "model.depth=6", "model.width=600"]
    walk = walk_of(small_network(*options, f"model.layer={layer}"))
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    states = walk.inputs(x + 0.5)
    theory = theory_of(walk, moments_of(states[0]))
    assert theory is not None
    found = moments_of(states[-2])
    assert found.length == pytest.approx(theory[-2].length, rel=0.1)
    assert found.correlation == pytest.approx(theory[-2].correlation, abs=0.03)


def test_residual_and_normalised_nets_are_not_covered() -> None:
    for options in (["model.depth=8"], ["model=highway_fc10"], ["model.depth=8", "model/shortcut=none"]):
        assert theory_of(walk_of(small_network(*options)), Moments(1.0, 0.5)) is None


def test_what_stands_between_units_or_scales_a_branch_counts() -> None:
    assert theory_of(walk_of(small_network("model=highway_a", "model/shortcut=none")), Moments(1.0, 0.5)) is None
    words = ["model=plain_fc10", "model.depth=3", "model.width=50"]
    whole, halved = (
        theory_of(walk_of(small_network(*words, f"model.shortcut.branch_scale={scale}")), Moments(1.0, 0.5))
        for scale in (1, 0.5)
    )
    assert halved[0].growth == pytest.approx(whole[0].growth / 4)
