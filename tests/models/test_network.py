"""Recomputation changes which tensors a network stores, and nothing else."""

import pytest
import torch
from torch import Tensor, nn

from deepnets.run import build_model

MODES = ["recompute_activations", "recompute_units", "recompute_segments"]
NETS = [
    ["model/ordering=original"],
    ["model/ordering=full_preactivation"],
    ["model/ordering=bn_after_addition", "model/shortcut=exclusive_gating_b6"],
    ["model/ordering=full_preactivation", "model/shortcut=dropout"],
    ["model/survival=linear_decay"],
    ["model.batchnorm_images=4"],
    ["model/block=bottleneck", "model.depth=29"],
]


def trained(net: nn.Module, memory: str) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
    """The gradients of two steps, all that the net holds then, and the random number that would come next."""
    net.keep(memory)
    torch.manual_seed(1)
    images, labels = torch.randn(10, 1, 8, 8), torch.arange(10)
    for _ in range(2):
        nn.functional.cross_entropy(net(images), labels).backward()
    return [parameter.grad for parameter in net.parameters()], net.state_dict(), torch.rand(1)


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("options", NETS, ids="+".join)
def test_gradients_statistics_and_draws_are_those_of_the_plain_path(options: list[str], memory: str) -> None:
    overrides = ["model=digits_resnet", "model.widths=[4,4,4]", "model.depth=20", *options]
    plain, ours = (trained(build_model(overrides), mode) for mode in ("full", memory))
    for expected, gradient in zip(plain[0], ours[0], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
    assert plain[1].keys() == ours[1].keys()
    for name, value in plain[1].items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(ours[1][name], value, rtol=0, atol=0, msg=name)
    assert torch.equal(plain[2], ours[2])


@pytest.mark.parametrize(("memory", "calls"), [("full", 1), ("recompute_activations", 1), ("recompute_segments", 2)])
def test_only_cheap_layers_are_computed_again_for_the_activations(memory: str, calls: int) -> None:
    net = build_model(["model=digits_resnet", "model/ordering=full_preactivation", "model.depth=20"])
    net.keep(memory)
    count = 0

    def called(*_: object) -> None:
        nonlocal count
        count += 1

    conv = net.units[4].branch[2]
    assert isinstance(conv, nn.Conv2d)
    conv.register_forward_hook(called)
    net(torch.randn(4, 1, 8, 8)).sum().backward()
    assert count == calls


def test_a_network_may_store_all_again() -> None:
    net = build_model(["model=digits_resnet", "model.depth=8"])
    types, keys = [type(unit.branch) for unit in net.units], list(net.state_dict())
    net.keep("recompute_activations")
    assert [type(unit.branch) for unit in net.units] != types
    assert list(net.state_dict()) == keys
    net.keep("full")
    assert [type(unit.branch) for unit in net.units] == types
