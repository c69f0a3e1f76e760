"""A unit computes its paper's equation: each is written out by hand here, from the unit's own weights.

An ordering is a layer and a cut; what stands in stem, branch, projection and tail follows.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from deepnets.analysis.walk import terms
from deepnets.models.layers import Layers
from deepnets.models.resize import ShortcutShape
from deepnets.models.resnet import ResNet
from deepnets.models.unit import Ordering
from deepnets.run import build_model

DEEPER = {"basic": 14, "bottleneck": 20, "one_layer": 8}  # two units in each of three stages
PROJECTION_ENDS_IN_BN = {
    "original": True,
    "bn_after_addition": False,
    "relu_before_addition": True,
    "relu_only_preactivation": True,
    "full_preactivation": False,
}


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def normalised(x: Tensor, bn: nn.BatchNorm2d, training: bool) -> Tensor:
    mean = x.mean((0, 2, 3)) if training else bn.running_mean
    variance = x.var((0, 2, 3), correction=0) if training else bn.running_var
    scale = bn.weight / torch.sqrt(variance + 1e-5)
    return (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + bn.bias.view(1, -1, 1, 1)


def layers(module: nn.Module, kind: type) -> list:
    return [layer for layer in module.modules() if isinstance(layer, kind)]


def by_hand(unit: nn.Module, x: Tensor, ordering: str, first: bool, stride: int, training: bool) -> Tensor:
    """f(h(x) + F(x)) with option A or B where the shape changes, from He et al. 2016, Fig. 4 and appendix."""

    def bn(x: Tensor, layer: nn.BatchNorm2d) -> Tensor:
        return normalised(x, layer, training)

    def conv(x: Tensor, i: int) -> Tensor:
        kernel = convs[i].weight.shape[-1]
        return conv2d(x, convs[i].weight, stride=stride if i == 0 else 1, padding=(kernel - 1) // 2)

    convs, norms = layers(unit.branch, nn.Conv2d), layers(unit.branch, nn.BatchNorm2d)
    n = len(convs)

    if first and ordering == "full_preactivation":
        x = relu(bn(x, layers(unit.before, nn.BatchNorm2d)[0]))
        norms = [None, *norms]
    if first and ordering == "relu_only_preactivation":
        x = relu(x)

    r = x
    for i in range(n):
        last = i == n - 1
        match ordering:
            case "original":
                r = bn(conv(r, i), norms[i])
                r = r if last else relu(r)
            case "bn_after_addition":
                r = conv(r, i)
                r = r if last else relu(bn(r, norms[i]))
            case "relu_before_addition":
                r = relu(bn(conv(r, i), norms[i]))
            case "relu_only_preactivation":
                r = bn(conv(r if i == 0 and first else relu(r), i), norms[i])
            case "full_preactivation":
                r = conv(r if i == 0 and first else relu(bn(r, norms[i])), i)

    if x.shape == r.shape:
        h = x
    elif projection := layers(unit.shortcut, nn.Conv2d):
        h = conv2d(x, projection[0].weight, stride=stride)
        if PROJECTION_ENDS_IN_BN[ordering]:
            h = bn(h, layers(unit.shortcut, nn.BatchNorm2d)[0])
    else:
        h = torch.zeros_like(r)
        h[:, : x.shape[1]] = x[:, :, ::stride, ::stride]

    match ordering:
        case "original":
            return relu(h + r)
        case "bn_after_addition":
            return relu(bn(h + r, layers(unit.after, nn.BatchNorm2d)[0]))
        case _:
            return h + r


def randomise(module: nn.Module) -> None:
    for bn in layers(module, nn.BatchNorm2d):
        for tensor in (bn.weight, bn.running_var):
            nn.init.uniform_(tensor, 0.5, 2.0)
        for tensor in (bn.bias, bn.running_mean):
            nn.init.normal_(tensor)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("resize", ["zero_padding", "projection"])
def test_every_ordering_and_block_is_its_equation(
    network: Callable[..., ResNet], ordering: str, block: str, resize: str, training: bool
) -> None:
    torch.manual_seed(0)
    model = network(
        "resnet",
        f"model/ordering={ordering}",
        f"model/block={block}",
        f"model.depth={DEEPER[block]}",
        f"model.resize={resize}",
        "model.widths=[4,6,8]",
    ).double()
    randomise(model)
    model.train(training)
    assert [len(stage) for stage in model.stages] == [2, 2, 2]
    for stage, first_stride in zip(model.stages, (1, 2, 2), strict=True):
        for unit, first in zip(stage, (True, False), strict=True):
            channels = layers(unit.branch, nn.Conv2d)[0].in_channels
            stride = first_stride if first else 1
            x = torch.randn(3, channels, 7, 6, dtype=torch.float64)
            untouched = x.clone()
            expected = by_hand(unit, x, ordering, first, stride, training)
            torch.testing.assert_close(unit(x), expected)
            assert expected.shape[2:] == ((7, 6) if stride == 1 else (4, 3))
            assert torch.equal(x, untouched), "a unit must not overwrite its input"


def test_every_layer_of_a_unit_is_in_one_of_its_four_parts(network: Callable[..., ResNet], ordering: str) -> None:
    unit = network("resnet20", f"model/ordering={ordering}").units[0]
    assert [name for name, _ in unit.named_children()] == ["before", "branch", "shortcut", "after"]


@pytest.mark.parametrize(("strided_kernel", "strides"), [(0, [2, 1, 1]), (1, [1, 2, 1])])
def test_the_strided_kernel_can_be_chosen(
    network: Callable[..., ResNet], strided_kernel: int, strides: list[int]
) -> None:
    model = network("resnet164", f"model.strided_kernel={strided_kernel}", "model.depth=11")
    first_of_second_stage = model.stages[1][0]
    assert [conv.stride[0] for conv in layers(first_of_second_stage.branch, nn.Conv2d)] == strides
    assert first_of_second_stage(torch.randn(2, 64, 8, 8)).shape == (2, 128, 4, 4)


@pytest.mark.parametrize(("model", "strides"), [("resnet34", [2, 1]), ("resnet50", [1, 2, 1])])
def test_fb_imagenet_strides_where_fb_resnet_torch_does(model: str, strides: list[int]) -> None:
    with torch.device("meta"):
        first_of_second_stage = build_model([f"model=imagenet_{model}", "protocol=fb_imagenet"]).stages[1][0]
    assert [conv.stride[0] for conv in layers(first_of_second_stage.branch, nn.Conv2d)] == strides


def test_dropout_that_the_layer_names_is_there_once() -> None:
    words = ["model=digits_resnet", "model.layer=[bn,relu,dropout,conv]", "model.after=[]", "model.dropout=0.3"]
    branch = build_model(words).units[0].branch
    assert [type(part).__name__ for part in branch].count("Dropout") == 1


class Squeezed(nn.Module):
    """y = x + m r, where m is the mean of each channel of r: a shortcut of a user's own."""

    def __init__(self, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize = ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        assert r.shape == self.resize(x).shape
        return self.resize(x) + r.mean((2, 3), keepdim=True) * r


@pytest.mark.parametrize("model", ["resnet20", "preact164"])
def test_an_own_shortcut_gets_zeros_in_the_shape_of_r_if_the_branch_is_not_computed(
    network: Callable[..., ResNet], model: str
) -> None:
    built = network(model, f"model.depth={8 if model == 'resnet20' else 11}")
    x = built.stem(torch.randn(2, 3, 31, 32))
    for unit in (unit for stage in built.stages for unit in stage):
        unit.shortcut = Squeezed(unit.ends)
        split = unit.before(x)
        torch.testing.assert_close(unit(x, 0.0), unit.after(unit.shortcut.resize(split)))
        _, y = terms(unit, x, 1.0)
        x = unit.after(y)


def test_a_unit_whose_own_shortcut_is_scaled_by_0_is_plain() -> None:
    scales = ["model.shortcut.shortcut_scales=[0,1,1]", "model.shortcut.branch_scales=[1,1,1]"]
    words = ["model=digits_resnet", "model.depth=8", "model/shortcut=per_unit", *scales]
    assert [unit.is_plain for unit in build_model(words).units] == [True, False, False]
    with pytest.raises(ValueError, match="a plain unit computes nothing without its branch"):
        build_model([*words, "model/survival=linear_decay"])


def words(names: tuple[str, ...]) -> str:
    return " ".join(names)


@pytest.mark.parametrize(
    ("layer", "after", "stem", "before", "branch", "projection"),
    [
        ("conv bn relu", "relu", "conv bn relu", "", "conv bn relu conv bn", "conv bn"),
        ("conv bn relu", "bn relu", "conv bn relu", "", "conv bn relu conv", "conv"),
        ("conv bn relu", "", "conv bn relu", "", "conv bn relu conv bn relu", "conv bn"),
        ("relu conv bn", "", "conv bn", "relu", "relu conv bn relu conv bn", "conv bn"),
        ("bn relu conv", "", "conv", "bn relu", "bn relu conv bn relu conv", "conv"),
    ],
)
def test_the_five_orderings_of_figure_4(
    layer: str, after: str, stem: str, before: str, branch: str, projection: str
) -> None:
    ordering = Ordering(tuple(layer.split()), tuple(after.split()))
    assert words(ordering.stem) == stem
    assert words(ordering.before) == before
    assert words(ordering.branch(2)) == branch
    assert words(ordering.projection) == projection


@pytest.mark.parametrize("after", [("bn",), ("conv", "bn", "relu"), ("relu", "relu"), ("relu", "bn"), ("tanh",)])
def test_after_must_end_the_layer_behind_its_conv(after: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"choose one of \['bn', 'relu'\], \['relu'\], \[\]"):
        Ordering(("conv", "bn", "relu"), after)


@pytest.mark.parametrize("layer", [(), ("bn", "relu"), ("conv", "conv")])
def test_a_layer_holds_one_conv(layer: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="it must hold exactly one conv or linear"):
        Ordering(layer, ())


def test_an_unknown_layer_name_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown layer 'gelu'; choose from conv, linear, bn, relu, crelu, tanh, shift, dropout"
    ):
        Layers(conv_bias=False, batchnorm_images=None).sequence(["gelu"], 4)


def test_activating_the_branch_alone_is_preactivation_redrawn(network: Callable[..., ResNet]) -> None:
    """He et al. 2016, Fig. 5: f behind the addition that only the next branch sees, against f as F's first layers."""
    torch.manual_seed(0)
    behind = network("resnet20", "model/ordering=bn_after_addition").eval()
    before = network("resnet20", "model/ordering=full_preactivation", "model.opening=raw").eval()
    for tensor in behind.state_dict().values():
        if tensor.is_floating_point() and tensor.dim() == 1:
            nn.init.uniform_(
                tensor, 0.5, 1.5
            )  # weights, biases and statistics of batch normalisation, and the head's bias
    before.load_state_dict(dict(zip(before.state_dict(), behind.state_dict().values(), strict=True)))
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        y = behind.stem[0](images)
        activated = behind.stem[1:](y)
        for unit in behind.units:
            y = unit.shortcut(y, unit.branch(activated))
            activated = unit.after(y)
        redrawn = behind.head(activated.mean((2, 3)))
        symmetric, preactivated = behind(images), before(images)
    torch.testing.assert_close(redrawn, preactivated, rtol=1e-4, atol=1e-4 * float(preactivated.std()))
    assert (symmetric - preactivated).abs().max() > preactivated.std()
