"""Dense, wide and grouped networks: torchvision's logits with its weights, dropout in branches, raw openings."""

from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import batch_norm, conv2d, relu

from deepnets.errors import UserError
from deepnets.models.batchnorm import BatchNorm

Network = Callable[..., nn.Module]


@pytest.mark.parametrize(
    ("option", "peer"),
    [
        ("imagenet_densenet121", torchvision.models.densenet121),
        ("imagenet_wide_resnet50_2", torchvision.models.wide_resnet50_2),
        ("imagenet_resnext50", torchvision.models.resnext50_32x4d),
    ],
)
def test_the_logits_are_torchvisions(network: Network, option: str, peer: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    theirs = peer(weights=None)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        theirs(x)  # its running statistics differ from 0 and 1
    theirs.eval()
    with torch.device("meta"):
        ours = network(option, shape=(3, 224, 224), classes=1000)
    values = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(values, assign=True)
    with torch.no_grad():
        expected = theirs(x)
        torch.testing.assert_close(ours.eval()(x), expected, atol=1e-5 * expected.std().item(), rtol=1e-5)


def test_dropout_stands_in_front_of_all_convolutions_of_a_branch_but_the_first(network: Network) -> None:
    wide = network("resnet20", "model/ordering=full_preactivation", "model.dropout=0.3")
    kinds = [type(layer) for layer in wide.units[1].branch]
    assert kinds == [BatchNorm, nn.ReLU, nn.Conv2d, BatchNorm, nn.ReLU, nn.Dropout, nn.Conv2d]
    assert wide.units[1].branch[5].p == 0.3
    assert not any(isinstance(module, nn.Dropout) for module in network("resnet20").modules())
    dense = network("densenet_bc100_12", "model.units=[2,2]", "model.dropout=0.2")
    kinds = [type(layer) for layer in dense.units[0].branch]
    assert kinds == 2 * [BatchNorm, nn.ReLU, nn.Conv2d, nn.Dropout]
    assert [type(layer) for layer in dense.stages[1]][:5] == [
        BatchNorm, nn.ReLU, nn.Conv2d, nn.Dropout, nn.AvgPool2d
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"dropout: got 1\.0; must be below 1"):
        network("resnet20", "model.dropout=1.0")


def test_every_layer_of_a_dense_stage_reads_all_before_it(network: Network) -> None:
    model = network("densenet40_12", "model.units=[3,3]")
    assert [unit.branch[0].num_features for unit in model.units] == [16, 28, 40, 52, 64, 76]
    compressed = network("densenet_bc100_12", "model.units=[3,3]")
    assert [unit.branch[0].num_features for unit in compressed.units] == [24, 36, 48, 30, 42, 54]


def test_a_raw_opening_leaves_x_to_the_shortcut(network: Network) -> None:
    torch.manual_seed(0)
    model = network("preact110", "model.depth=14", "model.opening=raw").eval().double()
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    for unit in (model.stages[0][0], model.stages[1][0]):
        bn1, _, conv1, bn2, _, conv2 = unit.branch
        stride = conv1.stride[0]
        h = torch.zeros(2, conv2.out_channels, 8 // stride, 8 // stride, dtype=torch.float64)
        h[:, :16] = x[:, :, ::stride, ::stride]
        r = relu(batch_norm(x, bn1.running_mean, bn1.running_var))
        r = conv2d(r, conv1.weight, stride=stride, padding=1)
        r = conv2d(relu(batch_norm(r, bn2.running_mean, bn2.running_var)), conv2.weight, padding=1)
        torch.testing.assert_close(unit(x), h + r)
        assert len(unit.before) == 0


def test_a_raw_opening_makes_the_shortcut_a_straight_highway(network: Network) -> None:
    """With all branches 0, an image passes every unit unchanged: only 3 of preact110's units change it."""
    for opening, straight in (("raw", True), ("activated", False)):
        model = network("preact110", f"model.opening={opening}", "model.depth=14").eval()
        x = torch.randn(2, 16, 8, 8)
        behind = x
        for unit in model.units:
            behind = unit(behind, 0.0)
        assert torch.equal(behind[:, :16], x[:, :, ::4, ::4]) == straight


def test_groups_must_divide(network: Network) -> None:
    with pytest.raises(UserError, match="groups is 3, which does not divide 16 and 16 channels"):
        network("resnet20", "model.groups=3")
    with pytest.raises(UserError, match="groups: got 0; must be at least 1"):
        network("resnet20", "model.groups=0")
