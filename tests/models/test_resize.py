"""Option A, option B, and what neither can do."""

import pytest
import torch
from torch import nn

from deepnets.models.layers import Conv, Layers
from deepnets.models.resize import ShortcutShape, ZeroPadding

LAYERS = Layers(conv_bias=False, batchnorm_images=None)


def test_option_a_keeps_every_second_pixel_and_puts_zeros_behind() -> None:
    x = torch.arange(1.0, 19.0).view(1, 2, 3, 3)
    expected = torch.tensor([[[1.0, 3], [7, 9]], [[10, 12], [16, 18]], [[0, 0], [0, 0]]])
    assert torch.equal(ZeroPadding(extra=1, stride=2)(x)[0], expected)


def test_average_pooling_keeps_the_mean_of_four_pixels() -> None:
    resized = ShortcutShape(1, 2, (Conv(2, 3, 2),), "average_pooling", ("conv",), LAYERS).resized()
    x = torch.arange(1.0, 13.0).view(1, 1, 3, 4)
    assert torch.equal(resized(x)[0], torch.tensor([[[3.5, 5.5], [9.5, 11.5]], [[0, 0], [0, 0]]]))


@pytest.mark.parametrize("extra", [0, 5])
def test_option_a_stays_channels_last_forward_and_backward(extra: int) -> None:
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    y = ZeroPadding(extra=extra, stride=2)(x)
    y.backward(torch.ones_like(y))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_resized_where_the_shapes_agree() -> None:
    assert isinstance(ShortcutShape(4, 4, (Conv(4, 3, 1),), "projection", ("conv",), LAYERS).resized(), nn.Identity)


def test_zero_padding_cannot_remove_channels() -> None:
    with pytest.raises(ValueError, match=r"zero padding cannot bring 8 channels to 4.*projection"):
        ShortcutShape(8, 4, (Conv(4, 3, 1),), "zero_padding", ("conv",), LAYERS).resized()


def test_a_network_of_ones_own_describes_a_shortcut_by_its_ends() -> None:
    ends = ShortcutShape.between(4, 8, stride=2, unit=3, units=7)
    assert (ends.inputs, ends.outputs, ends.stride, ends.unit, ends.units) == (4, 8, 2, 3, 7)
    assert ends.resized()(torch.zeros(2, 4, 7, 7)).shape == (2, 8, 4, 4)
    assert isinstance(ShortcutShape.between(4, 4).resized(), nn.Identity)
