"""Highway nets compute y = H(x) T(x) + x (1 - T(x)), written out here; their layouts are the released ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, linear, max_pool2d

from deepnets.errors import UserError
from deepnets.models.fully_connected import FullyConnected
from deepnets.models.highway import Highway

Layer = nn.Conv2d | nn.Linear


def weights(model: nn.Module) -> list[Layer]:
    return [module for module in model.modules() if isinstance(module, Layer)]


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def with_random_biases(model: nn.Module) -> nn.Module:
    for layer in weights(model):
        nn.init.normal_(layer.bias)
    return model.double()


@pytest.mark.parametrize(("activation", "function"), [("relu", relu), ("tanh", torch.tanh)])
def test_a_fully_connected_highway_net_is_its_equation(
    network: Callable[..., FullyConnected], activation: str, function: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    model = with_random_biases(network("highway_fc10", f"model.layer=[linear,{activation}]", shape=(1, 8, 8)))
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    first, *layers, head = weights(model)
    x = function(linear(images.view(4, 64), first.weight, first.bias))
    assert len(layers) == 2 * 9
    for h, t in zip(layers[::2], layers[1::2], strict=True):
        gate = 1 / (1 + torch.exp(-linear(x, t.weight, t.bias)))
        x = function(linear(x, h.weight, h.bias)) * gate + x * (1 - gate)
    torch.testing.assert_close(model(images), linear(x, head.weight, head.bias))


def test_a_fully_connected_plain_net_is_its_stack(network: Callable[..., FullyConnected]) -> None:
    torch.manual_seed(0)
    model = with_random_biases(network("plain_fc10", shape=(1, 8, 8)))
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    *hidden, head = weights(model)
    assert [layer.out_features for layer in hidden] == [71] * 10
    x = images.view(4, 64)
    for layer in hidden:
        x = relu(linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(model(images), linear(x, head.weight, head.bias))


def highway(x: Tensor, h: nn.Conv2d, t: nn.Conv2d) -> Tensor:
    padding = h.weight.shape[-1] // 2
    gate = torch.sigmoid(conv2d(x, t.weight, t.bias, padding=padding))
    return relu(conv2d(x, h.weight, h.bias, padding=padding)) * gate + x * (1 - gate)


def test_the_convolutional_mnist_net_has_its_layout(network: Callable[..., Highway]) -> None:
    torch.manual_seed(0)
    model = with_random_biases(network("highway_mnist_w16", shape=(1, 28, 28))).eval()
    images = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    *convs, head = weights(model)
    x = relu(conv2d(images, convs[0].weight, convs[0].bias))
    sizes = [x.shape[-1]]
    for index, (h, t) in enumerate(zip(convs[1::2], convs[2::2], strict=True), start=2):
        x = highway(x, h, t)
        if index in (3, 6):
            # A window more than floor((size - 3) / 2) + 1, incomplete at the lower and right edge.
            padded = nn.functional.pad(x, (0, 1, 0, 1), value=-float("inf"))
            x = max_pool2d(padded, 3, 2)
            sizes.append(x.shape[-1])
        elif index == 9:
            x = max_pool2d(x, 2, 2)
            sizes.append(x.shape[-1])
    assert sizes == [24, 12, 6, 3]
    torch.testing.assert_close(model(images), linear(x.flatten(1), head.weight, head.bias))


def test_the_released_cifar_net_has_its_layout(network: Callable[..., Highway]) -> None:
    torch.manual_seed(0)
    model = with_random_biases(network("highway_cifar19")).eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    *convs, head = weights(model)
    x, coming = images, iter(convs)
    for count in (4, 5, 5):
        entry = next(coming)
        x = relu(conv2d(x, entry.weight, entry.bias, padding=1))
        for _ in range(count):
            x = highway(x, next(coming), next(coming))
        if x.shape[1] < 128:
            x = max_pool2d(x, 2, 2)
    last = next(coming)
    x = avg_pool2d(relu(conv2d(x, last.weight, last.bias)), 8)
    assert x.shape == (2, 100, 1, 1)
    assert next(coming, None) is None
    torch.testing.assert_close(model(images), linear(x.flatten(1), head.weight, head.bias))


@pytest.mark.parametrize(
    ("option_name", "shape", "rates"),
    [
        ("highway_mnist_w32", (1, 28, 28), [0.2, 0.3, 0.4, 0.5, 0]),
        ("highway_cifar19", (3, 32, 32), [0.2, 0.2, 0.2, 0, 0, 0.2]),
    ],
)
def test_dropout_rates_stand_in_the_order_of_the_layers(
    network: Callable[..., Highway], option_name: str, shape: tuple[int, int, int], rates: list[float]
) -> None:
    model = network(option_name, shape=shape)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == rates


def test_highway_c_alternates_its_kernels_in_h_and_t(network: Callable[..., Highway]) -> None:
    for unit in network("highway_c").units[:9]:
        h, t = weights(unit)
        assert h.kernel_size == t.kernel_size
    kernels = [weights(unit)[0].kernel_size[0] for unit in network("highway_c").units[:9]]
    assert kernels == [1, 3, 1, 3, 1, 3, 1, 3, 1]


def test_first_and_last_layer_have_the_released_spread(network: Callable[..., Highway]) -> None:
    torch.manual_seed(0)
    model = network("highway_cifar19", classes=100)
    first, second, *_, head = weights(model)
    assert first.weight.std().item() == pytest.approx(1.0, rel=0.1)
    assert second.weight.std().item() == pytest.approx((2 / 288) ** 0.5, rel=0.05)
    assert head.weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert [unit.shortcut.gate[0].bias.unique().tolist() for unit in model.units] == [[-2.0]] * 14


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widths=[32,80]", "lengths: widths 2, entries 4, .*; give each list one entry per stage"),
        ("model.entries=[[3,1],null,[3,1],[1,0]]", "widths: 80 follows 32 channels; this stage needs an entry"),
        ("model.entries=[[3],[3,1],[3,1],[1,0]]", r"entries: \[3\] given; needs two numbers or null"),
        ("model.entries=[[40,0],[3,1],[3,1],[1,0]]", "images of 32x32 are too small"),
        ("model.kernels=[2]", "a highway layer keeps the size of a map, so choose odd ones"),
        ("model.units=[1,-1,1,0]", r"units\[1\]: got -1; must be at least 0"),
        ("model.input_dropout=1.0", "input_dropout: got 1.0; must be below 1"),
        ("model.widths=[32,80,'a',1]", r"model\.widths\[2\]: got 'a'"),
    ],
)
def test_an_impossible_layout_is_refused(network: Callable[..., Highway], override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        network("highway_cifar19", override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.depth=0", "depth: got 0; must be at least 1"),
        ("model.layer=[linear,bn,relu]", "this net has only linear, relu and tanh"),
        ("model.layer=[relu]", "it must hold exactly one conv or linear"),
    ],
)
def test_an_impossible_fully_connected_net_is_refused(
    network: Callable[..., FullyConnected], override: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        network("highway_fc10", override)
