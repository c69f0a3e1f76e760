"""The network between its units: stem, tail and head; what it keeps, and what it refuses."""

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from hydra.errors import InstantiationException
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, linear, relu

from deepnets.models.resnet import ResNet, units_per_stage


def test_a_plain_net_is_a_stack_of_conv_bn_relu(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("plain20")
    x = images = torch.randn(4, 3, 32, 32)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(convs) == len(norms) == 19
    for i, (conv, bn) in enumerate(zip(convs, norms, strict=True)):
        stride = 2 if i in (7, 13) else 1
        x = relu(batch_norm(conv2d(x, conv.weight, None, stride, 1), None, None, bn.weight, bn.bias, training=True))
    assert x.shape == (4, 64, 8, 8)
    expected = linear(x.sum((2, 3)) / 64, model.head.weight, model.head.bias)
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(
    ("ordering_of_ends", "stem", "tail"),
    [
        ("original", "bn relu", ""),
        ("bn_after_addition", "bn relu", ""),
        ("relu_before_addition", "bn relu", ""),
        ("relu_only_preactivation", "bn", "relu"),
        ("full_preactivation", "", "bn relu"),
    ],
)
def test_both_ends_of_the_net_are_activated_as_its_ordering_says(
    network: Callable[..., ResNet], ordering_of_ends: str, stem: str, tail: str
) -> None:
    torch.manual_seed(0)
    model = network("resnet", f"model/ordering={ordering_of_ends}", "model.depth=8").eval()
    for bn in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(bn.running_mean)

    def activated(x: Tensor, names: str, end: nn.Sequential) -> Tensor:
        if "bn" in names:
            bn = next(module for module in end if isinstance(module, nn.BatchNorm2d))
            x = batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias)
        return relu(x) if "relu" in names else x

    images = torch.randn(2, 3, 32, 32)
    x = activated(conv2d(images, model.stem[0].weight, padding=1), stem, model.stem)
    for unit in model.units:
        x = unit(x)
    x = activated(x, tail, model.tail)
    expected = linear(x.sum((2, 3)) / 64, model.head.weight, model.head.bias)
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize("option_110", ["resnet110", "preact110"])
def test_feature_maps_stay_channels_last(network: Callable[..., ResNet], option_110: str) -> None:
    model = network(option_110, "model.depth=14").to(memory_format=torch.channels_last)
    strayed = []

    def check(module: nn.Module, _: object, y: Tensor) -> None:
        if y.dim() == 4 and not y.is_contiguous(memory_format=torch.channels_last):
            strayed.append(module)

    for module in model.modules():
        module.register_forward_hook(check)
    model(torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last))
    assert strayed == []


def test_a_network_can_be_copied_and_pickled(network: Callable[..., ResNet], shortcut: str) -> None:
    model = network("digits_resnet", f"model/shortcut={shortcut}", shape=(1, 8, 8)).eval()
    x = torch.randn(2, 1, 8, 8)
    for twin in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))


@pytest.mark.parametrize(
    ("depth", "stages", "kernels", "nearest"),
    [
        (21, 3, 2, "a depth is 2 \\+ 6 n: the nearest are 20 and 26"),
        (165, 3, 3, "a depth is 2 \\+ 9 n: the nearest are 164 and 173"),
        (110 - 1, 3, 1, "a depth is 2 \\+ 3 n: the nearest are 107 and 110"),
        (2, 3, 2, "the smallest is 8"),
        (7, 3, 2, "the smallest is 8"),
        (-4, 3, 2, "the smallest is 8"),
    ],
)
def test_an_impossible_depth_names_the_nearest(depth: int, stages: int, kernels: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"depth is {depth}; .*{nearest}"):
        units_per_stage(depth, stages, kernels)


@pytest.mark.parametrize(
    ("depth", "kernels", "n"), [(20, 2, 3), (1202, 2, 200), (164, 3, 18), (1001, 3, 111), (110, 1, 36)]
)
def test_a_published_depth_gives_its_n(depth: int, kernels: int, n: int) -> None:
    assert units_per_stage(depth, 3, kernels) == n


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widths=[16,0,64]", "widths: .* given; sizes are at least 1"),
        ("model.widths=[]", "widths: .* given; sizes are at least 1"),
        ("model.expansion=-1", "expansion: .* given; sizes are at least 1"),
        ("model.kernels=[3,2]", "kernels are .*; give at least one, all odd and positive"),
        ("model.kernels=[]", "kernels are .*; give at least one, all odd and positive"),
        ("model.strided_kernel=2", "strided_kernel is 2; it is an index of kernels .*, 0 to 1"),
        ("model.layer=[conv,bn,gelu]", "after is .*which is not how layer .* ends"),
    ],
)
def test_an_impossible_size_is_refused(network: Callable[..., ResNet], override: str, message: str) -> None:
    with pytest.raises(InstantiationException, match=message):
        network("resnet20", override)
