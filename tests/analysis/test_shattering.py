"""Shattered gradients: against finite differences, closed forms, the theory, and a reference run's bands."""

import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from deepnets.analysis import shattering
from deepnets.analysis.shattering import THEORY, Net, autocorrelation, line_gradients
from deepnets.errors import UserError
from tests.analyzing import analyze
from tests.networks import small_batch, small_network

LAGS = [1, 2, 5, 10, 15]
# 10 draws each of a reference run; its own noise is part of the tolerance of 0.1.
BANDS = {
    Net("one_layer"): [0.97, 0.95, 0.87, 0.75, 0.64],
    Net("one_layer_literal"): [0.94, 0.90, 0.84, 0.75, 0.69],
    Net("feedforward", 2): [0.97, 0.93, 0.83, 0.67, 0.53],
    Net("feedforward", 4): [0.95, 0.90, 0.76, 0.57, 0.43],
    Net("feedforward", 10): [0.77, 0.60, 0.25, -0.01, -0.05],
    Net("feedforward", 24): [-0.02, -0.02, 0.00, 0.00, 0.01],
    Net("feedforward", 50): [0.00, -0.01, -0.01, 0.01, 0.00],
    Net("feedforward_uncentred", 24): [0.90, 0.88, 0.86, 0.82, 0.77],
    Net("resnet", 10, 1.0): [0.88, 0.78, 0.54, 0.31, 0.15],
    Net("resnet", 24, 1.0): [0.81, 0.64, 0.35, 0.12, 0.03],
    Net("resnet", 50, 1.0): [0.72, 0.53, 0.22, 0.02, 0.00],
    Net("resnet", 10, 0.1): [0.95, 0.89, 0.78, 0.60, 0.48],
    Net("resnet", 24, 0.1): [0.93, 0.87, 0.72, 0.59, 0.46],
    Net("resnet", 50, 0.1): [0.89, 0.79, 0.58, 0.38, 0.24],
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def curve(net: Net) -> np.ndarray:
    draws = 300 if net.depth < 5 else 40 if net.depth < 50 else 20  # shallow nets differ most, and cost least
    return autocorrelation(shattering.gradients(net, shattering.grid(), draws, generator())[..., 0], 15).mean(0)


@pytest.mark.parametrize("net", BANDS, ids=lambda net: f"{net.kind}-{net.depth}-{net.beta:g}")
def test_autocorrelations_lie_in_the_bands_of_the_reference_run(net: Net) -> None:
    np.testing.assert_allclose(curve(net)[LAGS], BANDS[net], atol=0.1)


def test_the_literal_bias_puts_all_kinks_in_the_middle_of_the_grid() -> None:
    """Its standard deviation is 200^-1/2 = 0.071: beyond 0.4 the gradient is constant on either side."""
    outside, kinked = shattering.grid()[1:, 0].abs().numpy() > 0.4, {}
    for kind in ("one_layer", "one_layer_literal"):
        changes = np.diff(shattering.gradients(Net(kind), shattering.grid(), 50, generator())[..., 0], axis=1) != 0
        kinked[kind] = [changes[:, outside].mean(), changes[:, 120:135].mean()]
    assert kinked["one_layer_literal"][0] == 0
    assert min(kinked["one_layer_literal"][1], *kinked["one_layer"]) > 0.2


def test_depth_shatters_gradients_of_feedforward_nets_and_small_branches_keep_those_of_resnets() -> None:
    assert curve(Net("feedforward", 24))[1] < 0.1 < 0.7 < curve(Net("resnet", 24, 1.0))[1]
    assert curve(Net("resnet", 24, 1.0))[1] < 0.9 < curve(Net("resnet", 24, 0.1))[1]


@pytest.mark.parametrize("depth", [1, 6, 40])
def test_a_looks_linear_net_has_one_gradient_everywhere(depth: int) -> None:
    g = shattering.gradients(Net("looks_linear", depth), shattering.grid(), 3, generator())
    assert np.abs(g).min() > 1e-3
    assert np.ptp(g, axis=1).max() < 1e-5 * np.abs(g).max()
    assert autocorrelation(g[..., 0], 3) == pytest.approx(1)


@pytest.mark.parametrize("net", [Net("one_layer"), Net("feedforward_uncentred", 3), Net("looks_linear", 3)])
def test_gradients_are_differences_of_outputs(net: Net) -> None:
    x = torch.tensor([[-1.1], [0.37], [1.9]], dtype=torch.float32)
    step = 1e-3
    ends = [shattering._output(net, (x + side).expand(2, 3, 1), generator(4)) for side in (-step, step)]
    slope = (ends[1] - ends[0]) / (2 * step)
    g = shattering.gradients(net, x, 2, generator(4))[..., 0]
    np.testing.assert_allclose(g, slope, atol=0.02 * np.abs(g).max())


def test_statistics_are_constants_of_the_derivative() -> None:
    """Moving one input moves its own output; through means and variances it would move those of all others."""
    x = torch.linspace(-2, 2, 8)[:, None].expand(1, 8, 1).clone().requires_grad_()
    for net in (Net("feedforward", 3), Net("resnet", 3), Net("resnet_centred", 3)):
        outputs = shattering._output(net, x, generator(1))
        (alone,) = torch.autograd.grad(outputs[0, 2], x)
        assert alone[0, 2].abs() > 1e-3
        assert alone.abs().sum() == alone[0, 2].abs()


@pytest.mark.parametrize(
    ("net", "relative"),
    [
        (Net("feedforward", 2), 0.1),
        (Net("feedforward", 4), 0.15),
        (Net("resnet_centred", 2), 0.05),
        (Net("resnet_centred", 6), 0.15),
        (Net("resnet", 2, 1.0), 0.05),
        (Net("resnet", 4, 1.0), 0.15),
        (Net("resnet", 10, 0.1), 0.02),
        (Net("resnet", 24, 0.1), 0.03),
    ],
    ids=lambda value: f"{value.kind}-{value.depth}-{value.beta:g}" if isinstance(value, Net) else "",
)
def test_correlations_at_far_inputs_are_those_of_the_theory(net: Net, relative: float) -> None:
    far = shattering.far_inputs(256, generator())
    found = shattering.moments(shattering.gradients(net, far, 10, generator(1)))
    assert found.correlation == pytest.approx(THEORY[net.kind](net.depth, net.beta).correlation, rel=relative)


def test_moments_of_a_deep_normalised_net_are_those_without_the_rectified_mean() -> None:
    """Variance and covariance apart, at a depth where the paper's v_l is half of what is measured."""
    far = shattering.far_inputs(64, generator())
    shallow = shattering.moments(shattering.gradients(Net("feedforward", 4), far, 40, generator(1)))
    assert shallow.variance == pytest.approx(THEORY["feedforward"](4, 1.0).variance, rel=0.1)
    net, theory = Net("resnet", 24, 1.0), THEORY["resnet"](24, 1.0)
    found = shattering.moments(shattering.gradients(net, shattering.far_inputs(256, generator()), 40, generator(1)))
    assert found.variance == pytest.approx(theory.variance, rel=0.25)
    assert found.covariance == pytest.approx(theory.covariance, rel=0.25)
    assert found.correlation == pytest.approx(theory.correlation, rel=0.12)


def test_the_theory_by_its_values() -> None:
    assert [THEORY["feedforward"](depth, 1.0).correlation for depth in (2, 10)] == pytest.approx(
        [0.25, 9.8e-4], rel=5e-3
    )
    assert [THEORY["resnet_centred"](depth, 1.0).correlation for depth in (2, 10, 50)] == pytest.approx(
        [0.5625, 0.0563, 5.7e-7], rel=1e-2
    )
    exact = {(2, 1.0): 0.750, (10, 1.0): 0.293, (24, 1.0): 0.161, (50, 1.0): 0.0955}
    exact |= {(2, 0.1): 0.995, (10, 0.1): 0.957, (24, 0.1): 0.899, (50, 0.1): 0.810}
    for (depth, beta), value in exact.items():
        assert THEORY["resnet"](depth, beta).correlation == pytest.approx(value, abs=6e-4)
    assert THEORY["resnet"](24, 1.0).variance == pytest.approx(51.9, abs=0.05)


def test_correlation_by_pairs() -> None:
    g = np.random.default_rng(0).normal(size=(2, 4, 3))
    pairs = [g[draw, i] @ g[draw, j] for draw in range(2) for i in range(4) for j in range(4) if i != j]
    assert shattering.moments(g).correlation == pytest.approx(np.mean(pairs) / np.mean((g**2).sum(2)))


def test_autocorrelation_of_white_noise_has_its_exact_mean() -> None:
    found = autocorrelation(shattering.white_noise(4000, generator(), 64), 15).mean(0)
    lags = np.arange(1, 16)
    np.testing.assert_allclose(found[1:], -(64 - lags) / (64 * 63), atol=0.006)  # of any exchangeable sequence
    assert found[0] == pytest.approx(1)


def test_autocorrelation_of_brown_noise_falls_as_its_covariance_says() -> None:
    steps = 256
    noise = shattering.brown_noise(4000, generator(), steps).astype(np.float64)
    assert noise[:, -1].var() == pytest.approx(1, rel=0.1)
    centre = np.eye(steps) - 1 / steps
    covariance = centre @ np.minimum.outer(np.arange(1, steps + 1), np.arange(1, steps + 1)) @ centre
    theory = [np.trace(covariance, lag) / np.trace(covariance) for lag in range(16)]
    weights = ((noise - noise.mean(1, keepdims=True)) ** 2).sum(1)
    found = autocorrelation(noise, 15)
    np.testing.assert_allclose(np.average(found, axis=0, weights=weights), theory, atol=0.02)
    np.testing.assert_allclose(found.mean(0)[LAGS], [0.96, 0.93, 0.84, 0.72, 0.61], atol=0.1)


def test_a_covariance_picture_is_the_outer_product_of_one_draw() -> None:
    g = np.array([1.0, 2.0, 6.0])
    picture = shattering.covariance_picture(g)
    assert picture[0, 2] == pytest.approx(2 * 3 / (14 / 3))
    assert np.trace(picture) == pytest.approx(3)
    assert np.linalg.matrix_rank(picture) == 1


@pytest.mark.slow
def test_the_command_writes_curves_and_figures_and_tells_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--depths", "2,6", "--draws", "2", "--feedforward-depth", "3", "--resnet-depth", "3"]
    assert analyze("shattering", *options, "--output", tmp_path) == 0
    assert "feed-forward 0." in capsys.readouterr().out
    for name in ("gradients", "autocorrelation", "correlation"):
        assert {file.suffix for file in tmp_path.glob(f"shattering_{name}.*")} == {".csv", ".png", ".svg"}
    with (tmp_path / "shattering_correlation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["correlation_theory"]) for row in rows if row["net"] == "feedforward"] == pytest.approx(
        [1 / 4, 1 / 64]
    )
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("words", ["--depths 0", "--depths two", "--draws 1"])
def test_the_command_refuses_what_makes_no_curve(words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--depths .* at least 1 with|--draws 1: must be at least 2"):
        analyze("shattering", "--output", tmp_path / "new", *words.split())
    assert not (tmp_path / "new").exists()


def test_the_gradient_on_a_line_between_images_is_the_slope_of_a_logit() -> None:
    model, (x, _) = small_network("model.depth=8"), small_batch(2)
    found = line_gradients(model, x[0], x[1], 3, 9)
    for index in range(9):
        ends = [torch.lerp(x[:1], x[1:], index / 8 + step) for step in (-1e-6, 1e-6)]
        slope = (model(ends[1]) - model(ends[0]))[0, 3] / 2e-6
        assert found[index] == pytest.approx(slope.item(), rel=1e-4)


def test_a_linear_net_has_one_gradient_on_the_whole_line_and_any_net_has_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["model=plain_fc10", "model.layer=[linear]", "--draws", 2, "--output", tmp_path / "linear"]
    assert analyze("shattering", *options) == 0
    (finding,) = json.loads((tmp_path / "linear" / "shattering.json").read_text())["findings"]
    assert finding["autocorrelation"] == pytest.approx([1] * 16)
    assert finding["brown"] > 0.8 > finding["white"]
    assert analyze("shattering", "model.depth=8", "--draws", 2, "--output", tmp_path / "resnet") == 0
    assert {file.suffix for file in (tmp_path / "resnet").glob("shattering_line.*")} == {".csv", ".png", ".svg"}
    assert "autocorrelation of the gradient at lag 1 of 256 points between two images" in capsys.readouterr().out
