"""Updates agree with the formulas, and weight decay acts on the chosen parameters only."""

import pytest
import torch
from torch import nn

from deepnets.optimizer import adam, adamw, caffe_sgd, parameter_groups, scalar_sgd, sgd


def one_weight(gradient: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(2.0)
    model.weight.grad = torch.tensor([[gradient]])
    return model


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_follows_the_velocity_formula(nesterov: bool) -> None:
    model = one_weight(0.5)
    optimizer = sgd(model, lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.15, decayed="all")
    optimizer.step()
    first = model.weight.item()
    optimizer.step()
    g1, g2 = 0.5 + 0.15 * 2, 0.5 + 0.15 * first
    v2 = 0.9 * g1 + g2
    assert first == pytest.approx(2 - 0.1 * ((g1 + 0.9 * g1) if nesterov else g1))
    assert model.weight.item() == pytest.approx(first - 0.1 * ((g2 + 0.9 * v2) if nesterov else v2))


def test_adam_first_step_has_the_length_of_the_rate() -> None:
    model = one_weight(0.5)
    adam(model, lr=0.1, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, decayed="all").step()
    assert model.weight.item() == pytest.approx(1.9)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def test_decay_on_weights_leaves_normalisation_and_biases_alone() -> None:
    decayed, others = parameter_groups(net(), 1e-4, "weights")
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3, 3, 3), (2, 4)]
    assert [tuple(p.shape) for p in others["params"]] == [(4,), (4,), (2,)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (1e-4, 0)


def test_decay_on_all_is_one_group() -> None:
    (group,) = parameter_groups(net(), 1e-4, "all")
    assert len(group["params"]) == 5
    assert group["weight_decay"] == 1e-4


def test_caffe_multipliers_on_the_first_step() -> None:
    model = net()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    settings = {"momentum": 0.9, "nesterov": True, "bias_lr_factor": 2.0, "head_decay_factor": 10.0}
    caffe_sgd(model, lr=0.1, weight_decay=0.01, **settings).step()
    for name, factor, decay in [("0.weight", 1, 0.01), ("1.bias", 2, 0), ("3.weight", 1, 0.1), ("3.bias", 2, 0)]:
        w = before[name]
        expected = w - 0.1 * factor * 1.9 * (1 + decay * w)  # Nesterov's first step is 1 + momentum gradients long
        torch.testing.assert_close(dict(model.named_parameters())[name], expected)


def test_caffe_multipliers_need_a_head() -> None:
    with pytest.raises(ValueError, match="no linear layer"):
        caffe_sgd(nn.Conv2d(1, 1, 1), 0.1, 0.9, True, 1e-3, bias_lr_factor=2.0, head_decay_factor=10.0)


def test_adamw_takes_weight_decay_apart_from_the_gradient() -> None:
    model = nn.Linear(1, 1)
    before = model.weight.item()
    model(torch.ones(1, 1)).backward()
    adamw(model, lr=0.1, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.5, decayed="weights").step()
    assert model.weight.item() == pytest.approx(before * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)


def test_scalars_learn_at_a_rate_of_their_own_and_decay() -> None:
    model = nn.Linear(1, 1)
    weight, bias = model.weight.item(), model.bias.item()
    model(torch.ones(1, 1)).backward()
    rates = {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.5, "scalar_lr_factor": 0.1}
    scalar_sgd(model, **rates).step()
    assert model.weight.item() == pytest.approx(weight - 0.1 * (1 + 0.5 * weight), abs=1e-6)
    assert model.bias.item() == pytest.approx(bias - 0.01 * (1 + 0.5 * bias), abs=1e-6)
