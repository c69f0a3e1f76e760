"""Shortcuts that scale their terms: each equation by hand, the unit's index and number included."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deepnets.errors import UserError
from deepnets.models.layers import Conv, Layers
from deepnets.models.resize import ShortcutShape
from deepnets.models.resnet import ResNet
from deepnets.models.scales import DeepNormed, DepthScaled, LayerScale, PerUnit, ScaledBranch

HALVED = ShortcutShape(
    4,
    6,
    (Conv(6, 3, 2), Conv(6, 3, 1)),
    resize="zero_padding",
    projection=("conv", "bn"),
    layers=Layers(conv_bias=False, batchnorm_images=None),
    unit=2,
    units=9,
)


def x_r_and_padded() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, r = torch.randn(3, 4, 8, 8), torch.randn(3, 6, 4, 4)
    return x, r, torch.cat((x[:, :, ::2, ::2], torch.zeros(3, 2, 4, 4)), dim=1)


@pytest.mark.parametrize("start", [0.0, 1.0, -0.25])
def test_a_scaled_branch(start: float) -> None:
    x, r, h = x_r_and_padded()
    shortcut = ScaledBranch(start=start, ends=HALVED)
    torch.testing.assert_close(shortcut(x, r), h + start * r)
    shortcut(x, r).sum().backward()
    torch.testing.assert_close(shortcut.a.grad, r.sum().view(1))


def test_layer_scale_has_a_number_for_each_channel_of_maps_and_tokens() -> None:
    x, r, h = x_r_and_padded()
    shortcut = LayerScale(start=0.1, ends=HALVED)
    torch.testing.assert_close(shortcut(x, r), h + 0.1 * r)
    with torch.no_grad():
        shortcut.g.copy_(torch.arange(6))
    torch.testing.assert_close(shortcut(x, r)[:, 5], h[:, 5] + 5 * r[:, 5])
    tokens, update = torch.randn(2, 3, 5, 6)
    same = LayerScale(start=0.5, ends=replace(HALVED, inputs=6, convs=(Conv(6, 1, 1),)))
    with torch.no_grad():
        same.g.copy_(torch.arange(6))
    torch.testing.assert_close(same(tokens, update)[..., 4], tokens[..., 4] + 4 * update[..., 4])


def test_scales_of_each_unit() -> None:
    x, r, h = x_r_and_padded()
    scales = {"shortcut_scales": [1.0, 0.5, *[0.0] * 7], "branch_scales": [1.0, 0.2, *[0.0] * 7]}
    torch.testing.assert_close(PerUnit(**scales, ends=HALVED)(x, r), 0.5 * h + 0.2 * r)
    with pytest.raises(ValueError, match="branch_scales: 2 numbers given; needs 9, one for each unit"):
        PerUnit(shortcut_scales=[1.0] * 9, branch_scales=[1.0, 1.0], ends=HALVED)


def test_scales_by_depth() -> None:
    x, r, h = x_r_and_padded()
    torch.testing.assert_close(DepthScaled(exponent=0.5, ends=HALVED)(x, r), h + r / 3)
    torch.testing.assert_close(DepthScaled(exponent=1.0, ends=HALVED)(x, r), h + r / 9)
    for layers, alpha in ((12, 2.213), (100, 3.761), (1000, 6.687)):  # DeepNet's own numbers
        y = DeepNormed(ends=replace(HALVED, units=2 * layers))(x, r)
        torch.testing.assert_close(y, alpha * h + r, atol=2e-3, rtol=2e-4)


def test_every_family_numbers_its_units(network: Callable[..., nn.Module]) -> None:
    for model, units in (("resnet20", 9), ("highway_cifar19", 14), ("plain_fc10", 9), ("vit_cifar", 12)):
        count = ",".join(f"{unit}.0" for unit in range(1, units + 1))
        scales = [f"model.shortcut.{which}_scales=[{count}]" for which in ("shortcut", "branch")]
        with torch.device("meta"):
            net = network(model, "model/shortcut=per_unit", *scales)
        found = [unit.shortcut for unit in net.units]
        assert [shortcut.shortcut_scale for shortcut in found] == list(range(1, units + 1)), model
        assert [shortcut.branch_scale for shortcut in found] == list(range(1, units + 1)), model


def test_an_option_is_the_case_its_name_says(network: Callable[..., ResNet]) -> None:
    for case, kind, values in [
        ("skipinit", ScaledBranch, {"a": 0.0}),
        ("fixup", ScaledBranch, {"a": 1.0}),
        ("layer_scale", LayerScale, {"g": 1e-5}),
        ("inverse_sqrt_depth", DepthScaled, {"branch_scale": 1 / 3}),
        ("inverse_depth", DepthScaled, {"branch_scale": 1 / 9}),
        ("deepnorm", DeepNormed, {"shortcut_scale": 3**0.5}),
    ]:
        for unit in network("resnet20", f"model/shortcut={case}").units:
            assert type(unit.shortcut) is kind, case
            for name, value in values.items():
                torch.testing.assert_close(
                    torch.as_tensor(getattr(unit.shortcut, name)).mean(), torch.tensor(value), msg=case
                )


def test_scales_of_another_number_of_units_are_refused(network: Callable[..., ResNet]) -> None:
    scales = "model.shortcut.shortcut_scales=[1.0,1.0]", "model.shortcut.branch_scales=[1.0,1.0]"
    with pytest.raises(UserError, match="shortcut_scales: 2 numbers given; needs 9, one for each unit"):
        network("resnet20", "model/shortcut=per_unit", *scales)
