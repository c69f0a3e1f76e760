"""Routing by gates: sparseness, selectivity and change against nets and arrays whose values are known."""

import numpy as np
import pytest
import torch

from deepnets.analysis.routing import interval, routing_of, sparseness
from deepnets.analysis.walk import walk_of
from tests.networks import small_batch, small_network

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
