"""`model.own_layers`: layers of the user's own classes in a residual network."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, prelu

from deepnets.analysis.commands.subject import fresh_network
from deepnets.config.build import build
from deepnets.config.trust import trust
from deepnets.errors import UserError
from deepnets.models.layers import LAYERS, Conv, Layers, own_layers_of
from deepnets.models.network import recomputed
from deepnets.models.resnet import ResNet
from deepnets.run import build_model
from deepnets.runs.code import code_of
from tests.command import row
from tests.layers import Noisy, Squareplus
from tests.models.test_network import MODES, trained

SMALL = ("model=digits_resnet", "model.widths=[4,4,4]", "model.depth=8")
SQUAREPLUS = "+model.own_layers.relu={_target_:tests.layers.Squareplus,b:0.1}"
NOISY = (
    "model.layer=[conv,noisy,relu]",
    "model.after=[relu]",
    "+model.own_layers.noisy="
    "{_target_:tests.layers.Noisy,_partial_:true,inner:{_target_:tests.layers.Squareplus,b:0.1}}",
)


class PerChannel(nn.Module):
    """A learned scale of each channel."""

    def __init__(self, channels: int, start: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels, 1, 1), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_they_stand_where_their_names_are() -> None:
    torch.manual_seed(0)
    own = own_layers_of({"scale": partial(PerChannel, start=0.5), "relu": nn.ELU(), "slope": nn.PReLU()})
    names, convs = ["conv", "scale", "relu", "slope", "conv", "scale", "slope"], [Conv(3, 3, 1), Conv(5, 3, 2)]
    layers = Layers(conv_bias=False, batchnorm_images=None, further=own)
    layers.check_names(names)
    conv, scale, _, slope, strided, wider, _ = sequence = layers.sequence(names, 2, convs)
    assert (len(scale.scale), len(wider.scale)) == (3, 5)
    with torch.no_grad():
        slope.weight.fill_(0.9)  # the other one keeps its own
    x = torch.randn(4, 2, 6, 6)
    y = strided(prelu(elu(conv(x) * 0.5), torch.tensor([0.9])))
    torch.testing.assert_close(sequence(x), prelu(y * 0.5, torch.tensor([0.25])))


def test_every_listed_layer_is_there() -> None:
    layers = Layers(conv_bias=False, batchnorm_images=None)
    for name in LAYERS:
        assert len(layers.sequence([name], 2, [Conv(2, 1, 1)])) == 1
    with pytest.raises(ValueError, match=f"choose from {', '.join(LAYERS)}$"):
        layers.check_names(["gelu"])


def test_a_networks_file_or_command_names_them() -> None:
    model = build_model([*SMALL, SQUAREPLUS], trust="tests.layers")
    assert isinstance(model, ResNet)
    assert not [module for module in model.modules() if isinstance(module, nn.ReLU)]
    found = [module.b for module in model.modules() if isinstance(module, Squareplus)]
    assert found == [0.1] * 7  # one behind the stem, two in each of three units


def test_no_two_places_share_a_module() -> None:
    model = build_model([*SMALL, *NOISY], trust="tests.layers")
    noisy = [module for module in model.modules() if isinstance(module, Noisy)]
    assert len({id(module.inner) for module in noisy}) == len(noisy) == 7


@pytest.mark.parametrize("memory", MODES)
def test_what_they_draw_and_note_is_the_same_if_activations_are_computed_again(memory: str) -> None:
    plain, ours = (trained(build_model([*SMALL, *NOISY], trust="tests.layers"), mode) for mode in ("full", memory))
    assert plain[1].keys() == ours[1].keys()
    assert torch.equal(plain[2], ours[2])
    for name, value in plain[1].items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(ours[1][name], value, rtol=0, atol=0, msg=name)
    for expected, gradient in zip(plain[0], ours[0], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


def test_their_module_is_part_of_the_runs_code(tmp_path: Path) -> None:
    trust("tests.layers")
    code = code_of(row(tmp_path, *SMALL, SQUAREPLUS).config)
    assert code
    assert "tests.layers" in code.modules
    assert code_of(row(tmp_path, *SMALL).config) is None


def test_an_analysis_draws_a_network_with_the_layers_of_its_run_and_of_an_ordering(tmp_path: Path) -> None:
    trust("tests.layers")
    config = row(tmp_path, *SMALL, SQUAREPLUS).config
    plain = row(tmp_path, *SMALL).config
    ordering = {"layer": ["conv", "plus"], "after": ["plus"]}
    ordering |= {"own_layers": {"plus": {"_target_": "tests.layers.Squareplus", "b": 9.0}}}
    plus = replace(plain, model=plain.model | ordering)
    for drawn, expected in (
        (fresh_network(config, {"layer": ["conv", "relu"], "after": []}, 0), {0.1}),
        (fresh_network(config, {**ordering, "layer": ["relu", "conv", "plus"]}, 0), {0.1, 9.0}),
        (fresh_network(plain, ordering, 0), {9.0}),
        (fresh_network(plus, {"layer": ["conv", "relu"], "after": []}, 0), set()),
    ):
        assert {module.b for module in drawn.modules() if isinstance(module, Squareplus)} == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.layer=[conv,swish]"], "unknown layer 'swish'; choose from conv, linear, bn, relu, crelu, tanh, "),
        (["model/ordering=pre_norm"], "only transformers"),
        (["+model.own_layers={relu:3}"], "own_layers.relu: got 3; must be as in {relu: {_target_: MODULE.CLASS}}"),
        (
            ["+model.own_layers={_target_:tests.layers.Squareplus}"],
            "own_layers._target_: got 'tests.layers.Squareplus'; must be as in {target: {_target_: MODULE.CLASS}}",
        ),
        (
            ["+model.own_layers={own_layers:{relu:{_target_:tests.layers.Squareplus}}}"],
            "{_target_: MODULE.CLASS}}; its file lacks the first line `# @package model`",
        ),
        (["+model.own_layers=[relu]"], "own_layers: got ['relu']; must be a valid dictionary"),
        (["+model.own_layers={1:{_target_:tests.layers.Squareplus}}"], "own_layers: got the name 1; must be text"),
        (
            ["+model.own_layers.rleu={_target_:tests.layers.Squareplus}"],
            "own_layers.rleu: neither layer, after nor stem",
        ),
        (["+model.own_layers.crelu={_target_:tests.layers.Squareplus}"], "crelu: this layer cannot be replaced"),
        (["+model.own_layers.mlp={_target_:tests.layers.Squareplus}"], "mlp: this layer cannot be replaced"),
        (["+model.own_layers.relu={_target_:tests.layers.number,x:1}"], "it must be a node whose _target_ is a class"),
        (
            ["+model.own_layers.bn={_target_:tests.layers.Features}"],
            "own_layers.bn: missing: num_features; add `_partial_: true`, with which deepnets passes a shortcut's ends",
        ),
        (
            ["+model.own_layers.bn={_target_:tests.layers.Features,_partial_:true}"],
            "own_layers.bn: Features must take `channels`, with which deepnets calls it; leave out `_partial_: true`",
        ),
    ],
)
def test_what_is_wrong_is_said(words: list[Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_model([*SMALL, *words], trust="tests.layers")
    assert message in str(error.value)


def test_a_shortcuts_file_without_its_package_is_named(tmp_path: Path) -> None:
    node = row(tmp_path, *SMALL).config.model
    with pytest.raises(UserError, match=r"shortcut.*its file lacks the first line `# @package model`"):
        build("model", {**node, "shortcut": {"shortcut": node["shortcut"]}}, shape=(1, 8, 8), classes=10)


def test_an_analysis_imports_nothing_that_is_not_trusted(tmp_path: Path) -> None:
    config = row(tmp_path, *SMALL).config
    for changes in ({}, {"units": [1, 1, 1]}):
        with pytest.raises(UserError, match="not one of the classes"):
            fresh_network(replace(config, model=config.model | {"_target_": "tests.never.Imported"}), changes, 0)


@pytest.mark.parametrize("layer", ["Dropout2d", "AlphaDropout"])
def test_torchs_layers_draw_the_same_numbers_again(layer: str) -> None:
    noisy = nn.Sequential(nn.Conv2d(2, 2, 1), getattr(nn, layer)())
    gradients = []
    for call in (noisy, partial(recomputed, noisy, within=noisy)):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(call(torch.randn(4, 2, 3, 3)).square().sum(), noisy[0].weight)[0])
    assert torch.equal(*gradients)
