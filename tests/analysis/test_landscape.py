"""Loss surfaces: what filter normalisation is for, the ends of a line, and resuming."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.analysis.commands import landscape as command
from deepnets.analysis.commands.landscape import difference, nonconvexity, random_direction, score_at
from deepnets.analysis.walk import with_batch_statistics
from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.analyzing import analyze
from tests.command import row
from tests.networks import small_batch, small_network


def surface(model: nn.Module) -> list[float]:
    """Losses on a few points around a net."""
    weights, (x, labels) = dict(model.named_parameters()), small_batch(16)
    generator = torch.Generator().manual_seed(0)
    first, second = (random_direction(weights, generator) for _ in range(2))
    return [score_at(model, weights, [(a, first), (b, second)], x, labels)[0] for a in (-1, 0, 0.5) for b in (0, 1)]


def test_a_direction_has_the_norm_of_every_filter_and_none_of_biases_and_normalisation() -> None:
    weights = dict(small_network("model.depth=8").named_parameters())
    direction = random_direction(weights, torch.Generator().manual_seed(0))
    for name, weight in weights.items():
        if weight.dim() > 1:
            torch.testing.assert_close(direction[name].flatten(1).norm(dim=1), weight.flatten(1).norm(dim=1))
            assert not torch.allclose(direction[name], weight)
        else:
            assert not direction[name].any()


def test_the_scale_of_weights_that_are_normalised_behind_does_not_show() -> None:
    """Li et al. 2018, section 3: the reason for filter normalisation."""
    model = with_batch_statistics(small_network("model.depth=8"))
    before = surface(model)
    for name, weight in model.named_parameters():
        if weight.dim() == 4:
            weight.mul_(7.0 if "stem" in name else 0.2)
    np.testing.assert_allclose(surface(model), before, rtol=5e-2)


def test_a_point_is_the_net_with_its_weights_moved_and_the_net_is_left_as_it_was() -> None:
    model, (x, labels) = small_network("model=plain_fc10", "model.depth=3"), small_batch(16)
    weights = {name: weight.clone() for name, weight in model.named_parameters()}
    direction = random_direction(weights, torch.Generator().manual_seed(0))
    loss, error = score_at(model, dict(model.named_parameters()), [(0.3, direction)], x, labels)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.named_parameters())
    for name, weight in model.named_parameters():
        weight.add_(0.3 * direction[name])
    logits = model(x)
    assert loss == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-6)
    assert error == pytest.approx(100 * (logits.argmax(1) != labels).double().mean().item())


def test_a_line_leads_from_one_net_to_the_other_and_nets_of_other_shapes_have_none() -> None:
    models = [small_network("model=plain_fc10", f"seed={seed}") for seed in (0, 1)]
    start, end = (dict(model.named_parameters()) for model in models)
    x, labels = small_batch(16)
    found = score_at(models[0], start, [(1.0, difference(start, end))], x, labels)
    assert found == pytest.approx(score_at(models[1], end, [], x, labels))
    with pytest.raises(UserError, match="these two have different layers"):
        difference(start, dict(small_network("model=plain_fc10", "model.width=7").named_parameters()))


def test_a_bowl_is_convex_a_saddle_is_half_and_waves_are_not() -> None:
    x, y = np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 9))
    assert nonconvexity(x**2 + y**2) == 0
    assert nonconvexity(x**2 - y**2) == 0.5
    assert nonconvexity(-(x**2) - y**2) == 1


def test_the_command_resumes_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = ["model.depth=8", "model.widths=[4,4,4]", "precision=bf16"]
    words = ["landscape", *net, "--points", 3, "--images", 16, "--output", tmp_path]
    calls = []

    def killed(*given: object) -> tuple[float, float]:
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return score_at(*given)

    monkeypatch.setattr(command, "score_at", killed)
    with pytest.raises(KeyboardInterrupt):
        analyze(*words)
    with (tmp_path / "landscape.partial").open("a") as file:
        file.write('["half')
    assert analyze(*words) == 0
    assert len(calls) == 5 + 5
    with (tmp_path / "landscape_surface.csv").open() as file:
        resumed = list(csv.DictReader(file))
    assert [(row["x"], row["y"]) for row in resumed[:4]] == [("-1", "-1"), ("0", "-1"), ("1", "-1"), ("-1", "0")]
    (finding,) = json.loads((tmp_path / "landscape.json").read_text())["findings"]
    assert finding["centre"] == pytest.approx(float(resumed[4]["loss"]), rel=1e-5)
    model, weights, _, x, labels = calls[5][:5]
    assert finding["centre"] == pytest.approx(score_at(model, weights, [], x, labels)[0], rel=1e-6), "in float32"
    assert not (tmp_path / "landscape.partial").exists()
    analyze(*words)
    assert len(calls) == 10 + 9, "nothing is left of what has ended"
    with (tmp_path / "landscape_surface.csv").open() as file:
        assert list(csv.DictReader(file)) == resumed


def test_a_line_needs_two_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="joins two run folders, but 1 given"):
        analyze("landscape", "model.depth=8", "--line", "--output", tmp_path / "results")
    with pytest.raises(UserError, match="must be an odd number of at least 3"):
        analyze("landscape", "model.depth=8", "--points", 4, "--output", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_the_ends_of_a_line_are_the_nets_whatever_its_step(tmp_path: Path) -> None:
    folders = []
    for seed in range(2):
        folder = RunFolder(tmp_path / f"seed{seed}")
        folder.freeze(
            row(tmp_path, "model.depth=8", "model.widths=[4,4,4]", "epochs=1", f"seed={seed}").config, Origin()
        )
        run(folder)
        folders.append(folder.path)
    ends = []
    for points, reach in ((3, 1), (5, 2)):
        words = ("--line", "--points", points, "--range", reach, "--images", 50, "--device", "cpu")
        analyze("landscape", *folders, *words, "--output", tmp_path / f"{points}")
        (finding,) = json.loads((tmp_path / f"{points}" / "landscape.json").read_text())["findings"]
        ends.append(finding["ends"])
    with (tmp_path / "5" / "landscape_line.csv").open() as file:
        losses = {float(line["place"]): float(line["loss"]) for line in csv.DictReader(file)}
    assert ends[1] == pytest.approx([losses[0], losses[1]], rel=1e-5)
    assert ends[1] == pytest.approx(ends[0], rel=1e-6)
