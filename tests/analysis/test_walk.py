"""A network as a sequence of units: transformers and dense nets are walked and measured as residual ones."""

import pytest
import torch

from deepnets.analysis.gradients import bypass_factors, gradient_norms
from deepnets.analysis.lesion import intact, scores, with_deleted
from deepnets.analysis.paths import norms_by_length
from deepnets.analysis.walk import Walk, walk_of
from deepnets.run import build_model

NETS = {
    "pre_norm": ["model=vit_digits"],
    "post_norm": ["model=vit_digits", "model/ordering=post_norm"],
    "dense": ["model=densenet_bc100_12", "model.units=[2,2]", "dataset=digits"],
}


def walked(net: str) -> tuple[torch.nn.Module, Walk, torch.Tensor]:
    torch.manual_seed(1)
    model = build_model(NETS[net]).eval()
    return model, walk_of(model), torch.randn(4, 1, 8, 8)


@pytest.mark.parametrize("net", NETS)
def test_the_walk_ends_in_the_networks_logits(net: str) -> None:
    model, walk, x = walked(net)
    assert len(walk) == {"dense": 4}.get(net, 8)
    torch.testing.assert_close(walk.inputs(x)[-1], model(x))


@pytest.mark.parametrize("net", NETS)
def test_a_deleted_unit_passes_on_its_shortcut(net: str) -> None:
    model, walk, x = walked(net)
    labels = torch.arange(4)
    unit = model.units[1]
    whole, without = scores(walk, [(x, labels)], [intact(walk), with_deleted(walk, [1])]).loss
    torch.nn.init.zeros_(unit.branch[-1].weight if net == "dense" else unit.branch[-1].output.weight)
    (zeroed,) = scores(walk, [(x, labels)], [intact(walk)]).loss
    assert without == pytest.approx(zeroed, rel=1e-5)
    assert whole != pytest.approx(zeroed, rel=1e-5)


def test_a_gradient_passes_the_units_of_pre_norm_alone_unchanged() -> None:
    for net, unchanged in (("pre_norm", True), ("post_norm", False)):
        _, walk, x = walked(net)
        factors = bypass_factors(walk, x, torch.Generator().manual_seed(0))
        assert (abs(factors - 1) < 1e-6).all() == unchanged
        assert (gradient_norms(walk, x, torch.arange(4)) > 0).all()


def test_no_path_leads_past_all_attention_to_the_class_token() -> None:
    _, walk, x = walked("pre_norm")
    norms = norms_by_length(walk, x, torch.arange(4), [0, 4, 8], 4, torch.Generator().manual_seed(0))
    assert (norms[0] == 0).all()
    assert (norms[1:] > 0).all()
