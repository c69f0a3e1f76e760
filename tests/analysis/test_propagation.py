"""Signal propagation: channel statistics by hand, Jacobians that are known, mean-field theory and wide random nets."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deepnets.analysis.propagation import (
    Moments,
    activated,
    critical_weight_variance,
    mean_squared_slope,
    moments_of,
    propagation,
    singular_values,
    theory_of,
    weighted,
)
from deepnets.analysis.walk import walk_of
from deepnets.errors import UserError
from tests.analyzing import analyze
from tests.networks import small_batch, small_network


def test_channel_statistics_are_those_of_the_outputs() -> None:
    walk, (x, _) = walk_of(small_network("model.depth=14", "model/ordering=full_preactivation")), small_batch(5)
    found = propagation(walk, x)
    outputs = [*walk.inputs(x)[1:-1], None]
    for index, output in enumerate(outputs[:-1]):
        mean, deviation = output.mean((0, 2, 3)), output.std((0, 2, 3), correction=0)
        assert found.squared_mean[index] == pytest.approx((mean**2).mean().item())
        assert found.variance[index] == pytest.approx((deviation**2).mean().item())
    unit, state = walk.units[1], walk.inputs(x)[1]
    assert found.branch_variance[1] == pytest.approx(unit.branch(state).var((0, 2, 3), correction=0).mean().item())
    pairs = [(output[i] * output[j]).mean() for output in outputs[:1] for i in range(5) for j in range(i)]
    assert found.moments[0].product == pytest.approx(torch.stack(pairs).mean().item())
    assert found.start == moments_of(walk.inputs(x)[0])


def test_a_transformers_channels_are_those_of_its_tokens() -> None:
    walk, (x, _) = walk_of(small_network("model=vit_digits", "model.depth=2")), small_batch(5)
    with pytest.raises(UserError, match=r"--jacobian 10: .* more values for every crop that the net takes"):
        singular_values(walk, x[:1], 10)
    output = walk.units[0](walk.inputs(x)[0])
    assert propagation(walk, x).variance[0] == pytest.approx(output.var((0, 1), correction=0).mean().item())


def test_variance_grows_by_one_branch_a_unit_and_starts_again_at_each_stage() -> None:
    """Brock et al. 2021, Fig. 1: the normalised branch adds the same variance in each unit of pre-activated nets."""
    options = ["model.depth=38", "model.widths=[16,16,16]", "model/ordering=full_preactivation"]
    model = small_network(*options, "model.initialization=he_fan_in")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            module.reset_running_stats()
            module.train()
    found = propagation(walk_of(model), small_batch(64)[0])
    first = found.variance[:6]
    steps = np.diff(first)
    assert (steps > 0).all()
    np.testing.assert_allclose(steps, found.branch_variance[1:6], rtol=0.35)


def test_orthogonal_layers_are_an_isometry_and_others_are_the_product_of_their_matrices() -> None:
    options = ["model=plain_fc10", "model.depth=9", "model.width=64", "model.layer=[linear]"]
    walk = walk_of(small_network(*options, "model.initialization=looks_linear"))
    x = small_batch(1)[0]
    np.testing.assert_allclose(singular_values(walk, x, 64)[0], 1, rtol=1e-5)
    walk = walk_of(small_network(*options))
    product = torch.eye(64, dtype=torch.float64)
    for unit in walk.units:
        product = unit.branch[0].weight @ product
    expected = torch.linalg.svdvals(product)
    np.testing.assert_allclose(singular_values(walk, x, 64)[0], expected, rtol=1e-8, atol=1e-12)
    with pytest.raises(UserError, match="--jacobian 10: the last unit's output has more values"):
        singular_values(walk, x, 10)


def test_the_jacobian_of_a_net_is_what_autograd_finds_and_images_are_cropped_to_size() -> None:
    walk, (x, _) = walk_of(small_network("model.depth=8")), small_batch(1)
    values, size = singular_values(walk, x, 20)
    assert size == 8
    start = walk.inputs(x)[0]

    def units(state: torch.Tensor) -> torch.Tensor:
        for unit in walk.units:
            state = unit(state)
        return state

    jacobian = torch.autograd.functional.jacobian(units, start).reshape(4 * 2 * 2, 4 * 8 * 8)
    np.testing.assert_allclose(values, torch.linalg.svdvals(jacobian), rtol=1e-9)
    values, size = singular_values(walk, x, 15)
    assert (len(values), size) == (4, 4)


@pytest.mark.parametrize(
    "net", [["model.depth=8"], ["model=plain_fc10", "model.width=20", "model.layer=[linear,tanh]"]]
)
def test_the_command_measures_a_net(net: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze("propagation", *net, "--images", 16, "--jacobian", 64, "--output", tmp_path) == 0
    with (tmp_path / "propagation_units.csv").open() as file:
        rows = list(csv.DictReader(file))
    findings = json.loads((tmp_path / "propagation.json").read_text())["findings"]
    plain = "plain" in net[0]
    assert [each["correlation"][-1] for each in findings[:1]] == [
        pytest.approx(float(rows[-1]["correlation"]), rel=1e-5)
    ]
    assert ("correlation_theory" in rows[0]) is plain
    assert len(findings) == 2 + plain
    told = capsys.readouterr().out
    assert "singular values of the units' Jacobian" in told
    assert ("by mean-field theory each unit multiplies a perturbation's square by" in told) is plain
    assert {file.suffix for file in tmp_path.glob("propagation_units.*")} == {".csv", ".png", ".svg"}


@pytest.mark.parametrize(("weights", "biases"), [(1.1154, 2.369e-4), (1.01971, 1.258e-6), (1.05, 2.01e-5)])
def test_the_critical_pairs_of_tanh(weights: float, biases: float) -> None:
    assert critical_weight_variance(nn.Tanh, biases) == pytest.approx(weights, rel=2e-4)


def test_without_biases_tanh_is_critical_at_1_and_relu_at_2() -> None:
    assert critical_weight_variance(nn.Tanh, 0.0) == 1
    assert critical_weight_variance(nn.Tanh, 1e-12) == pytest.approx(1, abs=1e-3)
    assert critical_weight_variance(nn.ReLU, 0.0) * mean_squared_slope(nn.ReLU, 3.0) == 1


@pytest.mark.parametrize("phi", [nn.ReLU, nn.Tanh])
def test_moments_are_those_of_gaussian_pairs(phi: type[nn.ReLU] | type[nn.Tanh]) -> None:
    rng = np.random.default_rng(0)
    first, other = rng.normal(size=(2, 1_000_000)) * 1.3
    second = 0.6 * first + 0.8 * other
    act = (lambda u: np.maximum(u, 0)) if phi is nn.ReLU else np.tanh
    found = activated(phi, Moments(1.3**2, 0.6 * 1.3**2))
    assert found.length == pytest.approx(np.mean(act(first) ** 2), rel=4e-3)
    assert found.product == pytest.approx(np.mean(act(first) * act(second)), rel=6e-3)
    derivative = first > 0 if phi is nn.ReLU else 1 - np.tanh(first) ** 2
    assert found.growth == pytest.approx(np.mean(derivative**2.0), rel=4e-3)


def test_equal_inputs_stay_equal_and_a_critical_relu_net_has_its_length_halved_by_the_last_relu() -> None:
    u = Moments(1.0, 1.0)
    for _ in range(30):
        u = weighted(activated(nn.ReLU, u), 2.0, 0.0)
    assert (u.length, u.correlation, u.growth) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("layer", ["[linear,tanh]", "[linear,relu]"])
def test_a_wide_random_net_follows_the_theory(layer: str) -> None:
    options = ["model=plain_fc10", "model.depth=6", "model.width=600"]
    walk = walk_of(small_network(*options, f"model.layer={layer}"))
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    states = walk.inputs(x + 0.5)
    theory = theory_of(walk, moments_of(states[0]))
    assert theory is not None
    found = moments_of(states[-2])
    assert found.length == pytest.approx(theory[-2].length, rel=0.1)
    assert found.correlation == pytest.approx(theory[-2].correlation, abs=0.03)


def test_residual_and_normalised_nets_are_not_covered() -> None:
    for options in (["model.depth=8"], ["model=highway_fc10"], ["model.depth=8", "model/shortcut=none"]):
        assert theory_of(walk_of(small_network(*options)), Moments(1.0, 0.5)) is None


def test_what_stands_between_units_or_scales_a_branch_counts() -> None:
    assert theory_of(walk_of(small_network("model=highway_a", "model/shortcut=none")), Moments(1.0, 0.5)) is None
    words = ["model=plain_fc10", "model.depth=3", "model.width=50"]
    whole, halved = (
        theory_of(walk_of(small_network(*words, f"model.shortcut.branch_scale={scale}")), Moments(1.0, 0.5))
        for scale in (1, 0.5)
    )
    assert halved[0].growth == pytest.approx(whole[0].growth / 4)
