"""Parameters before the first step: He's normal distribution, fb.resnet.torch's head, and the gates' bias."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from hydra.errors import InstantiationException
from torch import nn

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


def test_the_same_seed_gives_the_same_network(network: Callable[..., ResNet]) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(network("digits_resnet", shape=(1, 8, 8)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_an_unknown_initialization_is_refused(network: Callable[..., ResNet]) -> None:
    with pytest.raises(InstantiationException, match="initialization is 'xavier'; choose one of he_fan_out, he_fan_in"):
        network("resnet20", "model.initialization=xavier")
