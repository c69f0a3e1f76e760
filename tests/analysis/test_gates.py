"""Gate statistics and routing: against layers by hand, and nets and arrays whose values are known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from deepnets.analysis import gates
from deepnets.analysis.gates import interval, routing_of, sparseness
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
    routing = gates.routing_of(walk, zip(x.split(60), labels.split(60), strict=True), 10)
    found, images = routing.by_class, routing.images
    assert found.shape == (10, 9, 50)
    assert images.tolist() == labels.bincount(minlength=10).tolist()
    assert min(images) < max(images), "classes of unequal size tell a weighted mean from an unweighted one"
    for label in labels.unique().tolist():
        np.testing.assert_allclose(found[label], opened[labels == label].mean(0), rtol=1e-9)
    np.testing.assert_allclose(routing.mean, opened.mean(0), rtol=1e-9)
    np.testing.assert_allclose(routing.of_classes[3], opened[labels == 3].mean(0) - opened.mean(0), atol=1e-12)
    np.testing.assert_allclose(np.average(routing.of_classes, axis=0, weights=images), 0, atol=1e-12)


def test_a_class_without_images_spoils_no_mean() -> None:
    walk, (x, labels) = walk_of(small_network("model=highway_fc10")), small_batch(6)
    found = gates.routing_of(walk, [(x, labels)], 10)
    assert 0 in found.images
    np.testing.assert_allclose(found.mean, by_hand(x)[0].mean(0), rtol=1e-9)


def test_gates_and_outputs_of_one_image() -> None:
    walk, (x, _) = walk_of(small_network("model=highway_fc10")), small_batch(1)
    opened, outputs = by_hand(x)
    found = gates.of_one_image(walk, x)
    np.testing.assert_allclose(found[0], opened[0], rtol=1e-9)
    np.testing.assert_allclose(found[1], outputs[0], rtol=1e-9)


@pytest.mark.parametrize("shortcut", ["separate_gates", "highway_separate_gates"])
def test_beside_carry_gates_of_their_own_the_transform_gates_are_measured(shortcut: str) -> None:
    model = small_network("model=highway_fc10", f"model/shortcut={shortcut}")
    walk, (x, labels) = walk_of(model), small_batch(20)
    state, opened = torch.relu(model.stem[0](x.flatten(1))), []
    for unit in model.units:
        t, c = (torch.sigmoid(gate(state)) for gate in (unit.shortcut.transform, unit.shortcut.carry))
        state = c * state + t * torch.relu(unit.branch[0](state))
        opened.append(t)
    routing = gates.routing_of(walk, [(x, labels)], 10)
    np.testing.assert_allclose(routing.mean, torch.stack(opened).mean(1).detach(), rtol=1e-9)
    assert np.unique(gates.biases(walk)).tolist() == [-2]


def test_the_biases_of_a_fresh_net_are_its_option() -> None:
    assert np.unique(gates.biases(walk_of(small_network("model=highway_fc10")))).tolist() == [-2]
    assert np.unique(gates.biases(walk_of(small_network("model=highway_fc50_cifar100")))).tolist() == [-4]


@pytest.mark.parametrize("shortcut", ["highway_b1", "exclusive_gating_b1", "shortcut_only_gating_b0"])
def test_maps_are_averaged_over_pixels_and_narrow_layers_filled_up(shortcut: str) -> None:
    model = small_network("model.depth=8", f"model/shortcut={shortcut}", "model.widths=[4,6,8]")
    walk, (x, labels) = walk_of(model), small_batch(5)
    found = gates.routing_of(walk, [(x, labels)], 10).mean
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
        lambda: gates.of_one_image(walk, x[:1]),
        lambda: gates.routing_of(walk, [(x, labels)], 10),
    ):
        with pytest.raises(UserError, match=r"without gates \(Identity\).*model/shortcut=highway_b2"):
            ask()


OPTIONS = ("model=highway_fc10", "model.depth=4", "model.width=6")


def test_sparseness_of_equal_values_is_none_and_of_one_in_n_is_that() -> None:
    values = torch.tensor([[0.3] * 4, [0.0, 0.0, 0.7, 0.0]])
    torch.testing.assert_close(sparseness(values, 1), torch.tensor([0.0, 0.75]))


def test_gates_that_do_not_read_their_input_neither_route_nor_select() -> None:
    model, (x, labels) = small_network(*OPTIONS), small_batch(20)
    for index, unit in enumerate(model.units):
        unit.shortcut.gate[0].weight.zero_()
        unit.shortcut.gate_bias.fill_(index - 1.0)
    found = routing_of(walk_of(model), zip(x.split(7), labels.split(7), strict=True), 10)
    np.testing.assert_allclose(found.bias, np.repeat([[-1.0], [0.0], [1.0]], 6, axis=1))
    np.testing.assert_allclose(found.mean, 1 / (1 + np.exp(-found.bias)))
    np.testing.assert_allclose(found.lifetime, 0, atol=1e-9)
    np.testing.assert_allclose(found.population, 0, atol=1e-9)
    assert not found.between.any()
    assert found.opened.tolist() == [[0, 0, 1]] * 20


def test_a_gate_that_follows_the_class_lies_between_classes_only() -> None:
    """Two images, each many times: all variance is between these classes; a third of one of them has some within."""
    model, (x, _) = small_network(*OPTIONS), small_batch(3)
    images, labels = x[[0, 1, 0, 1]], torch.tensor([4, 7, 4, 7])
    np.testing.assert_allclose(routing_of(walk_of(model), [(images, labels)], 10).between, 1, rtol=1e-6)
    mixed = routing_of(walk_of(model), [(x[[0, 1, 2]], torch.tensor([4, 7, 7]))], 10).between
    gate = model.units[0].shortcut.gate(model.stem(x.flatten(1)))
    means = torch.stack((gate[0], gate[1:].mean(0)))
    expected = (means - gate.mean(0)).square() * torch.tensor([[1.0], [2.0]]) / 3
    np.testing.assert_allclose(mixed[0], (expected.sum(0) / gate.var(0, correction=0)).detach(), rtol=1e-6)


def test_change_is_what_the_gates_let_in() -> None:
    model, (x, labels) = small_network(*OPTIONS), small_batch(5)
    found = routing_of(walk_of(model), [(x, labels)], 10)
    start = model.stem(x.flatten(1))
    unit = model.units[0]
    moved = unit.shortcut.gate(start) * (unit.branch(start) - start)
    expected = moved.norm(dim=1) / (start.norm(dim=1) + (start + moved).norm(dim=1))
    np.testing.assert_allclose(found.change[:, 0], expected, rtol=1e-9)
    for each in model.units:
        each.shortcut.gate_bias.fill_(-1e9)
    assert not routing_of(walk_of(model), [(x, labels)], 10).change.any()


def test_an_interval_holds_the_mean_of_normal_samples_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(size=(200, 50))
    found = [interval(np.mean, each, resamples=200) for each in samples]
    assert np.mean([low < 0 < high for _, low, high in found]) == pytest.approx(0.95, abs=0.05)
