"""Parameters before the first step: He's normal distribution, fb.resnet.torch's head, and the gates' bias."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError
from deepnets.models.initialization import initialize
from deepnets.models.resnet import ResNet


@pytest.mark.parametrize(("initialization", "fan"), [("he_fan_out", 0), ("he_fan_in", 1)])
def test_convolutions_are_he_normal(network: Callable[..., ResNet], initialization: str, fan: int) -> None:
    torch.manual_seed(0)
    model = network("resnet110", f"model.initialization={initialization}", "model/shortcut=exclusive_gating_b6")
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convs) == 109 + 54
    for conv in convs:
        weight = conv.weight.detach()
        expected = sqrt(2 / (weight.shape[fan] * weight[0, 0].numel()))
        # Five standard errors of a sample standard deviation.
        assert weight.std().item() == pytest.approx(expected, rel=5 / sqrt(2 * weight.numel()))
        assert abs(weight.mean().item()) < 5 * expected / sqrt(weight.numel())


def test_the_head_is_uniform_and_batch_normalisation_is_neutral(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("resnet20")
    bound = 1 / sqrt(64)
    assert 0.98 * bound < model.head.weight.abs().max().item() <= bound
    assert model.head.weight.std().item() == pytest.approx(bound / sqrt(3), rel=0.1)
    assert torch.count_nonzero(model.head.bias) == 0
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 19
    for bn in norms:
        assert torch.all(bn.weight == 1)
        assert torch.all(bn.bias == 0)
        assert (bn.eps, bn.momentum) == (1e-5, 0.1)


@pytest.mark.parametrize(("gating", "bias"), [("exclusive_gating_b7", -7.0), ("shortcut_only_gating_b6", -6.0)])
def test_the_gate_keeps_its_bias_and_a_random_weight(network: Callable[..., ResNet], gating: str, bias: float) -> None:
    for unit in network("resnet20", f"model/shortcut={gating}").units:
        assert torch.all(unit.shortcut.gate[0].bias == bias)
        assert unit.shortcut.gate[0].weight.std() > 0.1


def test_a_looks_linear_net_is_the_product_of_its_orthogonal_taps(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("thin_looks_linear", "model.depth=26").double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    *convs, head = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(convs) == 25
    x = images
    for conv in convs:
        tap = conv.weight[:, : x.shape[1], 1, 1]
        torch.testing.assert_close(tap.T @ tap, torch.eye(tap.shape[1], dtype=torch.float64), atol=1e-5, rtol=0)
        assert torch.count_nonzero(conv.weight) == torch.count_nonzero(conv.weight[:, :, 1, 1])
        x = torch.einsum("oi,nihw->nohw", tap, x[:, :, :: conv.stride[0], :: conv.stride[0]])
    assert x.shape == (3, 45, 4, 4)
    torch.testing.assert_close(model(images), x.mean((2, 3)) @ head.weight[:, :45].T, atol=1e-12, rtol=1e-12)
    assert 0.9 / sqrt(45) < head.weight.abs().max().item() <= 1 / sqrt(45)


def test_a_looks_linear_net_is_linear_before_its_first_step_only(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("thin_looks_linear198", "model.units=[3,3,2,2]").double()
    x, y = torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)

    def nonlinearity() -> float:
        origin = model(torch.zeros_like(x))
        bent = model(2 * x - 3 * y) - 2 * model(x) + 3 * model(y) - 2 * origin
        return bent.abs().max().item() / model(x).abs().max().item()

    assert nonlinearity() < 1e-13
    cross_entropy(model(x), torch.arange(4)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert nonlinearity() > 1e-3


def test_a_crelu_net_starts_otherwise_without_looks_linear(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    weight = network("thin_crelu").units[0].branch[0].weight
    assert weight.shape == (6, 12, 3, 3)
    assert not torch.equal(weight[:, :6], -weight[:, 6:])
    assert weight.std().item() == pytest.approx(sqrt(2 / (12 * 9)), rel=0.15)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model/shortcut=identity"], "looks_linear initializes nets without shortcuts: choose shortcut none"),
        (["model.widths=[8,4,8,8]"], "looks_linear keeps all of its input, but a layer goes from 8 to 4"),
    ],
)
def test_looks_linear_is_refused_where_it_cannot_be(
    network: Callable[..., ResNet], overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        network("thin_looks_linear", *overrides)


def test_the_same_seed_gives_the_same_network(network: Callable[..., ResNet]) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(network("digits_resnet", shape=(1, 8, 8)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_an_unknown_initialization_is_refused() -> None:
    with pytest.raises(
        ValueError, match="initialization is 'xavier'; choose one of he_fan_out, he_fan_in, looks_linear"
    ):
        initialize(head := nn.Linear(1, 1), head, "xavier")
