"""What is measured and drawn of the units while a net trains."""

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.config.schema import Row
from deepnets.monitor.dashboard import (
    choices_of,
    first_filters,
    gate_activity,
    gradient_norms,
    pixels,
    profile,
    tiles,
    units_of,
)
from deepnets.run import build_model
from tests.command import row

SMALL = ["model.depth=8", "model.widths=[4,4,4]"]


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_gradient_norms_are_those_of_the_units_parameters(images: Tensor) -> None:
    model = build_model(["model.depth=14", "model.widths=[4,4,4]"])
    assert gradient_norms(model) == []
    loss = cross_entropy(model(images), torch.arange(6))
    loss.backward()
    expected = [math.sqrt(sum((p.grad**2).sum().item() for p in unit.parameters())) for unit in model.units]
    assert gradient_norms(model) == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == 6


def test_a_dropped_unit_has_gradient_zero(images: Tensor) -> None:
    model = build_model([*SMALL, "model/survival=uniform", "model.survival.probability=0.5"])
    torch.manual_seed(4)
    x = model.stem(images)
    for unit, b in zip(model.units, (1.0, 0.0, 1.0), strict=True):
        x = unit(x, b)
    x.square().mean().backward()
    first, second, third = gradient_norms(model)
    assert (first > 0, second, third > 0) == (True, 0.0, True)


def test_a_gate_that_sees_nothing_is_open_by_the_sigmoid_of_its_bias(images: Tensor) -> None:
    model = build_model([*SMALL, "model/shortcut=exclusive_gating_b6"])
    for unit in model.units:
        nn.init.zeros_(unit.shortcut.gate[-2].weight)
    assert gate_activity(model, images, torch.float32) == pytest.approx([1 / (1 + math.exp(6))] * 3, rel=1e-5)


def test_gate_activity_is_the_mean_of_g(images: Tensor) -> None:
    model = build_model(["model=highway_fc10", "dataset=digits", "model.width=7"]).eval()
    x, expected = model.stem(images.flatten(1)), []
    for unit in model.units:
        expected.append(unit.shortcut.gate(x).mean().item())
        x = unit(x)
    assert gate_activity(model, images, torch.float32) == pytest.approx(expected, rel=1e-5)
    assert len(expected) == 9
    assert np.ptp(expected) > 1e-3


def test_nets_without_gates_or_units_have_nothing_to_tell(images: Tensor) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    linear(images).sum().backward()
    assert (units_of(linear), gradient_norms(linear), gate_activity(linear, images, torch.float32)) == ([], [], [])
    assert gate_activity(build_model(SMALL), images, torch.float32) == []


def test_observing_leaves_no_trace(images: Tensor) -> None:
    model = build_model([*SMALL, "model/shortcut=exclusive_gating_b6", "model/survival=linear_decay"])
    model(images).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    random, hooks = torch.get_rng_state(), [len(m._forward_hooks) for m in model.modules()]
    for training in (False, True):
        model.train(training)
        gradient_norms(model)
        assert len(gate_activity(model, images, torch.bfloat16)) == 3
        assert all(module.training is training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(before, p.grad) for before, p in zip(gradients, model.parameters(), strict=True))
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_first_filters_are_the_weights_as_pictures() -> None:
    convolutional = build_model(["model=resnet20", "dataset=cifar10"])
    filters = first_filters(convolutional, (3, 32, 32))
    assert filters.shape == (16, 3, 3, 3)
    assert torch.equal(filters[5, 0, 2], convolutional.stem[0].weight[5, :, 0, 2])
    connected = build_model(["model=highway_fc10", "dataset=mnist"])
    filters = first_filters(connected, (1, 28, 28))
    assert filters.shape == (connected.head.in_features, 28, 28, 1)
    assert filters[2, 3, 4, 0] == connected.stem[0].weight[2, 3 * 28 + 4]
    assert first_filters(nn.Conv2d(2, 4, 3), (2, 8, 8)) is None
    assert first_filters(nn.Conv2d(3, 4, 1), (3, 8, 8)) is None
    assert first_filters(nn.ReLU(), (3, 8, 8)) is None


def test_a_profile_has_a_curve_for_each_observation_the_last_bold() -> None:
    figure = profile("title", [[1.0, 1.0, 1.0], [1.0, 0.1, 0.01]], ("epoch 1", "epoch 2"))
    first, last = figure.axes[0].get_lines()
    assert (list(last.get_xdata()), list(last.get_ydata())) == ([1, 2, 3], [1.0, 0.1, 0.01])
    assert last.get_linewidth() > first.get_linewidth()
    assert sum(to_rgb(last.get_color())) < sum(to_rgb(first.get_color()))
    assert [first.get_label(), last.get_label()] == ["epoch 1", "epoch 2"]
    assert (figure.axes[0].get_yscale(), figure.axes[0].get_ylim()) == ("log", (0.01, 10.0))


def test_a_profile_is_as_wide_as_tensorboard_shows_it() -> None:
    picture = pixels(profile("title", [[1.0, 0.1]], ("epoch 1", "epoch 1")))
    assert (picture.shape, picture.dtype) == ((230, 340, 3), np.uint8)
    assert picture.std() > 0


@pytest.mark.parametrize("gap", [0.0, math.nan, math.inf])
def test_a_profile_leaves_out_what_has_no_logarithm(gap: float) -> None:
    (line,) = profile("title", [[0.1, gap, 0.1]], ("epoch 1", "epoch 1")).axes[0].get_lines()
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]


def test_a_profile_of_600_units_and_of_nothing_but_zeros_can_be_drawn() -> None:
    many = profile("title", [[1e-9 * 1.05**unit for unit in range(600)]], ("a", "b"))
    assert pixels(many).std() > 0
    assert many.axes[0].get_lines()[0].get_marker() == ""
    assert pixels(profile("title", [[], [0.0]], ("a", "b"))).std() > 0


def test_tiles_scale_each_filter_to_its_largest_weight() -> None:
    filters = torch.tensor([[[0.0, 0.5], [-0.5, 0.25]], [[4.0, 0.0], [0.0, -2.0]]])[..., None]
    picture = tiles(filters)
    side = (picture.shape[1] - 3 * 4) // 2 // 2
    values = [
        [picture[4 + y * side, 4 + tile * (2 * side + 4) + x * side, 0] for y in (0, 1) for x in (0, 1)]
        for tile in (0, 1)
    ]
    assert values == [[127, 255, 0, 191], [255, 127, 127, 63]]


def columns(*overrides: str) -> dict[str, str | float | None]:
    found: Row = row("/nowhere", *overrides)
    return choices_of(found.config, {"choices": found.choices, "overrides": list(found.overrides)})


def test_a_table_has_its_axes_and_the_seed_as_columns() -> None:
    assert columns("sweep=digits_shortcuts", "model/shortcut=none", "seed=3", "epochs=2") == {
        "model/shortcut": "none",
        "seed": 3.0,
    }


def test_a_random_search_also_has_what_was_drawn() -> None:
    first, second = (columns("sweep=srivastava2015_fig1_highway", f"setting={n}", "model=highway_fc10") for n in (0, 1))
    assert {key: type(value) for key, value in first.items()} == {key: type(value) for key, value in second.items()}
    assert (first["setting"], second["setting"]) == (0.0, 1.0)
    for drawn in ("optimizer.lr", "optimizer.momentum", "schedule.final_factor", "model.shortcut.bias"):
        assert first[drawn] != second[drawn]
    assert first["model.layer"] in ("['linear', 'relu']", "['linear', 'tanh']")


def test_runs_outside_of_tables_have_what_was_typed_and_often_differs_as_columns() -> None:
    default, deeper = columns(), columns("model.depth=14", "model/shortcut=none", "optimizer.lr=0.05", "device=cpu")
    assert [*default] == ["model", "dataset", "model.depth", "optimizer.lr", "epochs", "batch_size", "seed"]
    changed = {key: value for key, value in deeper.items() if default.get(key) != value}
    assert changed == {"model.depth": 14.0, "model/shortcut": "none", "optimizer.lr": 0.05}
    assert columns("model.widths=[4,4,4]")["model.widths"] == "[4, 4, 4]"
