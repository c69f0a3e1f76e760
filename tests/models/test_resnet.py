"""The network between its units: stem, tail and head; what it keeps, and what it refuses."""

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, linear, relu

from deepnets.errors import UserError
from deepnets.models.resnet import ResNet


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


def test_a_stem_can_be_given_and_convolutions_keep_biases(network: Callable[..., ResNet]) -> None:
    """Fleuret's course, 6.5, with one unit in place of 25."""
    torch.manual_seed(0)
    model = network("mnist_resnet52", "model.depth=4", shape=(1, 28, 28))
    stem, conv1, conv2 = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    for conv in (stem, conv1, conv2):
        assert torch.count_nonzero(conv.bias) == 0
        nn.init.normal_(conv.bias)
    images = torch.randn(4, 1, 28, 28)
    x = relu(stem.weight.view(16, 1, 1) * images + stem.bias.view(16, 1, 1))
    r = relu(batch_norm(conv2d(x, conv1.weight, conv1.bias, padding=1), None, None, training=True))
    r = batch_norm(conv2d(r, conv2.weight, conv2.bias, padding=1), None, None, training=True)
    expected = linear(relu(x + r).mean((2, 3)), model.head.weight, model.head.bias)
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize("family", ["resnet110", "preact110", "stochastic_depth110", "highway110", "thin_crelu"])
def test_feature_maps_stay_channels_last(network: Callable[..., ResNet], family: str) -> None:
    torch.manual_seed(0)
    chosen = ["model.depth=26", "model.batchnorm_images=1"]
    model = network(family, *chosen).to(memory_format=torch.channels_last)
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
    ("override", "message"),
    [
        ("model.widths=[16,0,64]", r"widths\[1\]: got 0; must be at least 1"),
        ("model.widths=[]", r"widths: \[\] given; give one number per stage"),
        ("model.expansion=-1", "expansion: got -1; must be at least 1"),
        ("model.kernels=[3,2]", "kernels are .*; choose one or more odd numbers"),
        ("model.kernels=[]", "kernels are .*; choose one or more odd numbers"),
        ("model.strided_kernel=2", "strided_kernel is 2; it must be an index of kernels .*, 0 to 1"),
        ("model.stem_kernel=0", "stem_kernel: got 0; must be at least 1"),
        ("model.stem=[bn,relu]", "stem is .*; it must hold exactly one conv"),
        ("model.layer=[conv,bn,tanh]", "after is .*which is not how layer .* ends"),
    ],
)
def test_an_impossible_size_is_refused(network: Callable[..., ResNet], override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        network("resnet20", override)
