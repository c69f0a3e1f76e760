"""Two gates, orthogonal and delta updates, concatenation: each equation by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from deepnets.errors import UserError
from deepnets.models.gates import Concatenated, Delta, Orthogonal, SeparatelyGated
from deepnets.models.layers import Conv, Layers
from deepnets.models.resize import ShortcutShape

HALVED = ShortcutShape(
    4,
    6,
    (Conv(6, 3, 2), Conv(6, 3, 1)),
    resize="zero_padding",
    projection=("conv", "bn"),
    layers=Layers(conv_bias=False, batchnorm_images=None),
)
TOKENS = replace(HALVED, inputs=6, convs=(Conv(6, 1, 1),), projection=("linear",))


def x_r_and_padded() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, r = torch.randn(3, 4, 8, 8), torch.randn(3, 6, 4, 4)
    return x, r, torch.cat((x[:, :, ::2, ::2], torch.zeros(3, 2, 4, 4)), dim=1)


def test_a_carry_gate_of_its_own() -> None:
    x, r, h = x_r_and_padded()
    shortcut = SeparatelyGated(transform_bias=-1.0, carry_bias=3.0, ends=HALVED)
    shortcut.reset_bias()
    transform, carry = (conv2d(x, gate.weight, stride=2) for gate in (shortcut.transform, shortcut.carry))
    expected = h / (1 + torch.exp(-carry - 3)) + r / (1 + torch.exp(-transform + 1))
    torch.testing.assert_close(shortcut(x, r), expected)


def test_separate_gates_see_what_the_branch_sees() -> None:
    x, r, h = x_r_and_padded()
    shortcut = SeparatelyGated(transform_bias=-1.0, carry_bias=3.0, kernel=None, ends=HALVED)
    shortcut.reset_bias()

    def gate(layers: nn.Sequential, bias: float) -> Tensor:
        hidden = torch.relu(conv2d(x, layers[0].weight, layers[0].bias, stride=2, padding=1))
        return 1 / (1 + torch.exp(-conv2d(hidden, layers[2].weight, padding=1) - bias))

    torch.testing.assert_close(shortcut(x, r), gate(shortcut.carry, 3) * h + gate(shortcut.transform, -1) * r)
    with pytest.raises(ValueError, match="a gate's kernel is 2; it must be odd"):
        SeparatelyGated(transform_bias=-1.0, carry_bias=3.0, kernel=2, ends=HALVED)


@pytest.mark.parametrize("feature_wise", [True, False])
def test_an_orthogonal_update(feature_wise: bool) -> None:
    x, r, h = x_r_and_padded()
    added = Orthogonal(feature_wise=feature_wise, eps=1e-6, ends=HALVED)(x, r) - h
    if feature_wise:
        for pixel in ((0, 1, 2), (2, 3, 0)):
            n, i, j = pixel
            here, update = h[n, :, i, j], r[n, :, i, j]
            expected = update - (here @ update) / (here @ here + 1e-6) * here
            torch.testing.assert_close(added[n, :, i, j], expected)
        assert (added * h).sum(1).abs().max() < 1e-5
    else:
        for image in range(3):
            share = (h[image] * r[image]).sum() / (h[image].square().sum() + 1e-6)
            torch.testing.assert_close(added[image], r[image] - share * h[image])
        assert (added * h).sum(1).abs().max() > 0.1


def test_an_orthogonal_update_of_tokens_is_over_their_features() -> None:
    torch.manual_seed(0)
    x, r = torch.randn(2, 3, 5, 6)
    y = Orthogonal(feature_wise=True, eps=0.0, ends=TOKENS)(x, r)
    torch.testing.assert_close((y - x - r)[1, 2], -(x[1, 2] @ r[1, 2]) / (x[1, 2] @ x[1, 2]) * x[1, 2])


def test_an_orthogonal_update_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    x, r = torch.randn(2, 3, 6, 4, 4).bfloat16()
    same = replace(HALVED, inputs=6, convs=(Conv(6, 3, 1),))
    y = Orthogonal(feature_wise=True, eps=1e-6, ends=same)(x, r)
    share = (x.float() * r.float()).sum(1, keepdim=True) / x.float().square().sum(1, keepdim=True)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, x + r - (share * x.float()).bfloat16())


@pytest.mark.parametrize("ends", [HALVED, TOKENS], ids=["maps", "tokens"])
def test_a_delta_update(ends: ShortcutShape) -> None:
    torch.manual_seed(0)
    maps = ends is HALVED
    x, r, h = x_r_and_padded() if maps else (tokens := torch.randn(3, 5, 6), torch.randn(3, 5, 6), tokens)
    shortcut = Delta(bias=-1.0, ends=ends)
    shortcut.reset_bias()
    b, v = shortcut.b(x), shortcut.v(x)
    y = shortcut(x, r)
    for place in ((0, 1, 2), (2, 3, 0)) if maps else ((0, 1), (2, 3)):
        at = (place[0], slice(None), *place[1:]) if maps else place
        beta, value = 2 * torch.sigmoid(b[at]), v[at]
        k = r[at] / r[at].square().sum().sqrt()
        torch.testing.assert_close(y[at], h[at] + beta * k * (value - k @ h[at]))
    reflected = Delta(bias=0.0, ends=TOKENS)
    for layer, bias in ((reflected.b, 40.0), (reflected.v, 0.0)):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, bias)
    x, r = torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(reflected(x, r).norm(dim=-1), x.norm(dim=-1))  # b = 2, v = 0: a reflection


@pytest.mark.parametrize("stride", [1, 2])
def test_concatenation(stride: int) -> None:
    torch.manual_seed(0)
    x, r = torch.randn(3, 4, 8, 8), torch.randn(3, 6, 8 // stride, 8 // stride)
    ends = replace(HALVED, convs=(Conv(6, 3, stride),))
    shortcut = Concatenated(ends=ends)
    y = shortcut(x, r)
    assert torch.equal(y[:, :4], x[:, :, ::stride, ::stride])
    assert torch.equal(y[:, 4:], r)
    without = shortcut(x, x.new_zeros(()))
    assert without.shape == y.shape == (3, Concatenated.channels(4, 6), 8 // stride, 8 // stride)
    assert torch.count_nonzero(without[:, 4:]) == 0


def test_a_resnet_grows_by_concatenation(network: Callable[..., nn.Module]) -> None:
    model = network("resnet20", "model/shortcut=concatenation")
    assert [unit.channels for unit in model.units] == [32, 48, 64, 96, 128, 160, 224, 288, 352]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("model", ["highway_cifar19", "highway_fc10", "vit_cifar"])
def test_concatenation_is_refused_where_the_width_is_fixed(network: Callable[..., nn.Module], model: str) -> None:
    with pytest.raises(UserError, match="the width of this net is fixed: choose a shortcut that adds"):
        network(model, "model/shortcut=concatenation")


@pytest.mark.parametrize(
    "join",
    [
        "skipinit",
        "layer_scale",
        "inverse_depth",
        "separate_gates",
        "highway_separate_gates",
        "orthogonal",
        "deepnorm",
        "projection",
    ],
)
def test_shortcuts_of_maps_join_tokens_and_branches_that_do_not_survive(
    network: Callable[..., nn.Module], join: str
) -> None:
    torch.manual_seed(0)
    for model, shape in (("digits_resnet", (1, 8, 8)), ("vit_digits", (1, 8, 8))):
        net = network(model, f"model/shortcut={join}", "model/survival=uniform", shape=shape).train()
        net(torch.randn(3, *shape)).square().sum().backward()
        assert all(parameter.grad is not None for parameter in net.units[-1].branch.parameters())
        assert net.eval()(torch.randn(3, *shape)).isfinite().all()
