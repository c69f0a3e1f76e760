"""Every committed option has its published size and cost, and learns in all its parameters."""

from collections.abc import Callable
from time import process_time

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from deepnets.models.resnet import ResNet

PARAMETERS = {
    "digits_resnet": 75_002,
    "plain20": 269_722,
    "plain32": 464_154,
    "plain44": 658_586,
    "plain56": 853_018,
    "plain110": 1_727_962,
    "preact110": 1_727_962,
    "preact164": 1_703_258,
    "preact1001": 10_327_706,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "resnet110_one_layer": 1_727_962,
    "resnet164": 1_704_154,
    "resnet1001": 10_328_602,
    "resnet1202": 19_421_274,
}
UNITS = {"resnet20": 9, "resnet110": 54, "resnet110_one_layer": 108, "preact1001": 333, "resnet1202": 600}
GATES, PROJECTIONS = 1_824_186, 1_826_202
PARAMETERS_110_BY_SHORTCUT = {
    "dropout": 1_727_962,
    "dropout_inverted": 1_727_962,
    "identity": 1_727_962,
    "none": 1_727_962,
    "projection": PROJECTIONS,
    "scaled_0.5_0.5": 1_727_962,
    "scaled_0.5_1": 1_727_962,
    "shortcut_only_gating_b0": GATES,
    "shortcut_only_gating_b6": GATES,
} | {f"exclusive_gating_b{b}": GATES for b in range(8)}
PARAMETERS_164_BY_ORDERING = {  # 896 of batch normalisation behind the three projections, or none
    "original": 1_704_154,
    "bn_after_addition": 1_703_258,
    "relu_before_addition": 1_704_154,
    "relu_only_preactivation": 1_704_154,
    "full_preactivation": 1_703_258,
}


def shape_of(option: str) -> tuple[int, int, int]:
    return (1, 8, 8) if option.startswith("digits") else (3, 32, 32)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_committed_option_has_its_published_size(network: Callable[..., ResNet], option: str) -> None:
    assert option in PARAMETERS, f"conf/model/{option}.yaml has no parameter count in this test"
    with torch.device("meta"):
        model = network(option, shape=shape_of(option))
    assert parameters(model) == PARAMETERS[option]
    assert len(model.units) == UNITS.get(option, len(model.units))


def test_every_shortcut_has_its_size_in_resnet110(network: Callable[..., ResNet], shortcut: str) -> None:
    with torch.device("meta"):
        assert parameters(network("resnet110", f"model/shortcut={shortcut}")) == PARAMETERS_110_BY_SHORTCUT[shortcut]


def test_every_ordering_has_its_size_in_110_and_164(network: Callable[..., ResNet], ordering: str) -> None:
    with torch.device("meta"):
        assert parameters(network("resnet110", f"model/ordering={ordering}")) == 1_727_962
        assert parameters(network("resnet164", f"model/ordering={ordering}")) == PARAMETERS_164_BY_ORDERING[ordering]


@pytest.mark.parametrize(
    ("overrides", "classes", "expected"),
    [
        (["resnet20", "model.resize=projection"], 10, 272_474),
        (["resnet110", "model.resize=projection"], 10, 1_730_714),
        (["preact110", "model.resize=projection"], 10, 1_730_522),
        (["resnet20"], 100, 275_572),
        (["resnet110"], 100, 1_733_812),
        (["preact164"], 100, 1_726_388),
        (["resnet164"], 100, 1_727_284),
        (["preact1001"], 100, 10_350_836),
        (["resnet1001"], 100, 10_351_732),
    ],
)
def test_option_b_and_100_classes_have_their_sizes(
    network: Callable[..., ResNet], overrides: list[str], classes: int, expected: int
) -> None:
    with torch.device("meta"):
        assert parameters(network(*overrides, classes=classes)) == expected


@pytest.mark.parametrize(
    ("overrides", "millions"),
    [
        (["resnet20"], 40.55),
        (["plain56"], 125.49),
        (["resnet110"], 252.89),
        (["preact164"], 244.5),
        (["preact164", "model.strided_kernel=1"], 247.6),
    ],
)
def test_multiply_adds_of_one_image(network: Callable[..., ResNet], overrides: list[str], millions: float) -> None:
    with torch.device("meta"):
        model = network(*overrides).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 32, 32))
    assert counter.get_total_flops() / 2e6 == pytest.approx(millions, abs=0.05 if millions > 200 else 0.005)


def test_orthogonal_choices_make_an_unpublished_net(network: Callable[..., ResNet]) -> None:
    with torch.device("meta"):
        chosen = ["ordering=full_preactivation", "shortcut=exclusive_gating_b6", "block=bottleneck"]
        model = network("resnet110", *[f"model/{choice}" for choice in chosen], "model.depth=164")
    assert len(model.units) == 54
    # 54 gates on preact164, counted by hand: 16 -> 64, 64 -> 64, 64 -> 128, ... with biases.
    gates = (16 + 1) * 64 + 17 * 65 * 64 + 65 * 128 + 17 * 129 * 128 + 129 * 256 + 17 * 257 * 256
    assert parameters(model) == 1_703_258 + gates


def trained_one_step(model: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    torch.manual_seed(0)
    loss = cross_entropy(model(torch.randn(2, *shape)), torch.tensor([1, 7]))
    loss.backward()
    return loss


def assert_everything_learns(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


SMALL = [option for option, size in PARAMETERS.items() if size < 1_000_000]


@pytest.mark.parametrize("small", SMALL)
def test_every_small_option_learns_in_all_its_parameters(network: Callable[..., ResNet], small: str) -> None:
    torch.manual_seed(0)
    model = network(small, shape=shape_of(small))
    assert torch.isfinite(trained_one_step(model, shape_of(small)))
    assert_everything_learns(model)


@pytest.mark.parametrize("kind", ["none", "exclusive_gating_b6", "shortcut_only_gating_b0", "projection", "dropout"])
def test_every_kind_of_shortcut_learns_in_every_ordering_and_block(
    network: Callable[..., ResNet], kind: str, block: str
) -> None:
    depth = {"basic": 14, "bottleneck": 20, "one_layer": 8}[block]
    for ordering in PARAMETERS_164_BY_ORDERING:
        torch.manual_seed(0)
        chosen = [f"model/shortcut={kind}", f"model/block={block}", f"model/ordering={ordering}"]
        model = network("resnet", *chosen, f"model.depth={depth}", "model.widths=[8,12,16]", shape=(3, 16, 16))
        trained_one_step(model, (3, 16, 16))
        assert_everything_learns(model)


def test_giants_are_described_in_a_moment(network: Callable[..., ResNet]) -> None:
    with torch.device("meta"):
        network("digits_resnet")  # torch prepares its meta device once
        start = process_time()
        network("preact1001")
        assert process_time() - start < 3.0  # 0.8 s on one quiet core
