"""Layers that torch does not have: batch normalisation in groups, and CReLU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from deepnets.errors import UserError
from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.layers import Conv, CReLU, Layers
from deepnets.models.resnet import ResNet


def normalised(group: Tensor) -> Tensor:
    mean, variance = group.mean((0, 2, 3), keepdim=True), group.var((0, 2, 3), correction=0, keepdim=True)
    return (group - mean) / torch.sqrt(variance + 1e-5)


@pytest.mark.parametrize(
    ("batch", "groups"), [(12, [4, 4, 4]), (9, [3, 3, 3]), (5, [3, 2]), (4, [4]), (3, [3])], ids=str
)
def test_each_group_has_its_own_statistics(batch: int, groups: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, 3, 5, 5) * torch.arange(1.0, batch + 1).view(-1, 1, 1, 1)
    ghost = GhostBatchNorm(3, images=4)
    with torch.no_grad():
        ghost.bn.weight.copy_(torch.tensor([1.0, 2, 3]))
        ghost.bn.bias.copy_(torch.tensor([0.0, 1, 2]))
    expected = torch.cat([normalised(group) for group in x.split(groups)])
    expected = expected * ghost.bn.weight.view(3, 1, 1) + ghost.bn.bias.view(3, 1, 1)
    torch.testing.assert_close(ghost(x), expected)


def test_running_statistics_move_once_per_batch_toward_the_mean_of_the_groups() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 2, 16, 16) + 3
    ghost = GhostBatchNorm(2, images=4)
    with torch.no_grad():
        ghost(x)
    first, second = x.split(4)
    # Exact up to the second order in the share of the momentum, 0.05: 1 - 0.95^2 = 0.0975.
    mean = 0.95 * 0.05 * first.mean((0, 2, 3)) + 0.05 * second.mean((0, 2, 3))
    variance = 0.95**2 + 0.95 * 0.05 * first.var((0, 2, 3)) + 0.05 * second.var((0, 2, 3))
    torch.testing.assert_close(ghost.bn.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ghost.bn.running_var, variance, rtol=1e-4, atol=1e-5)
    assert ghost.bn.num_batches_tracked == 1
    ghost.eval()
    expected = (x - mean.view(2, 1, 1)) / torch.sqrt(variance.view(2, 1, 1) + 1e-5)
    torch.testing.assert_close(ghost(x), expected, rtol=1e-4, atol=1e-4)


def test_a_net_of_ghost_batches_is_the_net_on_each_group(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    chosen = ["highway110", "model.depth=14", "model.widths=[4,6,8]", "model.stem_width=4"]
    ghost = network(*chosen, "model.batchnorm_images=3")
    assert len([module for module in ghost.modules() if isinstance(module, GhostBatchNorm)]) == 1 + 6 * 4 + 2
    assert [unit.shortcut.gate[-2].bn.bias.unique().item() for unit in ghost.units] == [-6.0] * 6
    plain = network(*chosen)
    plain.load_state_dict({name.replace(".bn.", "."): tensor for name, tensor in ghost.state_dict().items()})
    images = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    expected = torch.cat([plain(images[:3]), plain(images[3:])])
    torch.testing.assert_close(ghost(images), expected, rtol=1e-4, atol=1e-5)


def test_ghost_batches_stay_channels_last() -> None:
    x = torch.randn(6, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    assert GhostBatchNorm(8, images=2)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_group_of_no_images_is_refused(network: Callable[..., ResNet]) -> None:
    with pytest.raises(UserError, match="batchnorm_images: got 0; must be at least 1"):
        network("resnet20", "model.batchnorm_images=0")


def test_crelu_doubles_the_channels_for_what_follows() -> None:
    x = torch.tensor([[[[1.0]], [[-2.0]]]])
    assert CReLU()(x).flatten().tolist() == [1, 0, 0, 2]
    names, convs = ["conv", "crelu", "conv", "crelu"], [Conv(3, 3, 2), Conv(5, 1, 1)]
    layers = Layers(conv_bias=True, batchnorm_images=None).sequence(names, 2, convs)
    assert layers[2].weight.shape == (5, 6, 1, 1)
    assert layers(torch.randn(1, 2, 7, 7)).shape == (1, 10, 4, 4)


@pytest.mark.parametrize("rotation", [["crelu", "conv"], ["conv", "crelu"]])
def test_a_crelu_net_can_be_rotated_and_keeps_its_shortcuts(
    network: Callable[..., ResNet], rotation: list[str]
) -> None:
    chosen = [f"model.layer=[{','.join(rotation)}]", "model/shortcut=identity", "model.resize=projection"]
    model = network("thin_crelu", *chosen, "model.depth=18")
    x = torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 10)
    assert model.head.in_features == 90


@pytest.mark.parametrize("channels", [3, 4, 8, 12, 16])
def test_a_strided_pointwise_convolution_has_exact_gradients_in_channels_last(channels: int) -> None:
    """oneDNN's own gradient of fewer than 16 channels writes past its buffer, which crashes the process at times."""
    (conv,) = Layers(conv_bias=True, batchnorm_images=None).sequence(["conv"], channels, [Conv(8, 1, 2)])
    images = torch.randn(128, channels, 17, 16).to(memory_format=torch.channels_last)
    exact = nn.Conv2d(channels, 8, 1, 2).double()
    exact.load_state_dict(conv.state_dict())
    for _ in range(10):
        x, y = images.clone().requires_grad_(), images.double().contiguous().requires_grad_()
        conv.to(memory_format=torch.channels_last).zero_grad()
        exact.zero_grad()
        outputs, targets = conv(x), exact(y)
        assert outputs.shape == (128, 8, 9, 8)
        (outputs**2).sum().backward()
        (targets**2).sum().backward()
        pairs = [(outputs, targets), (x.grad, y.grad), (conv.weight.grad, exact.weight.grad)]
        for here, there in pairs:
            torch.testing.assert_close(here.double(), there, rtol=1e-4, atol=1e-4 * float(there.detach().abs().max()))
