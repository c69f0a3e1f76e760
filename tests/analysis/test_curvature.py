"""Curvature: against Hessians that are known in closed form or small enough to compute."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from deepnets.analysis.commands.curvature import Hessian, largest_eigenvalues, trace_samples
from tests.analyzing import analyze
from tests.networks import small_batch, small_network


def test_the_hessian_of_softmax_regression_is_its_closed_form() -> None:
    """The mean over images of (diag(p) - p p') times x x', as a Kronecker product."""
    torch.manual_seed(0)
    x, labels = torch.randn(20, 3, dtype=torch.float64), torch.randint(4, (20,))
    model = nn.Linear(3, 4, bias=False).double()
    p = model(x).softmax(1).detach()
    known = sum(
        torch.kron(torch.diag(own) - torch.outer(own, own), torch.outer(image, image))
        for own, image in zip(p, x, strict=True)
    ) / len(x)
    found = Hessian(model, list(zip(x.split(7), labels.split(7), strict=True)))
    v = torch.randn(12, dtype=torch.float64)
    torch.testing.assert_close(found @ v, known @ v)
    values = torch.linalg.eigvalsh(known).flip(0).numpy()
    np.testing.assert_allclose(largest_eigenvalues(found, 3, 1e-8, seed=0), values[:3], rtol=1e-6)
    estimates = trace_samples(found, range(100))
    deviation = np.std(estimates, ddof=1) / 10
    assert np.mean(estimates) == pytest.approx(values.sum(), abs=4 * deviation)
    assert deviation < 0.2 * values.sum()


def test_eigenvalues_of_a_residual_net_are_those_of_its_whole_hessian() -> None:
    model, (x, labels) = small_network("model.depth=8", "model.widths=[2,2,2]"), small_batch(6)
    names = [name for name, _ in model.named_parameters()]
    shapes = [weight.shape for _, weight in model.named_parameters()]

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return cross_entropy(functional_call(model, weights, x), labels)

    whole = hessian(loss)(parameters_to_vector(model.parameters()))
    expected = torch.linalg.eigvalsh(whole).flip(0)[:2].detach().numpy()
    found = largest_eigenvalues(Hessian(model, [(x, labels)]), 2, 1e-8, seed=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_attention_has_a_hessian() -> None:
    model, batch = small_network("model=vit_digits", "model.depth=2").float(), small_batch(2)
    (found,) = trace_samples(Hessian(model, [(batch[0].float(), batch[1])]), [0])
    assert np.isfinite(found)


def test_the_command_measures_a_net(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["model.depth=8", "model.widths=[2,2,2]", "--images", 32, "--eigenvalues", 2, "--draws", 2]
    assert analyze("curvature", *options, "--output", tmp_path) == 0
    (finding,) = json.loads((tmp_path / "curvature.json").read_text())["findings"]
    assert finding["eigenvalues"][0] > finding["eigenvalues"][1] > 0
    assert f"{finding['eigenvalues'][0]:.4g}" in capsys.readouterr().out
    suffixes = {file.suffix for file in tmp_path.glob("curvature_spectrum.*")}
    assert suffixes == {".csv", ".png", ".svg"}
    assert not (tmp_path / "curvature.partial").exists()
