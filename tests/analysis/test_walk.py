"""A network as a sequence of units, whatever its family, and the statistics that its batch normalisation works with."""

import numpy as np
import pytest
import torch
from torch import nn

from deepnets.analysis.gradients import bypass_factors, gradient_norms
from deepnets.analysis.lesion import intact, scores, with_deleted
from deepnets.analysis.paths import norms_by_length
from deepnets.analysis.walk import Walk, check_parts, recalibrate_batchnorm, walk_of, with_batch_statistics
from deepnets.errors import UserError
from deepnets.run import build_model
from tests.networks import own_unit, small_batch, small_network

NETS = {
    "pre_norm": ["model=vit_digits"],
    "post_norm": ["model=vit_digits", "model/ordering=post_norm"],
    "dense": ["model=densenet_bc100_12", "model.units=[2,2]", "dataset=digits"],
}


def walked(net: str) -> tuple[nn.Module, Walk, torch.Tensor]:
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
    nn.init.zeros_(unit.branch[-1].weight if net == "dense" else unit.branch[-1].output.weight)
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


def test_batch_statistics_are_those_of_training_and_leave_the_model_alone() -> None:
    model, (x, _) = small_network("model.depth=8"), small_batch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = with_batch_statistics(model)
    copied = walk_of(seen).inputs(x)[-1]
    assert not torch.allclose(copied, model(x))
    assert torch.equal(copied, model.train()(x))
    model.eval().load_state_dict(before)
    with_batch_statistics(model)(x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_ghost_statistics_are_seen_too_and_stochastic_depth_is_as_at_test() -> None:
    x, labels = small_batch()
    ghost = with_batch_statistics(small_network("model.depth=8", "model.batchnorm_images=4"))
    assert not torch.allclose(ghost(x)[:4], with_batch_statistics(small_network("model.depth=8"))(x)[:4])
    model = with_batch_statistics(small_network("model.depth=14", "model/survival=linear_decay"))
    twice = [gradient_norms(walk_of(model), x, labels) for _ in range(2)]
    assert np.array_equal(*twice)


@pytest.mark.parametrize("images", ["null", "4"])
def test_a_settled_net_evaluates_images_as_training_mode_does(images: str) -> None:
    model = build_model(["model.depth=14", "model.widths=[4,4,4]", f"model.batchnorm_images={images}"]).eval()
    torch.manual_seed(0)
    x = torch.randn(64, 1, 8, 8)
    unsettled = model(x)
    recalibrate_batchnorm(model, x)
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not any(module.training for module in model.modules())
    assert {layer.momentum for layer in layers} == {0.1}
    first = model.stem[0](x)
    torch.testing.assert_close(layers[0].running_mean, first.mean((0, 2, 3)))
    torch.testing.assert_close(layers[0].running_var, first.var((0, 2, 3)))
    settled = model(x)
    for layer in layers:
        layer.train()
    torch.testing.assert_close(settled, model(x), rtol=1e-2, atol=1e-2)  # running variances are the unbiased ones
    assert (unsettled - settled).abs().max() > 0.1


class Own(nn.Module):
    """Two stages of units, and one that is no stage's child."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.stages = nn.ModuleList([nn.Sequential(own_unit(), own_unit()), nn.Sequential(nn.ReLU(), own_unit())])
        self.last = own_unit()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.stem, *self.stages, self.last, self.head):
            x = part(x)
        return x


class Said(Own):
    @property
    def parts(self) -> list[nn.Module]:
        return [self.stem, *self.stages, self.last, self.head]


class Wrong(Own):
    @property
    def parts(self) -> list[nn.Module]:
        return [self.stem, *self.stages, self.head]


def test_a_net_of_ones_own_is_walked_by_its_parts() -> None:
    model, x = Said().eval(), torch.randn(4, 1, 8, 8)
    walk = walk_of(model)
    assert walk.stages == [0, 0, 1, 1]
    torch.testing.assert_close(walk.inputs(x)[-1], model(x))
    check_parts(model, (1, 8, 8))
    assert (gradient_norms(walk, x, torch.arange(4)) > 0).all()


def test_a_net_of_ones_own_is_told_how_to_join() -> None:
    with pytest.raises(UserError, match=r"Own: does not say which units it has; give it a property `parts`.*networks"):
        walk_of(Own().eval())
    with pytest.raises(UserError, match="Wrong: its parts, in their order, give other logits"):
        check_parts(Wrong().eval(), (1, 8, 8))
    unpooled = Said()
    unpooled.head = nn.Linear(4, 10)
    unpooled.forward = lambda x: torch.zeros(len(x), 10)
    with pytest.raises(UserError, match=r"Said: its parts do not fit together in their order: .*pooling and flat"):
        check_parts(unpooled.eval(), (1, 8, 8))
    empty = Said()
    empty.stages, empty.last = nn.ModuleList(), nn.Identity()
    with pytest.raises(UserError, match=r"no units to look at.*property `parts`"):
        walk_of(empty.eval())
