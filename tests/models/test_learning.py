"""A loss reaches every parameter of every kind of net."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.models.resnet import ResNet

MNIST, CIFAR, SMALL = (1, 28, 28), (3, 32, 32), (3, 16, 16)
TINY = "model.widths=[8,12,16]"
ORDERINGS = ["original", "bn_after_addition", "relu_before_addition", "relu_only_preactivation", "full_preactivation"]


def assert_everything_learns(model: nn.Module, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    loss = cross_entropy(model(torch.randn(4, *shape)), torch.tensor([1, 7, 0, 3]))
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("overrides", "shape"),
    [
        (["digits_resnet"], (1, 8, 8)),
        (["resnet20"], CIFAR),
        (["plain56"], SMALL),
        (["highway110", "model.depth=14", TINY], SMALL),
        (["highway_a"], CIFAR),
        (["highway_c", "model.units=[2,2,2,0]"], CIFAR),
        (["highway_fc50"], MNIST),
        (["highway_fc50_cifar100", "model.layer=[linear,tanh]"], CIFAR),
        (["highway_mnist_w16"], MNIST),
        (["imagenet_resnet18", "model.widths=[8,12,16,20]"], (3, 64, 64)),
        (["imagenet_preact152", "model.units=[1,1,1]", TINY], (3, 64, 64)),
        (["mnist_resnet52", "model.depth=10", "model.conv_bias=false"], MNIST),  # behind a bias, BN leaves no gradient
        (["plain_fc20"], MNIST),
        (["stochastic_depth110", "model.depth=8", "model.survival.last=1.0", "model.conv_bias=false", TINY], SMALL),
        (["thin_crelu"], SMALL),
        (["thin_looks_linear"], SMALL),
        (["thin_relu"], SMALL),
        (["thin_resnet"], SMALL),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_every_kind_of_net_learns_in_all_its_parameters(
    network: Callable[..., nn.Module], overrides: list[str], shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    model = network(*overrides, shape=shape)
    assert_everything_learns(model, shape)


@pytest.mark.parametrize("kind", ["none", "exclusive_gating_b6", "shortcut_only_gating_b0", "projection", "dropout"])
def test_every_kind_of_shortcut_learns_in_every_ordering_and_block(
    network: Callable[..., ResNet], kind: str, block: str
) -> None:
    depth = {"basic": 14, "bottleneck": 20, "one_layer": 8}[block]
    for ordering in ORDERINGS:
        torch.manual_seed(0)
        chosen = [f"model/shortcut={kind}", f"model/block={block}", f"model/ordering={ordering}"]
        assert_everything_learns(network("resnet", *chosen, f"model.depth={depth}", TINY, shape=SMALL), SMALL)
