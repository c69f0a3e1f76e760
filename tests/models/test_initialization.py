"""Parameters before the first step: He's normal distribution, fb.resnet.torch's head, and the gates' bias."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError
from deepnets.models.initialization import initialize
from deepnets.models.resnet import ResNet


@pytest.mark.parametrize(("initialization", "fan"), [("he_fan_out", 0), ("he_fan_in", 1)])
def test_convolutions_are_he_normal(network: Callable[..., ResNet], initialization: str, fan: int) -> None:
    torch.manual_seed(0)
    model = network("resnet110", f"model.initialization={initialization}", "model/shortcut=exclusive_gating_b6")
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convs) == 109 + 54
    for conv in convs:
        weight = conv.weight.detach()
        expected = sqrt(2 / (weight.shape[fan] * weight[0, 0].numel()))
        # Five standard errors of a sample standard deviation.
        assert weight.std().item() == pytest.approx(expected, rel=5 / sqrt(2 * weight.numel()))
        assert abs(weight.mean().item()) < 5 * expected / sqrt(weight.numel())


def test_the_head_is_uniform_and_batch_normalisation_is_neutral(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("resnet20")
    bound = 1 / sqrt(64)
    assert 0.98 * bound < model.head.weight.abs().max().item() <= bound
    assert model.head.weight.std().item() == pytest.approx(bound / sqrt(3), rel=0.1)
    assert torch.count_nonzero(model.head.bias) == 0
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 19
    for bn in norms:
        assert torch.all(bn.weight == 1)
        assert torch.all(bn.bias == 0)
        assert (bn.eps, bn.momentum) == (1e-5, 0.1)


@pytest.mark.parametrize(("gating", "bias"), [("exclusive_gating_b7", -7.0), ("shortcut_only_gating_b6", -6.0)])
def test_the_gate_keeps_its_bias_and_a_random_weight(network: Callable[..., ResNet], gating: str, bias: float) -> None:
    for unit in network("resnet20", f"model/shortcut={gating}").units:
        assert torch.all(unit.shortcut.gate[0].bias == bias)
        assert unit.shortcut.gate[0].weight.std() > 0.1


def test_a_looks_linear_net_is_the_product_of_its_orthogonal_taps(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("thin_looks_linear", "model.depth=26").double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    *convs, head = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(convs) == 25
    x = images
    for conv in convs:
        tap = conv.weight[:, : x.shape[1], 1, 1]
        torch.testing.assert_close(tap.T @ tap, torch.eye(tap.shape[1], dtype=torch.float64), atol=1e-5, rtol=0)
        assert torch.count_nonzero(conv.weight) == torch.count_nonzero(conv.weight[:, :, 1, 1])
        x = torch.einsum("oi,nihw->nohw", tap, x[:, :, :: conv.stride[0], :: conv.stride[0]])
    assert x.shape == (3, 45, 4, 4)
    torch.testing.assert_close(model(images), x.mean((2, 3)) @ head.weight[:, :45].T, atol=1e-12, rtol=1e-12)
    assert 0.9 / sqrt(45) < head.weight.abs().max().item() <= 1 / sqrt(45)


def test_a_looks_linear_net_is_linear_before_its_first_step_only(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("thin_looks_linear198", "model.units=[3,3,2,2]").double()
    x, y = torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)

    def nonlinearity() -> float:
        origin = model(torch.zeros_like(x))
        bent = model(2 * x - 3 * y) - 2 * model(x) + 3 * model(y) - 2 * origin
        return bent.abs().max().item() / model(x).abs().max().item()

    assert nonlinearity() < 1e-13
    cross_entropy(model(x), torch.arange(4)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert nonlinearity() > 1e-3


def test_a_crelu_net_starts_otherwise_without_looks_linear(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    weight = network("thin_crelu").units[0].branch[0].weight
    assert weight.shape == (6, 12, 3, 3)
    assert not torch.equal(weight[:, :6], -weight[:, 6:])
    assert weight.std().item() == pytest.approx(sqrt(2 / (12 * 9)), rel=0.15)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model/shortcut=identity"],
            "looks_linear needs shortcuts that project, not pad: choose model.resize=project",
        ),
        (
            ["model.widths=[8,4,8,8]"],
            "looks_linear cannot reduce the number of channels, but a layer does, from 8 to 4",
        ),
    ],
)
def test_looks_linear_is_refused_where_it_cannot_be(
    network: Callable[..., ResNet], overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        network("thin_looks_linear", *overrides)


def test_looks_linear_holds_with_shortcuts(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    chosen = ["model/shortcut=identity", "model.resize=projection", "model.depth=26"]
    model = network("thin_looks_linear", *chosen).double()
    x, y = torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)
    assert model.units[3].shortcut.resize[0].weight.shape[:2] == (22, 12)  # of a CReLU's halves
    bent = model(2 * x - 3 * y) - 2 * model(x) + 3 * model(y) - 2 * model(torch.zeros_like(x))
    assert bent.abs().max().item() < 1e-13 * model(x).abs().max().item()


def test_glorot_and_truncated_normal_draw_each_matrix_of_an_attention(network: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    for name, std in (("glorot", sqrt(2 / 256)), ("truncated_normal", 0.02)):
        qkv = network("vit_cifar", f"model/initialization={name}").units[0].branch[1].qkv
        for part in qkv.weight.chunk(3):
            assert part.shape == (128, 128)
            assert part.std().item() == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_orthogonal(network: Callable[..., nn.Module], gain: float) -> None:
    model = network(
        "plain_fc10", "model/initialization=orthogonal", f"model.initialization.gain={gain}", shape=(1, 9, 9)
    )
    weight = model.units[4].branch[0].weight.double()
    torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(71).double(), atol=1e-5, rtol=0)


def test_delta_orthogonal_is_an_orthogonal_centre_tap_and_normal_biases(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    chosen = ["model.layer=[conv,tanh]", "model.initialization.bias_variance=0.04"]
    model = network("thin_relu", "model/initialization=delta_orthogonal", *chosen)
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for conv in convs:
        tap = conv.weight[:, :, 1, 1].double()
        torch.testing.assert_close(tap.T @ tap, 1.05 * torch.eye(tap.shape[1]).double(), atol=1e-5, rtol=0)
        assert torch.count_nonzero(conv.weight) == torch.count_nonzero(tap)
    biases = torch.cat([conv.bias for conv in convs])
    assert biases.std().item() == pytest.approx(0.2, rel=5 / sqrt(2 * len(biases)))


def test_fixup_follows_its_rules(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    chosen = [f"model/{group}=fixup" for group in ("ordering", "shortcut", "initialization")]
    model = network("resnet110", *chosen)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_720_138
    for unit in model.units:
        first, last = [layer.weight for layer in unit.branch if isinstance(layer, nn.Conv2d)]
        assert torch.count_nonzero(last) == 0
        expected = sqrt(2 / (first.shape[0] * 9)) * 54**-0.5
        assert first.std().item() == pytest.approx(expected, rel=5 / sqrt(2 * first.numel()))
        assert (unit.shortcut.a, unit.after[0].b) == (1, 0)
    assert torch.count_nonzero(model.head.weight) == 0
    bound = 1 / sqrt(27)  # torch's default for the stem
    assert 0.95 * bound < model.stem[0].weight.abs().max().item() <= bound
    unit, x = model.units[1].double(), torch.randn(2, 16, 8, 8, dtype=torch.float64)
    scalars = [parameter for parameter in unit.parameters() if parameter.numel() == 1]
    assert len(scalars) == 5
    for parameter in unit.parameters():
        nn.init.normal_(parameter, std=0.3)
    shifts = [layer.b for layer in (*unit.branch, *unit.after) if hasattr(layer, "b")]
    conv1, conv2 = [layer for layer in unit.branch if isinstance(layer, nn.Conv2d)]
    inner = torch.relu(conv1(x + shifts[0]) + shifts[1])
    expected = torch.relu(x + unit.shortcut.a * conv2(inner + shifts[2]) + shifts[3])
    torch.testing.assert_close(unit(x), expected)


@pytest.mark.parametrize("images", ["null", "64"])
def test_zero_gamma_lets_every_unit_start_as_the_identity(network: Callable[..., ResNet], images: str) -> None:
    model = network("resnet20", "model/initialization=zero_gamma", f"model.batchnorm_images={images}")
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(model.units[1](x), x)
    gains = [bn.weight.sum().item() for bn in model.modules() if isinstance(bn, nn.BatchNorm2d)]
    assert gains.count(0) == 9
    for ordering in ("full_preactivation", "relu_before_addition"):
        with pytest.raises(UserError, match="zero_gamma needs branches that end in batch normalisation"):
            network("resnet20", "model/initialization=zero_gamma", f"model/ordering={ordering}")


def test_deepnorm_scales_values_outputs_and_mlps_alone(network: Callable[..., nn.Module]) -> None:
    chosen = ["model/ordering=post_norm", "model/shortcut=deepnorm", "model.depth=24"]
    nets = []
    for name in ("glorot", "deepnorm"):
        torch.manual_seed(0)
        nets.append(network("vit_cifar", f"model/initialization={name}", *chosen))
    for plain, scaled in zip(*(net.units for net in nets), strict=True):
        before, after = dict(plain.named_parameters()), dict(scaled.named_parameters())
        for name, value in after.items():
            factor = torch.ones(len(value), *[1] * (value.dim() - 1))
            if name.endswith("qkv.weight"):
                factor[256:] = 0.3195  # DeepNet's beta for 12 layers
            elif value.dim() > 1:
                factor *= 0.3195
            torch.testing.assert_close(value, factor * before[name], atol=0, rtol=1e-3)
    with pytest.raises(UserError, match="deepnorm scales the sublayers of transformers"):
        network("resnet20", "model/initialization=deepnorm")


def test_pytorch_is_what_torchs_layers_start_with(network: Callable[..., ResNet]) -> None:
    torch.manual_seed(0)
    model = network("thin_relu", "model/initialization=pytorch")
    conv = model.units[-1].branch[0]
    bound = 1 / sqrt(conv.weight[0].numel())
    for value in (conv.weight, conv.bias):  # He's have no such bound, and biases of 0
        assert 0.85 * bound < value.abs().max().item() <= bound * (1 + 1e-6)


def test_a_name_typed_as_a_value_is_the_option_of_that_name(network: Callable[..., ResNet]) -> None:
    states = []
    for word in ("model/initialization=he_fan_in", "model.initialization=he_fan_in"):
        torch.manual_seed(0)
        states.append(network("resnet20", word).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_the_same_seed_gives_the_same_network(network: Callable[..., ResNet]) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(network("digits_resnet", shape=(1, 8, 8)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_an_unknown_initialization_is_refused() -> None:
    with pytest.raises(
        ValueError, match="initialization is 'xavier'; choose one of he_fan_out, he_fan_in, looks_linear"
    ):
        initialize(head := nn.Linear(1, 1), head, "xavier")


def test_the_released_code_of_stochastic_depth_differs_in_the_bias_of_the_head_alone(
    network: Callable[..., ResNet],
) -> None:
    models = []
    for name in ("he_fan_in", "huang2016"):
        torch.manual_seed(0)
        models.append(network("stochastic_depth110", "model.depth=8", f"model/initialization={name}"))
    paper, code = (dict(model.named_parameters()) for model in models)
    assert [name for name, weight in paper.items() if not torch.equal(weight, code[name])] == ["head.bias"]
    assert not paper["head.bias"].any()
    bound = 1 / code["head.weight"].shape[1] ** 0.5
    assert 0.5 * bound < code["head.bias"].abs().max() <= bound


def test_any_modules_reset_bias_is_the_last_word(network: Callable[..., ResNet]) -> None:
    class Gate(nn.Linear):
        def reset_bias(self) -> None:
            nn.init.constant_(self.bias, -6.0)

    model = network("resnet20")
    model.stages[0][0].shortcut.gate = Gate(4, 4)
    initialize(model, model.head, "he_fan_out")
    assert torch.all(model.stages[0][0].shortcut.gate.bias == -6)
