"""Gradients, signals and responses: against autograd by hand, finite differences and closed forms."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis import gradients
from deepnets.analysis.gradients import clipped, first_to_last, gradient_norms, responses, signals
from deepnets.analysis.walk import walk_of, with_batch_statistics
from deepnets.errors import UserError
from tests.analyzing import analyze
from tests.networks import small_batch, small_network

GATE_6 = 1 / (1 + np.exp(6.0))  # sigmoid(-6)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def outputs_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What each unit puts out in a plain call of the model."""
    found: list[Tensor] = []
    hooks = [unit.register_forward_hook(lambda _, __, output: found.append(output)) for unit in model.units]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("ordering", ["original", "full_preactivation", "bn_after_addition"])
def test_a_norm_is_how_the_loss_answers_to_a_push_at_the_output_of_a_unit(ordering: str) -> None:
    model, (x, labels) = small_network("model.depth=8", f"model/ordering={ordering}"), small_batch(3)
    walk = walk_of(model)
    state = outputs_of(model, x)[1]
    differences = torch.zeros_like(state).flatten(1)
    for place in range(differences.shape[1]):
        for sign in (1, -1):
            pushed = state.flatten(1).clone()
            pushed[:, place] += sign * 1e-5
            y = walk.units[2](walk.before[2](pushed.view_as(state)))
            differences[:, place] += sign * cross_entropy(walk.end(y), labels, reduction="none")
    by_hand = (differences / 2e-5).norm(dim=1).mean()
    assert gradient_norms(walk, x, labels)[1] == pytest.approx(by_hand.item(), rel=1e-4)


def test_norms_are_per_image_and_do_not_grow_with_the_batch() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=14")), small_batch(6)
    single = [gradient_norms(walk, x[i : i + 1], labels[i : i + 1]) for i in range(6)]
    np.testing.assert_allclose(gradient_norms(walk, x, labels), np.mean(single, axis=0), rtol=1e-9)


def test_the_ratio_of_first_to_last() -> None:
    assert first_to_last(np.array([3.0, 1.0, 1.5])) == 2
    assert np.isnan(first_to_last(np.array([1.0, 0.0])))


@pytest.mark.parametrize(
    ("shortcut", "product"),
    [
        ("identity", 1.0),
        ("scaled_0.5_1", 0.5**54),
        ("scaled_0.5_0.5", 0.5**54),
        ("none", 0.0),
        ("dropout", 0.5**54),
        ("dropout_inverted", 1.0),
    ],
)
def test_the_product_of_54_constant_shortcuts_is_its_formula(shortcut: str, product: float) -> None:
    walk = walk_of(small_network("model.depth=110", "model.widths=[2,2,2]", f"model/shortcut={shortcut}"))
    found = gradients.shortcut_factors(walk, small_batch(2)[0], generator())
    assert np.prod(found) == pytest.approx(product, rel=1e-6)
    assert np.prod(gradients.shortcut_formula(walk)) == pytest.approx(product, rel=1e-12)
    if product == 0.5**54:
        assert np.prod(found) == pytest.approx(5.5511e-17, rel=1e-4)


def test_stages_that_change_the_shape_count_as_their_scale_alone() -> None:
    options = ["model.depth=8", "model.widths=[2,4,6]", "model/shortcut=scaled_0.5_1"]
    for resize in ("zero_padding", "projection", "average_pooling"):
        walk = walk_of(small_network(*options, f"model.resize={resize}"))
        np.testing.assert_allclose(gradients.shortcut_factors(walk, small_batch(2)[0], generator()), 0.5, rtol=1e-9)


def test_gates_let_through_what_the_bias_says_but_for_how_they_turn_with_x() -> None:
    walk = walk_of(small_network("model.depth=110", "model.widths=[2,2,2]", "model/shortcut=exclusive_gating_b6"))
    assert np.prod(gradients.shortcut_formula(walk)) == pytest.approx(0.87486, abs=1e-5)
    for unit in walk.units:
        unit.shortcut.gate[0].weight.zero_()
    found = gradients.shortcut_factors(walk, small_batch(2)[0], generator())
    np.testing.assert_allclose(found, 1 - GATE_6, rtol=1e-9)
    for unit in walk.units:
        unit.shortcut.gate[0].weight.fill_(1.0)
    turned = gradients.shortcut_factors(walk, small_batch(2)[0], generator())
    assert np.abs(turned - (1 - GATE_6)).max() > 1e-3


def test_a_learned_projection_has_no_formula_but_a_factor() -> None:
    walk = walk_of(small_network("model.depth=8", "model/shortcut=projection", "model/ordering=full_preactivation"))
    assert np.isnan(gradients.shortcut_formula(walk)).all()
    for unit in walk.units[:1]:
        unit.shortcut.projection[0].weight.copy_(3 * torch.eye(4)[:, :, None, None])
    assert gradients.shortcut_factors(walk, small_batch(2)[0], generator())[0] == pytest.approx(3)


@pytest.mark.parametrize("ordering", ["original", "full_preactivation", "bn_after_addition"])
def test_the_way_past_all_branches_is_the_gradient_with_branches_held_constant(ordering: str) -> None:
    """By finite differences of all units, their branches' outputs fixed, on a net of one stage that keeps its shape."""
    walk = walk_of(
        small_network("model.depth=8", "model.widths=[2]", "model.stem_width=2", f"model/ordering={ordering}")
    )
    x = small_batch(1)[0]
    states = walk.inputs(x)[:-1]
    r = [unit.branch(unit.before(state)) for unit, state in zip(walk.units, states, strict=True)]

    def way(x: torch.Tensor) -> torch.Tensor:
        for unit, constant in zip(walk.units, r, strict=True):
            x = unit.after(unit.shortcut(unit.before(x), constant))
        return x

    start = states[0]
    v = torch.randn(way(start).shape, generator=generator(), dtype=x.dtype)
    pulled = torch.zeros_like(start)
    for index in range(start.numel()):
        step = torch.zeros_like(start)
        step.view(-1)[index] = 1e-7
        pulled.view(-1)[index] = ((way(start + step) - way(start - step)) / 2e-7 * v).sum()
    found = np.prod(gradients.bypass_factors(walk, x, generator()))
    assert found == pytest.approx((pulled.norm() / v.norm()).item(), rel=1e-5)


def past_branch(unit: nn.Module, x: Tensor) -> Tensor:
    """The unit's output, of which autograd sees h alone."""
    split = unit.before(x)
    h = unit.shortcut(split, split.new_zeros(()))
    return unit.after(h + (unit.shortcut(split, unit.branch(split)) - h).detach())


@pytest.mark.parametrize(
    ("ordering", "shortcut"),
    [("original", "identity"), ("full_preactivation", "identity"), ("original", "exclusive_gating_b0")],
)
def test_the_way_past_all_branches_is_what_autograd_finds_with_branches_detached(ordering: str, shortcut: str) -> None:
    """Over changes of shape too: factors are over what these alone leave, here zero padding at stride 2."""
    options = [f"model/ordering={ordering}", f"model/shortcut={shortcut}", "model.resize=zero_padding"]
    model = with_batch_statistics(small_network("model.depth=14", *options))
    walk, x = walk_of(model), small_batch(4)[0]
    state = start = walk.inputs(x)[0].requires_grad_()
    for unit, before in zip(walk.units, [lambda x: x, *walk.before[1:]], strict=True):
        state = past_branch(unit, before(state))
    v = torch.randn(state.shape, generator=generator(), dtype=x.dtype)
    (pulled,) = torch.autograd.grad(state, start, v, retain_graph=True)
    found, gradient = gradients.bypass_factors(walk, x, generator()), v
    for unit, source, factor in reversed(list(zip(walk.units, walk.inputs(x)[:-1], found, strict=True))):
        shape, source = source.shape, source.detach().requires_grad_()
        with torch.enable_grad():
            (after,) = torch.autograd.grad(past_branch(unit, source), source, gradient)
            split = torch.zeros_like(unit.before(source)).requires_grad_()
            reference = torch.autograd.grad(unit.shortcut.resize(split), split, gradient)[0]
        assert factor == pytest.approx((after.norm() / reference.norm()).item(), rel=1e-9)
        gradient = after
        assert gradient.shape == shape
    torch.testing.assert_close(gradient, pulled)


@pytest.mark.parametrize("shortcut", ["identity", "exclusive_gating_b0"])
def test_a_branch_cancels_where_little_is_left_of_the_gradient_past_it(shortcut: str) -> None:
    """By autograd through the rest of the net, whole and with the branches detached."""
    walk = walk_of(small_network("model.depth=8", "model.widths=[4]", f"model/shortcut={shortcut}"))
    x, labels = small_batch(6)
    found = gradients.cancelled(walk, x, labels)
    for index, state in enumerate(walk.inputs(x)[:-1]):
        state.requires_grad_()
        whole = past = state
        for unit in walk.units[index:]:
            whole, past = unit(whole), past_branch(unit, past)
        gradient, first_term = (
            torch.autograd.grad(cross_entropy(walk.end(y), labels, reduction="sum"), state)[0] for y in (whole, past)
        )
        share = (gradient.abs() < 0.1 * first_term.abs())[first_term != 0].double().mean().item()
        assert found.values_all[index] == pytest.approx(share, abs=1e-9)
    assert found.values_all.max() > 0.01
    assert found.values[-1] == found.values_all[-1], "behind the last unit there is no other branch"
    assert found.images.tolist() == found.images_all.tolist() == [0, 0, 0]


class Against(nn.Module):
    """F(x) = -c x, with a c of its own for each image."""

    def __init__(self, c: list[float]) -> None:
        super().__init__()
        self.c = torch.tensor(c, dtype=torch.float64)[:, None, None, None]

    def forward(self, x: Tensor) -> Tensor:
        return -self.c * x


def test_a_branch_of_factor_minus_one_cancels_the_gradient_of_its_images_alone() -> None:
    model = small_network("model.depth=8", "model.widths=[4]", "model/ordering=full_preactivation")
    model.units[1].branch = Against([1.0, 0.95, 0.85, 1.15])
    x, labels = small_batch(4)
    found = gradients.cancelled(walk_of(model), x, labels)
    assert found.images.tolist() == [0, 0.5, 0]
    assert 0.2 < found.values[1] < 0.8
    model.units[1].branch = Against([0.999] * 4)
    found = gradients.cancelled(walk_of(model), x, labels)
    assert found.images.tolist() == [0, 1, 0]
    assert found.values[1] == 1
    assert found.images_all.tolist() == [1, 1, 0], "a gradient that one branch cancels reaches no earlier unit"


def test_a_plain_net_has_no_gradient_through_shortcuts_to_cancel() -> None:
    x, labels = small_batch(2)
    found = gradients.cancelled(walk_of(small_network("model.depth=8", "model/shortcut=none")), x, labels)
    assert all(np.isnan(shares).all() for shares in vars(found).values())
    assert np.isnan(list(found.most.values())).all()


def test_only_stage_openings_break_the_way_of_a_preactivated_net() -> None:
    walk = walk_of(with_batch_statistics(small_network("model.depth=26", "model/ordering=full_preactivation")))
    found = gradients.bypass_factors(walk, small_batch(8)[0], generator())
    openings = [stage != before for stage, before in zip(walk.stages, [-1, *walk.stages], strict=False)]
    assert np.flatnonzero(np.abs(found - 1) > 1e-6).tolist() == np.flatnonzero(openings).tolist()
    clipped = walk_of(with_batch_statistics(small_network("model.depth=26")))
    assert (gradients.bypass_factors(clipped, small_batch(8)[0], generator()) < 0.999).all()


def test_signals_are_those_of_the_outputs() -> None:
    model, (x, _) = small_network("model.depth=14", "model/ordering=full_preactivation"), small_batch()
    found = signals(walk_of(model), x)
    states = outputs_of(model, x)
    np.testing.assert_allclose(found.mean, [state.mean() for state in states], rtol=1e-9)
    np.testing.assert_allclose(found.deviation, [state.std(correction=0) for state in states], rtol=1e-9)
    np.testing.assert_allclose(found.negative, [(state < 0).double().mean() for state in states])
    np.testing.assert_allclose(found.low, [state.quantile(0.1) for state in states], rtol=1e-9)
    unit = model.units[1]
    np.testing.assert_allclose(found.shortcut[1], states[0].square().mean().sqrt(), rtol=1e-9)
    np.testing.assert_allclose(found.branch[1], unit.branch(states[0]).square().mean().sqrt(), rtol=1e-9)
    assert found.negative.min() > 0.1
    assert signals(walk_of(small_network("model.depth=14")), x).low.min() >= 0


@pytest.mark.parametrize("ordering", ["original", "bn_after_addition"])
def test_the_clipped_share_over_batches(ordering: str) -> None:
    model, (x, labels) = small_network("model.depth=8", f"model/ordering={ordering}"), small_batch()
    below, values = clipped(walk_of(model), zip(x.split(5), labels.split(5), strict=True))
    seen: list[Tensor] = []
    for unit in model.units:
        unit.after[-1].register_forward_hook(lambda _, given, __: seen.append(given[0]))
    model(x)
    assert below.tolist() == [(each < 0).sum() for each in seen]
    assert values.tolist() == [each.numel() for each in seen]
    assert 0 < (below / values).min() < (below / values).max() < 1


def test_a_net_that_clips_nothing_behind_additions_says_so() -> None:
    walk, (x, labels) = walk_of(small_network("model.depth=8", "model/ordering=full_preactivation")), small_batch(2)
    with pytest.raises(UserError, match=r"no ReLU follows an addition.*model/ordering=original"):
        clipped(walk, [(x, labels)])


def test_responses_stand_behind_batch_normalisation_and_in_front_of_relu_and_addition() -> None:
    model, (x, labels) = small_network("model.depth=8"), small_batch()
    found = responses(model, zip(x.split(5), labels.split(5), strict=True))
    assert len(found) == 7, "the stem and two layers in each of three units; neither head nor shortcuts"
    stem = model.stem[1](model.stem[0](x))
    branch = model.units[0].branch
    first = branch[1](branch[0](stem.relu()))
    second = branch[4](branch[3](first.relu()))
    for name, value in {"stem.0": stem, "stages.0.0.branch.0": first, "stages.0.0.branch.3": second}.items():
        assert found[name] == pytest.approx(value.std(correction=0).item(), rel=1e-9)


def test_responses_of_a_layer_without_batch_normalisation_behind_it_are_its_own() -> None:
    model, (x, labels) = small_network("model.depth=8", "model/ordering=full_preactivation"), small_batch()
    assert responses(model, [(x, labels)])["stem.0"] == pytest.approx(model.stem(x).std(correction=0).item())


@pytest.mark.parametrize("model", ["model=highway_fc10", "model=plain_fc10", "model=highway_a"])
def test_other_families_have_gradients_signals_and_responses(model: str) -> None:
    shape = (3, 32, 32) if model == "model=highway_a" else (1, 8, 8)
    net = small_network(model, *(["dataset=cifar10"] if shape[0] == 3 else []))
    walk, (x, labels) = walk_of(net), small_batch(2, shape)
    assert len(gradient_norms(walk, x, labels)) == len(walk) == len(signals(walk, x).mean)
    assert len(responses(net, [(x, labels)])) > len(walk)
    assert np.isfinite(gradients.shortcut_factors(walk, x, generator())).all()


@pytest.mark.slow
def test_the_command_measures_a_fresh_net_and_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["model.depth=8", "model.widths=[4,4,4]", "model/shortcut=scaled_0.5_1"]
    options += ["--images", "16", "--test-images", "16", "--sizes", "1,2", "--draws", "1", "--epochs", "1"]
    options += ["--orderings", "original,full_preactivation"]
    assert analyze("gradients", *options, "--output", tmp_path) == 0
    told = capsys.readouterr().out
    assert "product of 3 shortcuts 0.125 at initialisation (formula 0.125)" in told
    for name in ("units", "responses", "depth", "training"):
        assert {file.suffix for file in tmp_path.glob(f"gradients_{name}.*")} == {".csv", ".png", ".svg"}
    with (tmp_path / "gradients_units.csv").open() as file:
        first, *_ = rows = list(csv.DictReader(file))
    assert [row["unit"] for row in rows] == ["1", "2", "3"]
    most = 100 * max(float(row["cancelled_values"]) for row in rows)
    assert f"to less than 0.1 of it, in at most {most:.2g}% of coordinates and 0% of images at initialisation" in told
    shares = [100 * float(row["clipped_share"]) for row in rows]
    weighted = np.average(shares, weights=[16, 4, 1])  # pixels quarter from stage to stage
    assert abs(weighted - np.mean(shares)) > 0.2, "the two means must differ for a test of which it is"
    assert f"clip {weighted:.1f}% of all values" in told
    with (tmp_path / "gradients_training.csv").open() as file:
        trained = list(csv.DictReader(file))
    assert [row["epoch"] for row in trained] == ["0"] * 3 + ["1"] * 3
    assert float(trained[0]["gradient_norm"]) == pytest.approx(float(first["gradient_norm"]), rel=1e-4)
    assert trained[0]["gradient_norm"] != trained[3]["gradient_norm"]


def test_what_stands_between_units_counts_for_none_and_a_concatenation_passes_all_of_x() -> None:
    x, _ = small_batch(4)
    gated = walk_of(small_network("model=highway_a"))
    for factors in (gradients.shortcut_factors, gradients.bypass_factors):
        found = factors(gated, x, generator())
        assert ((found > 0.2) & (found < 1.1)).all(), found
    walk = walk_of(small_network("model=densenet", "model.units=[2,2]"))
    np.testing.assert_allclose(gradients.shortcut_factors(walk, x, generator()), 1, rtol=1e-12)
    np.testing.assert_allclose(gradients.bypass_factors(walk, x, generator()), 1, rtol=1e-12)
