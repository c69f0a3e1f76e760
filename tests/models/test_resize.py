"""Option A, option B, and what neither can do."""

import pytest
import torch
from torch import nn

from deepnets.models.resize import Ends, ZeroPadding


def test_option_a_keeps_every_second_pixel_and_puts_zeros_behind() -> None:
    x = torch.arange(1.0, 19.0).view(1, 2, 3, 3)
    expected = torch.tensor([[[1.0, 3], [7, 9]], [[10, 12], [16, 18]], [[0, 0], [0, 0]]])
    assert torch.equal(ZeroPadding(extra=1, stride=2)(x)[0], expected)


@pytest.mark.parametrize("extra", [0, 5])
def test_option_a_stays_channels_last_forward_and_backward(extra: int) -> None:
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    y = ZeroPadding(extra=extra, stride=2)(x)
    y.backward(torch.ones_like(y))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_resized_where_the_shapes_agree() -> None:
    assert isinstance(Ends(4, 4, 1, "projection", ("conv",)).resized(), nn.Identity)


def test_zero_padding_cannot_remove_channels() -> None:
    with pytest.raises(ValueError, match=r"zero padding cannot bring 8 channels to 4.*projection"):
        Ends(8, 4, 1, "zero_padding", ("conv",)).resized()


def test_an_unknown_resize_is_refused() -> None:
    with pytest.raises(ValueError, match="resize is 'pad'; choose zero_padding or projection"):
        Ends(4, 8, 2, "pad", ("conv",)).resized()
