"""Lesions: what is deleted, that shared beginnings change no number, and which units may change places."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis import lesion
from deepnets.analysis.lesion import Place, Scores, Variant
from deepnets.analysis.walk import Walk, walk_of
from deepnets.data import normalization
from deepnets.data.batches import EvaluationBatches
from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.models.shortcuts import Gated
from deepnets.models.unit import Unit
from deepnets.training.fit import Sums, evaluate
from tests.networks import small_batch, small_network

NETWORKS = [
    ("model.depth=14",),
    ("model.depth=14", "model/ordering=full_preactivation"),
    ("model.depth=14", "model/ordering=bn_after_addition", "model/shortcut=projection"),
    ("model.depth=14", "model/shortcut=shortcut_only_gating_b0"),
    ("model.depth=29", "model/shortcut=highway_b1", "model/block=bottleneck"),
    ("model.depth=14", "model/survival=linear_decay"),
    ("model.depth=14", "model/shortcut=none"),
    ("model=highway_fc10",),
]


def naive(walk: Walk, x: Tensor, labels: Tensor, variants: list[Variant]) -> Scores:
    """Each variant by an evaluation of its own."""
    errors, losses = [], []
    for variant in variants:
        state = x
        for position, place in enumerate(variant):
            state, unit = walk.before[position](state), walk.units[place.unit]
            state = lesion.without_branch(unit, state) if place.deleted else unit(state, walk.b[place.unit])
        logits = walk.end(state)
        errors.append(100 * (logits.argmax(1) != labels).double().mean().item())
        losses.append(cross_entropy(logits, labels).item())
    return Scores(np.array(errors), np.array(losses))


@pytest.mark.parametrize("overrides", NETWORKS, ids=" ".join)
def test_shared_beginnings_score_as_evaluations_one_by_one(overrides: tuple[str, ...]) -> None:
    walk, (x, labels) = walk_of(small_network(*overrides)), small_batch()
    generator, units = np.random.default_rng(0), lesion.deletable(walk_of(small_network(*overrides)), x)
    variants = [lesion.intact(walk), *(lesion.with_deleted(walk, [unit]) for unit in units)]
    variants += [lesion.random_deletions(walk, units, count, generator) for count in (2, 3, 3)]
    variants += [lesion.reordering(walk, lesion.swappable(walk, x), 2, generator) for _ in range(3)]
    found = lesion.scores(walk, zip(x.split(5), labels.split(5), strict=True), variants)
    one_by_one = naive(walk, x, labels, variants)
    assert found.error.tolist() == pytest.approx(one_by_one.error.tolist(), abs=1e-12)
    assert found.loss.tolist() == pytest.approx(one_by_one.loss.tolist(), rel=1e-9)
    assert len(set(found.loss.round(9).tolist())) > len(units) // 2, "the lesions must not all score alike"


@pytest.mark.parametrize("overrides", NETWORKS, ids=" ".join)
def test_the_walk_is_the_network(overrides: tuple[str, ...]) -> None:
    model, (x, labels) = small_network(*overrides), small_batch()
    walk = walk_of(model)
    assert torch.equal(walk.inputs(x)[-1], model(x))
    whole = lesion.scores(walk, [(x, labels)], [lesion.intact(walk)])
    assert whole.loss[0] == pytest.approx(cross_entropy(model(x), labels).item(), rel=1e-12)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_single_deletions_score_as_training_evaluates_the_net_without_a_branch(precision: torch.dtype) -> None:
    """In the same arithmetic the same logits bit by bit: only the means are rounded."""
    model = small_network("model.depth=14", "model/ordering=full_preactivation").float()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 8, 8, 1), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.randint(10, (60,), generator=generator))
    batches = EvaluationBatches(split, normalization.fit("channel", images), batch_size=25)
    walk = walk_of(model)
    found = lesion.scores(walk, batches, [lesion.with_deleted(walk, [unit]) for unit in range(len(walk))], precision)
    for unit in range(len(walk)):
        without = deepcopy(model)
        nn.init.zeros_(without.units[unit].branch[-1].weight)  # F = 0
        sums = Sums(torch.device("cpu"))
        for _ in evaluate(without, batches, sums, precision):
            pass
        expected = sums.mean()
        assert (found.error[unit], found.loss[unit]) == pytest.approx((expected.error, expected.loss), rel=1e-12)
    assert len(set(found.loss.tolist())) == len(walk)
    other = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}[precision]
    assert found.loss[0] != lesion.scores(walk, batches, [lesion.with_deleted(walk, [0])], other).loss[0]


def test_float32_logits_do_not_depend_on_how_images_are_batched() -> None:
    model, (x, labels) = small_network("model.depth=14").float(), small_batch(64)
    walk, x = walk_of(model), x.float()
    variants = [lesion.intact(walk), lesion.with_deleted(walk, [2])]
    whole, parts = (
        lesion.scores(walk, zip(x.split(size), labels.split(size), strict=True), variants) for size in (64, 16)
    )
    assert whole.error.tolist() == parts.error.tolist()


def computed_units(walk: Walk, variants: list[Variant]) -> Counter[Unit]:
    """How often `scores` evaluates the branch of each unit, on one batch."""
    calls: Counter[Unit] = Counter()
    handles = [
        unit.branch.register_forward_hook(lambda *_, unit=unit: calls.update([unit]))  # counts, changes nothing
        for unit in walk.units
    ]
    lesion.scores(walk, [small_batch()], variants)
    for handle in handles:
        handle.remove()
    return calls


def test_single_deletions_compute_a_unit_once_for_each_lesion_in_front_of_it() -> None:
    walk = walk_of(small_network("model.depth=14"))
    variants = [lesion.intact(walk), *(lesion.with_deleted(walk, [unit]) for unit in range(len(walk)))]
    calls = computed_units(walk, variants)
    assert [calls[unit] for unit in walk.units] == [1, 2, 3, 4, 5, 6]


def test_deleting_an_identity_unit_changes_nothing() -> None:
    model, (x, labels) = small_network("model.depth=14", "model/ordering=full_preactivation"), small_batch()
    walk = walk_of(model)
    nn.init.zeros_(walk.units[1].branch[-1].weight)  # F = 0
    found = lesion.scores(
        walk, [(x, labels)], [lesion.intact(walk), lesion.with_deleted(walk, [1]), lesion.with_deleted(walk, [2])]
    )
    assert found.loss[0] == found.loss[1] != found.loss[2]


def test_a_deleted_unit_keeps_its_shortcut_and_what_acts_behind_the_addition() -> None:
    walk, (x, _) = walk_of(small_network("model.depth=8")), small_batch()
    state = walk.inputs(x)[1]  # in front of the unit that opens stage 2
    expected = torch.nn.functional.pad(state[:, :, ::2, ::2], (0, 0, 0, 0, 0, 0)).relu()
    assert torch.equal(lesion.without_branch(walk.units[1], state), expected)


def test_exclusive_gates_are_forced_shut_so_that_the_layer_copies_its_input() -> None:
    model, (x, _) = small_network("model=highway_fc10"), small_batch()
    walk = walk_of(model)
    state = walk.inputs(x)[3]
    shut = lesion.without_branch(walk.units[3], state)
    gate = walk.units[3].shortcut
    assert isinstance(gate, Gated)
    nn.init.constant_(gate.gate[-2].bias, -1e9)
    nn.init.zeros_(gate.gate[-2].weight)
    assert torch.equal(shut, state)
    assert torch.equal(walk.units[3](state), state)  # T = 0 in the layer itself
    assert lesion.closes_gates(walk)


def test_a_plain_unit_is_taken_out_whole_and_only_where_shapes_allow() -> None:
    walk, (x, _) = (
        walk_of(small_network("model.depth=14", "model/shortcut=none", "model.widths=[4,6,8]")),
        small_batch(),
    )
    assert lesion.deletable(walk, x) == [0, 1, 3, 5]  # units 2 and 4 open stages 2 and 3
    assert torch.equal(lesion.without_branch(walk.units[1], x), x)
    few = walk_of(small_network("model.depth=8", "model/shortcut=none", "model.widths=[4,6,8]", "model.stem_width=2"))
    with pytest.raises(UserError, match="none can be taken out"):
        lesion.deletable(few, x)


def test_random_deletions_have_their_number_and_differ() -> None:
    walk, generator = walk_of(small_network("model.depth=20")), np.random.default_rng(0)
    drawn = [lesion.random_deletions(walk, [0, 1, 2, 5, 6], 3, generator) for _ in range(40)]
    deleted = [[place.unit for place in variant if place.deleted] for variant in drawn]
    assert {len(units) for units in deleted} == {3}
    assert set().union(*deleted) == {0, 1, 2, 5, 6}
    assert len({tuple(units) for units in deleted}) == 10  # all subsets of 3 of 5


def test_units_change_places_only_inside_a_stage_and_never_where_the_shape_changes() -> None:
    walk, (x, _) = walk_of(small_network("model.depth=26", "model.widths=[4,6,8]")), small_batch()
    pairs, generator = lesion.swappable(walk, x), np.random.default_rng(0)
    assert lesion.keeping_shape(walk, x) == [0, 1, 2, 3, 5, 6, 7, 9, 10, 11]
    for swaps in (1, 50):
        order = [place.unit for place in lesion.reordering(walk, pairs, swaps, generator)]
        assert sorted(order) == list(range(12))
        assert (order[4], order[8]) == (4, 8)
        assert [unit // 4 for unit in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert lesion.reordering(walk, pairs, 0, generator) == lesion.intact(walk)


def test_the_least_kendall_tau_of_orders_within_stages_is_as_computed_by_hand() -> None:
    """54 units, three stages of 18, of which 18, 17 and 17 move: 153 + 136 + 136 of 1431 pairs can be inverted."""
    order = [*range(17, -1, -1), 18, *range(35, 18, -1), 36, *range(53, 36, -1)]
    tau = kendalltau(range(54), order).statistic
    assert tau == pytest.approx(1 - 2 * 425 / 1431)
    assert tau == pytest.approx(0.41, abs=0.005)


def test_a_net_without_two_equal_units_in_a_stage_cannot_be_reordered() -> None:
    walk, (x, _) = walk_of(small_network("model.depth=8")), small_batch()
    with pytest.raises(UserError, match="no stage"):
        lesion.swappable(walk, x)


def test_a_network_in_training_mode_or_of_another_family_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.eval"):
        walk_of(small_network("model.depth=8").train())
    with pytest.raises(UserError, match="Linear: does not say which units it has"):
        walk_of(nn.Linear(1, 1).eval())


def test_places_are_counted_from_zero() -> None:
    assert lesion.with_deleted(walk_of(small_network("model.depth=8")), [1]) == (Place(0), Place(1, True), Place(2))
