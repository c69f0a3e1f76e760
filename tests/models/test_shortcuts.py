"""Each shortcut joins x and r as its figure in He et al. 2016 says; gates and projections read x before resizing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d

from deepnets.models.batchnorm import BatchNorm
from deepnets.models.layers import Conv, Layers
from deepnets.models.resize import ShortcutShape
from deepnets.models.resnet import ResNet
from deepnets.models.shortcuts import Dropped, Gated, Identity, Projected, Scaled

LAYERS = Layers(conv_bias=False, batchnorm_images=None)
SAME = ShortcutShape(
    6, 6, (Conv(6, 3, 1), Conv(6, 3, 1)), resize="zero_padding", projection=("conv", "bn"), layers=LAYERS
)
HALVED = ShortcutShape(
    4, 6, (Conv(6, 3, 2), Conv(6, 3, 1)), resize="zero_padding", projection=("conv", "bn"), layers=LAYERS
)
BOTH = pytest.mark.parametrize("ends", [SAME, HALVED], ids=["same shape", "halved"])


def x_and_r(ends: ShortcutShape) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, ends.inputs, 8, 8), torch.randn(3, ends.outputs, 8 // ends.stride, 8 // ends.stride)


def padded(x: Tensor, r: Tensor) -> Tensor:
    step = x.shape[2] // r.shape[2]
    return torch.cat([x[:, :, ::step, ::step], torch.zeros(3, r.shape[1] - x.shape[1], *r.shape[2:])], dim=1)


@BOTH
def test_identity(ends: ShortcutShape) -> None:
    x, r = x_and_r(ends)
    torch.testing.assert_close(Identity(ends=ends)(x, r), padded(x, r) + r)


@BOTH
@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.5, 1.0), (0.5, 0.5), (0.0, 0.25)])
def test_scaled(ends: ShortcutShape, a: float, b: float) -> None:
    x, r = x_and_r(ends)
    y = Scaled(shortcut_scale=a, branch_scale=b, ends=ends)(x, r)
    torch.testing.assert_close(y, a * padded(x, r) + b * r)


@BOTH
@pytest.mark.parametrize("exclusive", [True, False])
def test_gated(ends: ShortcutShape, exclusive: bool) -> None:
    x, r = x_and_r(ends)
    shortcut = Gated(bias=-1.0, exclusive=exclusive, kernel=1, batchnorm=False, ends=ends)
    conv = shortcut.gate[0]
    g = 1 / (1 + torch.exp(-conv2d(x, conv.weight, conv.bias, stride=ends.stride)))
    assert g.shape == r.shape
    torch.testing.assert_close(shortcut(x, r), (1 - g) * padded(x, r) + (g * r if exclusive else r))


@BOTH
def test_a_gate_like_its_branch(ends: ShortcutShape) -> None:
    x, r = x_and_r(ends)
    shortcut = Gated(bias=-6.0, exclusive=True, kernel=None, batchnorm=True, ends=ends)
    shortcut.reset_bias()
    assert [type(module) for module in shortcut.gate] == [
        nn.Conv2d, BatchNorm, nn.ReLU, nn.Conv2d, BatchNorm, nn.Sigmoid
    ]  # fmt: skip
    conv1, _, _, conv2, last, _ = shortcut.gate
    assert conv1.bias is None
    assert torch.all(last.bias == -6)
    inner = batch_norm(conv2d(x, conv1.weight, stride=ends.stride, padding=1), None, None, training=True).relu()
    g = torch.sigmoid(batch_norm(conv2d(inner, conv2.weight, padding=1), None, None, training=True) - 6)
    torch.testing.assert_close(shortcut(x, r), (1 - g) * padded(x, r) + g * r)


def test_an_even_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="a gate's kernel is 2; it must be odd, or null"):
        Gated(bias=0.0, exclusive=True, kernel=2, batchnorm=False, ends=SAME)


def test_a_nearly_closed_gate_survives_bfloat16() -> None:
    """1 - sigmoid(-6) is 0.9975; rounded to bfloat16 by itself it would be 0.9961: 0.81, not 0.87, in 54 units."""
    torch.manual_seed(0)
    ends = ShortcutShape(1, 1, (Conv(1, 3, 1),), resize="zero_padding", projection=("conv",), layers=LAYERS)
    for exclusive in (True, False):
        shortcut = Gated(bias=-6.0, exclusive=exclusive, kernel=1, batchnorm=False, ends=ends)
        nn.init.zeros_(shortcut.gate[0].weight)
        shortcut.reset_bias()
        x = (1 + torch.rand(1, 1, 200, 200)).bfloat16()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            y = shortcut(x, torch.zeros_like(x))
        assert y.dtype == torch.bfloat16
        assert (y.double().mean() / x.double().mean()).item() == pytest.approx(0.99753, abs=5e-4)


@BOTH
def test_projected_is_a_1x1_convolution_and_bn_even_where_the_shape_agrees(ends: ShortcutShape) -> None:
    x, r = x_and_r(ends)
    shortcut = Projected(ends=ends).eval()
    conv, bn = shortcut.projection
    assert conv.kernel_size == (1, 1)
    assert conv.bias is None
    bn.running_var.fill_(4.0)
    expected = conv2d(x, conv.weight, stride=ends.stride) / (4.0 + 1e-5) ** 0.5 + r
    torch.testing.assert_close(shortcut(x, r), expected)


@BOTH
@pytest.mark.parametrize(("inverted", "survivor", "at_test"), [(False, 1.0, 0.75), (True, 4 / 3, 1.0)])
def test_dropped(ends: ShortcutShape, inverted: bool, survivor: float, at_test: float) -> None:
    x, r = x_and_r(ends)
    shortcut = Dropped(rate=0.25, inverted=inverted, ends=ends)
    h = padded(x, r)
    dropped = shortcut(x, r) - r
    kept = dropped.abs() > 1e-6
    torch.testing.assert_close(dropped[kept], survivor * h[kept], atol=1e-5, rtol=1e-5)
    assert kept[h != 0].float().mean().item() == pytest.approx(0.75, abs=0.08)
    torch.testing.assert_close(shortcut.eval()(x, r), at_test * h + r)


def test_a_plain_net_has_no_projection_that_never_learns() -> None:
    ends = ShortcutShape(
        4, 6, (Conv(6, 3, 2), Conv(6, 3, 1)), resize="projection", projection=("conv", "bn"), layers=LAYERS
    )
    assert list(Scaled(shortcut_scale=0.0, branch_scale=1.0, ends=ends).parameters()) == []


@pytest.mark.slow
def test_an_option_file_is_the_case_its_name_says_in_every_unit(network: Callable[..., ResNet]) -> None:
    for case, kind, values in [
        ("identity", Identity, {}),
        ("none", Scaled, {"shortcut_scale": 0.0, "branch_scale": 1.0}),
        ("scaled_0.5_1", Scaled, {"shortcut_scale": 0.5, "branch_scale": 1.0}),
        ("scaled_0.5_0.5", Scaled, {"shortcut_scale": 0.5, "branch_scale": 0.5}),
        *[(f"exclusive_gating_b{b}", Gated, {"bias": -float(b), "exclusive": True}) for b in range(8)],
        *[(f"highway_b{b}", Gated, {"bias": -float(b), "exclusive": True}) for b in (1, 2, 4)],
        ("highway_batchnorm_b6", Gated, {"bias": -6.0, "exclusive": True}),
        *[(f"shortcut_only_gating_b{b}", Gated, {"bias": -float(b), "exclusive": False}) for b in (0, 6)],
        ("projection", Projected, {}),
        ("dropout", Dropped, {"rate": 0.5, "inverted": False}),
        ("dropout_inverted", Dropped, {"rate": 0.5, "inverted": True}),
    ]:
        for unit in network("resnet20", f"model/shortcut={case}").units:
            assert type(unit.shortcut) is kind, case
            assert {name: getattr(unit.shortcut, name) for name in values} == values, case


@pytest.mark.parametrize("net", [["vit_digits"], ["digits_resnet", "model/ordering=fixup"]], ids=["vit", "fixup"])
@pytest.mark.parametrize("gate", ["exclusive_gating_b6", "shortcut_only_gating_b6", "highway_b2"])
def test_gates_compute_under_autocast_beside_a_stream_of_float32(
    network: Callable[..., ResNet], net: list[str], gate: str
) -> None:
    """Transformers and Fixup add float32 parameters to the signal; the gates and branches beside it are bfloat16."""
    model = network(*net, f"model/shortcut={gate}", classes=10, shape=(1, 8, 8))
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    exact = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(x)
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05 * exact.abs().max().item())
