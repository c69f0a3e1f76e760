"""Transformers: pre-norm and post-norm by hand, torchvision's logits with its weights, and what is refused."""

from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, relu

from deepnets.errors import UserError
from deepnets.models.transformer import Transformer
from deepnets.system.settings import Memory
from deepnets.training.stack import stacked

Network = Callable[..., Transformer]


def digits(network: Network, *overrides: str) -> Transformer:
    torch.manual_seed(0)
    return network("vit_digits", *overrides, shape=(1, 8, 8)).double()


def attended(x: Tensor, attention: nn.Module, heads: int) -> Tensor:
    """Attention of each head written out."""
    q, k, v = (x @ attention.qkv.weight.T + attention.qkv.bias).chunk(3, dim=-1)
    width = x.shape[-1] // heads
    found = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        weights = torch.softmax(q[..., own] @ k[..., own].transpose(1, 2) / width**0.5, dim=-1)
        found.append(weights @ v[..., own])
    return torch.cat(found, dim=-1) @ attention.output.weight.T + attention.output.bias


def mlp(x: Tensor, layer: nn.Module, activation: Callable[[Tensor], Tensor]) -> Tensor:
    inner = activation(x @ layer.inner.weight.T + layer.inner.bias)
    return inner @ layer.output.weight.T + layer.output.bias


@pytest.mark.parametrize("norm", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_ordering_is_its_equation(network: Network, norm: str, activation: str) -> None:
    model = digits(network, f"model/ordering={norm}", f"model.activation={activation}", "model.norm_eps=0.01")
    x = torch.randn(2, 17, 32, dtype=torch.float64)

    def normed(x: Tensor) -> Tensor:
        return layer_norm(x, (32,), eps=0.01)

    def branch(x: Tensor, unit: nn.Module, index: int) -> Tensor:
        sublayer = unit.branch[-1]
        return mlp(x, sublayer, {"gelu": gelu, "relu": relu}[activation]) if index % 2 else attended(x, sublayer, 4)

    for index, unit in enumerate(model.units):
        expected = x + branch(normed(x), unit, index) if norm == "pre_norm" else normed(x + branch(x, unit, index))
        torch.testing.assert_close(unit(x), expected)
    assert [type(layer) for layer in model.tail] == [nn.LayerNorm] * (norm == "pre_norm")


def test_the_logits_are_torchvisions(network: Network) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.vit_b_16(weights=None).eval()
    for weight in (theirs.heads.head.weight, theirs.encoder.layers[0].mlp[0].bias):
        nn.init.normal_(weight, std=0.1)
    with torch.device("meta"):
        ours = network("imagenet_vit_b16", shape=(3, 224, 224), classes=1000)
    state = theirs.state_dict()
    first = ["class_token", "encoder.pos_embedding", "conv_proj.weight", "conv_proj.bias"]
    values = [state.pop(name) for name in first] + list(state.values())
    names = list(ours.state_dict())
    ours.load_state_dict(dict(zip(names, values, strict=True)), assign=True)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = theirs(x)
        assert expected.std() > 1
        torch.testing.assert_close(ours.eval()(x), expected, atol=1e-5, rtol=1e-5)


def test_the_head_reads_the_class_token_or_the_mean(network: Network) -> None:
    for readout, tokens in (("class_token", 17), ("mean", 16)):
        model = digits(network, f"model.readout={readout}", "model.representation=5")
        x = torch.randn(2, tokens, 32, dtype=torch.float64)
        read = x[:, 0] if readout == "class_token" else x.mean(1)
        hidden = torch.tanh(read @ model.representation[0].weight.T + model.representation[0].bias)
        torch.testing.assert_close(model.pool(x), hidden)
        assert model.stem(torch.randn(2, 1, 8, 8, dtype=torch.float64)).shape == (2, tokens, 32)
        assert model.head.weight.shape == (10, 5)


def test_patches_are_a_linear_map_and_a_position(network: Network) -> None:
    model = digits(network)
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    tokens, stem = model.stem(images), model.stem
    patch = images[1, 0, 2:4, 4:6]  # the second row's third
    expected = (stem.patches.weight[:, 0] * patch).sum((1, 2)) + stem.patches.bias + stem.positions[0, 1 + 6]
    torch.testing.assert_close(tokens[1, 7], expected)
    torch.testing.assert_close(tokens[0, 0], stem.class_token[0, 0] + stem.positions[0, 0])


@pytest.mark.parametrize("memory", ["recompute_activations", "recompute_units", "recompute_segments"])
def test_recomputation_changes_no_gradient(network: Network, memory: str) -> None:
    model = digits(network, "model/survival=linear_decay", "model.dropout=0.2").train()
    x, labels = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.arange(4)
    found = []
    for chosen in (Memory.full, Memory(memory)):
        model.keep(chosen)
        model.zero_grad()
        torch.manual_seed(3)
        model.generator.manual_seed(1)
        cross_entropy(model(x), labels).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformers_can_be_stacked(network: Network) -> None:
    models = [network("vit_digits", "model.qkv_bias=false", shape=(1, 8, 8)) for _ in range(3)]
    images = torch.randn(3, 2, 1, 8, 8)
    parameters = {
        name: torch.stack([dict(model.named_parameters())[name].detach() for model in models])
        for name, _ in models[0].named_parameters()
    }
    alone = torch.stack([model(x) for model, x in zip(models, images, strict=True)])
    torch.testing.assert_close(stacked(models[0], parameters, {}, images), alone, atol=1e-5, rtol=1e-4)


def test_a_thousand_sublayers(network: Network) -> None:
    model = network("vit_digits", "model.depth=1000", "model.width=8", shape=(1, 8, 8))
    assert len(model.units) == 1000
    model(torch.randn(1, 1, 8, 8)).sum().backward()
    assert model.units[0].branch[1].qkv.weight.grad.norm() > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.layer=[sublayer]", r"a transformer needs one sublayer and its norm, \[ln, sublayer\] or"),
        ("model/ordering=original", "choose model/ordering=pre_norm or post_norm"),
        ("model.after=[ln]", r"after is \['ln'\], which is not how layer .* ends"),
        ("model.heads=5", "heads is 5, which does not divide the width 32: choose from 1, 2, 4, 8, 16, 32"),
        ("model.patch=3", "patch is 3, which does not divide images of 8x8: choose from 1, 2, 4, 8"),
        ("model.depth=7", "depth is 7; .* the nearest are 6 and 8"),
        ("model.depth=1", "depth is 1; .* the smallest is 2"),
        ("model.readout=max", "readout: got 'max'; must be 'class_token' or 'mean'"),
        ("model.shortcut=none", "shortcut: got 'none'; choose an option by model/shortcut=NAME"),
    ],
)
def test_what_makes_no_transformer_is_refused(network: Network, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        network("vit_digits", override, shape=(1, 8, 8))


@pytest.mark.parametrize("norm", ["pre_norm", "post_norm"])
def test_an_ordering_of_transformers_makes_no_resnet(network: Network, norm: str) -> None:
    with pytest.raises(UserError, match="layer 'sublayer' stands for attention or MLP"):
        network("resnet20", f"model/ordering={norm}")
