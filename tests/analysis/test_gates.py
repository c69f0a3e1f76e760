"""Gate statistics against a layer by hand, on fully connected, convolutional and residual nets."""

import numpy as np
import pytest
import torch
from torch import Tensor

from deepnets.analysis import gates
from deepnets.analysis.walk import walk_of
from deepnets.errors import UserError
from tests.networks import small_batch, small_network


def by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
    """Transform gates and outputs of the layers of `highway_fc10` (10 layers, ReLU), (N, layers, blocks)."""
    model = small_network("model=highway_fc10")
    x = torch.relu(x.flatten(1) @ model.stem[0].weight.T + model.stem[0].bias)
    opened, outputs = [], []
    for unit in model.units:
        gate, linear = unit.shortcut.gate[0], unit.branch[0]
        t = torch.sigmoid(x @ gate.weight.T + gate.bias)
        x = t * torch.relu(x @ linear.weight.T + linear.bias) + (1 - t) * x
        opened.append(t)
        outputs.append(x)
    return torch.stack(opened, 1), torch.stack(outputs, 1)


def test_activity_by_class_and_over_all_images_are_means_of_the_gates() -> None:
    walk, (x, labels) = walk_of(small_network("model=highway_fc10")), small_batch(200)
    opened, _ = by_hand(x)
    found, images = gates.activity_by_class(walk, zip(x.split(60), labels.split(60), strict=True), 10)
    assert found.shape == (10, 9, 50)
    assert images.tolist() == labels.bincount(minlength=10).tolist()
    assert min(images) < max(images), "classes of unequal size tell a weighted mean from an unweighted one"
    for label in labels.unique().tolist():
        np.testing.assert_allclose(found[label], opened[labels == label].mean(0), rtol=1e-9)
    np.testing.assert_allclose(gates.mean_activity(found, images), opened.mean(0), rtol=1e-9)
    routing = gates.routing(found, images)
    np.testing.assert_allclose(routing[3], opened[labels == 3].mean(0) - opened.mean(0), atol=1e-12)
    np.testing.assert_allclose(np.average(routing, axis=0, weights=images), 0, atol=1e-12)


def test_a_class_without_images_spoils_no_mean() -> None:
    walk, (x, labels) = walk_of(small_network("model=highway_fc10")), small_batch(6)
    found, images = gates.activity_by_class(walk, [(x, labels)], 10)
    assert 0 in images
    np.testing.assert_allclose(gates.mean_activity(found, images), by_hand(x)[0].mean(0), rtol=1e-9)


def test_gates_and_outputs_of_one_image() -> None:
    walk, (x, _) = walk_of(small_network("model=highway_fc10")), small_batch(1)
    opened, outputs = by_hand(x)
    found = gates.of_one(walk, x)
    np.testing.assert_allclose(found[0], opened[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], outputs[0], rtol=1e-9)


def test_the_biases_of_a_fresh_net_are_its_option() -> None:
    assert np.unique(gates.biases(walk_of(small_network("model=highway_fc10")))).tolist() == [-2]
    assert np.unique(gates.biases(walk_of(small_network("model=highway_fc50_cifar100")))).tolist() == [-4]


@pytest.mark.parametrize("shortcut", ["highway_b1", "exclusive_gating_b1", "shortcut_only_gating_b0"])
def test_maps_are_averaged_over_pixels_and_narrow_layers_filled_up(shortcut: str) -> None:
    model = small_network("model.depth=8", f"model/shortcut={shortcut}", "model.widths=[4,6,8]")
    walk, (x, labels) = walk_of(model), small_batch(5)
    found = gates.mean_activity(*gates.activity_by_class(walk, [(x, labels)], 10))
    assert found.shape == (3, 8)
    assert np.isnan(found).sum(1).tolist() == [4, 2, 0]
    state = walk.inputs(x)[1]
    gate = walk.units[1].shortcut.gate(walk.units[1].before(state))
    np.testing.assert_allclose(found[1, :6], gate.mean((0, 2, 3)), rtol=1e-9)
    assert np.isnan(gates.biases(walk)[0]).tolist() == [False] * 4 + [True] * 4


def test_biases_behind_batch_normalisation_are_its_shifts() -> None:
    model = small_network("model.depth=8", "model/shortcut=highway_batchnorm_b6", "model.batchnorm_images=64")
    bias = gates.biases(walk_of(model))
    assert bias[0].tolist() == model.units[0].shortcut.gate[-2].bn.bias.tolist()


def test_a_net_without_gates_is_refused_with_a_way_out() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=8")), small_batch(2)
    for ask in (
        lambda: gates.biases(walk),
        lambda: gates.of_one(walk, x[:1]),
        lambda: gates.activity_by_class(walk, [(x, labels)], 10),
    ):
        with pytest.raises(UserError, match=r"without gates \(Identity\).*model/shortcut=highway_b2"):
            ask()
