"""Gradients in one arithmetic beside another."""

import csv
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.analysis.commands.precision import _measured, agreement, parameter_gradients, perturbed
from deepnets.analysis.walk import walk_of, with_batch_statistics
from deepnets.errors import UserError
from tests.analyzing import analyze
from tests.networks import own_unit, small_batch, small_network

F32, BF16 = torch.float32, torch.bfloat16


def network() -> torch.nn.Module:
    return with_batch_statistics(small_network("model.depth=14").float()).requires_grad_(True)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x, labels = small_batch()
    return x.float(), labels


def test_gradients_are_compared_by_unit_and_in_whole() -> None:
    model, (x, labels) = network(), batch()
    reference = parameter_gradients(model, x, labels, F32)
    cross_entropy(model(x), labels).backward()
    for found, parameter in zip(reference, model.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)
    walk = walk_of(model)
    same = agreement(model, walk, reference, reference)
    np.testing.assert_allclose([*same.cosines, same.cosine], 1)
    assert same.difference == same.differences.max() == 0
    third = {id(parameter) for parameter in walk.units[2].parameters()}
    turned = [-g if id(p) in third else g for g, p in zip(reference, model.parameters(), strict=True)]
    other = agreement(model, walk, turned, reference)
    np.testing.assert_allclose(other.cosines, [1, 1, -1, 1, 1, 1])
    np.testing.assert_allclose(other.differences, [0, 0, 2, 0, 0, 0])
    squares = [(g**2).sum().item() for g in reference]
    share = sum(s for s, p in zip(squares, model.parameters(), strict=True) if id(p) in third) / sum(squares)
    assert other.cosine == pytest.approx(1 - 2 * share, rel=1e-4)


class InParts(nn.Sequential):
    """A network of one's own, which has no stem."""

    @property
    def parts(self) -> list[nn.Module]:
        return list(self)


def test_a_net_without_a_stem_has_no_float32_stream() -> None:
    model, x = InParts(own_unit(), nn.Flatten(), nn.Linear(64, 3)), torch.randn(4, 4, 4, 4)
    measured = _measured(model, x, torch.arange(4) % 3, Namespace(perturbation=0.01, seed=0))
    assert list(measured) == ["bfloat16", "float32, input changed by 0.01"]


@pytest.mark.parametrize("is_float32", [False, True])
def test_the_stream_is_float32_where_it_is_asked_for(is_float32: bool) -> None:
    model, (x, labels) = network(), batch()
    seen = []
    for unit in walk_of(model).units:
        unit.register_forward_hook(lambda module, given, output: seen.append((given[0].dtype, output.dtype)))
        unit.branch.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    gradients = parameter_gradients(model, x, labels, BF16, float32_stream=is_float32)
    stream = F32 if is_float32 else BF16
    assert seen == [BF16, (stream, stream)] * 6
    assert all(gradient.dtype == F32 for gradient in gradients)
    assert not model.stem._forward_hooks


def test_a_perturbation_has_its_share_of_the_norm() -> None:
    x, _ = batch()
    changed = perturbed(x, 1e-2, torch.Generator().manual_seed(0))
    assert ((changed - x).norm() / x.norm()).item() == pytest.approx(1e-2, rel=1e-3)


def test_the_command_writes_every_unit_and_the_whole(tmp_path: Path) -> None:
    words = ["model.depth=14", "model.widths=[4,4,4]", "--images", 32, "--device", "cpu", "--output", tmp_path]
    assert analyze("precision", *words) == 0
    rows = list(csv.DictReader((tmp_path / "precision_units.csv").open()))
    assert len(rows) == 6 * 3
    cosines = {
        name: [float(row["cosine"]) for row in rows if row["arithmetic"] == name]
        for name in {row["arithmetic"] for row in rows}
    }
    assert min(cosines["float32, input changed by 0.001"]) > 0.9
    assert 0.5 < min(cosines["bfloat16"]) < 1
    (finding,) = json.loads((tmp_path / "precision.json").read_text())["findings"]
    assert finding["bfloat16"][0] > 0.9
    assert (tmp_path / "precision_units.png").is_file()
    with pytest.raises(UserError, match=r"--perturbation 0\.0: must be above 0"):
        analyze("precision", *words, "--perturbation", 0)
