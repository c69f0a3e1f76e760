"""Every committed option has its published size."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from deepnets.config.project import CONF
from deepnets.models.resnet import ResNet

FAMILIES = {"resnet", "wide_resnet", "densenet", "vit"}  # options that leave the depth open
# Channels of batch normalisation: the stem's; of 12 units w, w and 4w in each stage, and the three projections'.
STARTS_NORMS = 2 * (16 + (12 * 6 + 4) * (16 + 32 + 64))
STARTS = 1_147_738
WRN16_4_NORMS = (16 + 64 + 128) + (2 + 1) * (64 + 128 + 256) + 256  # in front of each stage, in units, at the end
WRN16_4_BIASES = 16 + 5 * (64 + 128 + 256)
PARAMETERS = {
    "densenet40_12": 1_019_722,
    "densenet_bc100_12": 769_162,
    "digits_resnet": 75_002,
    "highway110": 2_649_918,
    "highway_a": 236_328,
    "highway_b": 2_312_438,
    "highway_c": 1_264_502,
    "highway_cifar19": 2_256_838,
    "highway_fc10": 85_660,
    "highway_fc20": 136_660,
    "highway_fc50": 289_660,
    "highway_fc50_cifar100": 408_650,
    "highway_fc100": 544_660,
    "highway_mnist_w16": 38_986,
    "highway_mnist_w32": 151_690,
    "imagenet_densenet121": 7_978_856,
    "imagenet_plain18": 11_515_688,
    "imagenet_plain34": 21_623_848,
    "imagenet_preact152": 60_192_808 - 2 * (256 + 512 + 1024 + 2048),  # no batch normalisation behind projections
    "imagenet_preact200": 64_666_152,
    "imagenet_preact200_fb": 64_666_152,
    "imagenet_resnet18": 11_689_512,
    "imagenet_resnet34": 21_797_672,
    "imagenet_resnet34_a": 21_623_848,
    "imagenet_resnet34_c": 22_716_840,
    "imagenet_resnet50": 25_557_032,
    "imagenet_resnet101": 44_549_160,
    "imagenet_resnet152": 60_192_808,
    "imagenet_resnet200": 64_666_152 + 2 * (256 + 512 + 1024 + 2048),  # of projections
    "imagenet_resnext50": 25_028_904,
    "imagenet_vgg19": 143_667_240,
    "imagenet_vit_b16": 86_567_656,
    "imagenet_wide_resnet50_2": 68_883_240,
    "mnist_resnet52": 117_802,
    "plain_fc10": 102_463,
    "plain_fc20": 153_583,
    "plain_fc50": 306_943,
    "plain_fc100": 562_543,
    "plain20": 269_722,
    "plain32": 464_154,
    "plain44": 658_586,
    "plain56": 853_018,
    "plain110": 1_727_962,
    "preact110": 1_727_962,
    "preact18": 11_172_170,
    "preact34": 21_280_330,
    "preact164": 1_703_258,
    "preact1001": 10_327_706,
    "preact110_subset23": 1_727_962,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "resnet56_fixup": 849_091,
    "resnet56_rezero": 853_018 + 27,
    "resnet110_fixup": 1_720_138,
    "resnet110_one_layer": 1_727_962,
    "resnet164": 1_704_154,
    "resnet1001": 10_328_602,
    "resnet1202": 19_421_274,
    # Bottlenecks of 36 units: with batch normalisation, or with biases in place of it.
    **dict.fromkeys(("start_batchnorm", "start_zero_gamma"), STARTS),
    "start_rezero": STARTS + 36,
    "start_layer_scale": STARTS + 12 * 4 * (16 + 32 + 64),
    "start_fixup": STARTS - STARTS_NORMS + 36 * 7 + 2,
    "start_none": STARTS - STARTS_NORMS // 2,
    "start_skipinit": STARTS - STARTS_NORMS // 2 + 36,
    "start_layer_scale_bare": STARTS - STARTS_NORMS // 2 + 12 * 4 * (16 + 32 + 64),
    "thin_crelu": 563_896,
    "thin_crelu198": 2_329_370,
    "thin_looks_linear": 563_896,
    "thin_looks_linear198": 2_329_370,
    "thin_looks_linear_resnet": 569_470,
    "thin_relu": 565_642,
    "thin_relu198": 2_338_330,
    "thin_linear": 565_642,
    "thin_linear198": 2_338_330,
    "thin_resnet": 567_090,
    "thin_resnet198": 2_344_146,
    "thin_resnet_unnormalized": 565_642,
    "thin_resnet_unnormalized198": 2_338_330,
    # 8 units of width 32: four layers, tokens of 2 x 2 pixels, their 16 positions and the class token's, norm and head.
    "vit_digits": 4 * (4 * 32 * 33 + 2 * 32 * 64 + 64 + 32 + 4 * 32) + 5 * 32 + 17 * 32 + 32 + 2 * 32 + 330,
    "vit_cifar": 827_530 + 128,  # the authors' has no position for the class token
    "vit_mnist": 210_058 + 64,
    "wrn16_4_skipinit": 2_748_890 - 2 * WRN16_4_NORMS + WRN16_4_BIASES + 6,
    "wrn16_8": 10_961_370,
    "wrn28_10_dropout": 36_479_194,
    "wrn28_10": 36_479_194,
    "wrn40_4": 8_949_210,
    # The nets of constant depth, with biases in 36, 50 or 400 layers each of 16, 32 and 64 channels, and in the stem.
    "stochastic_depth110": 1_727_962 + 36 * 112 + 16,
    "stochastic_depth152": 2_408_474 + 50 * 112 + 16,
    "stochastic_depth1202": 19_421_274 + 400 * 112 + 16,
}
UNITS = {
    "highway_fc100": 99,
    "highway_c": 27,
    "imagenet_preact200": 66,
    "preact1001": 333,
    "resnet110": 54,
    "resnet110_one_layer": 108,
    "resnet1202": 600,
    "thin_relu198": 98,
}
GATES, PROJECTIONS = 1_824_186, 1_826_202
# F once more, with biases, without the stem and batch normalisation; then with two numbers for each bias.
HIGHWAY = 1_727_962 + 9 * (36 * 16 * 16 + 16 * 32 + 35 * 32 * 32 + 32 * 64 + 35 * 64 * 64) + 36 * 112
BATCHNORM_HIGHWAY = HIGHWAY + 36 * 112
PARAMETERS_110_BY_SHORTCUT = {
    "dropout": 1_727_962,
    "dropout_inverted": 1_727_962,
    **{f"exclusive_gating_b{b}": GATES for b in range(8)},
    **{f"highway_b{b}": HIGHWAY for b in (1, 2, 4)},
    "highway_batchnorm_b6": BATCHNORM_HIGHWAY,
    "identity": 1_727_962,
    "none": 1_727_962,
    "projection": PROJECTIONS,
    "scaled_0.5_0.5": 1_727_962,
    "scaled_0.5_1": 1_727_962,
    "shortcut_only_gating_b0": GATES,
    "shortcut_only_gating_b6": GATES,
}
PARAMETERS_164_BY_ORDERING = {  # 896 of batch normalisation behind the three projections, or none
    "original": 1_704_154,
    "bn_after_addition": 1_703_258,
    "relu_before_addition": 1_704_154,
    "relu_only_preactivation": 1_704_154,
    "full_preactivation": 1_703_258,
}


UNITS_110 = 18 * (16 + 32 + 64)  # channels of all F(x)
INPUTS_110 = 19 * 16 + 18 * 32 + 17 * 64  # of all x
PARAMETERS_110_BY_SHORTCUT |= {
    "deep_delta": 1_727_962 + 2 * (INPUTS_110 + 54),  # b and v, one number each
    "deepnorm": 1_727_962,
    "fixup": 1_727_962 + 54,
    "inverse_depth": 1_727_962,
    "inverse_sqrt_depth": 1_727_962,
    "layer_scale": 1_727_962 + UNITS_110,
    "orthogonal": 1_727_962,
    "skipinit": 1_727_962 + 54,
    "separate_gates": 2 * GATES - 1_727_962,
    "highway_separate_gates": 2 * HIGHWAY - 1_727_962,
}


def shape_of(option: str) -> tuple[int, int, int]:
    if "digits" in option:
        return (1, 8, 8)
    if "mnist" in option or (option.startswith(("highway_fc", "plain_fc")) and "cifar" not in option):
        return (1, 28, 28)
    return (3, 224, 224) if option.startswith("imagenet") else (3, 32, 32)


def classes_of(option: str) -> int:
    if option.startswith("imagenet"):
        return 1000
    return 100 if option.endswith("cifar100") else 10


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_every_committed_option_has_its_published_size(network: Callable[..., ResNet]) -> None:
    with torch.device("meta"):
        models = {
            option: network(option, shape=shape_of(option), classes=classes_of(option))
            for option in sorted({path.stem for path in (CONF / "model").glob("*.yaml")} - FAMILIES)
        }
    assert {option: parameters(model) for option, model in models.items()} == PARAMETERS
    assert {option: len(models[option].units) for option in UNITS} == UNITS


def test_every_shortcut_has_its_size_in_resnet110(network: Callable[..., ResNet], shortcut: str) -> None:
    with torch.device("meta"):
        assert parameters(network("resnet110", f"model/shortcut={shortcut}")) == PARAMETERS_110_BY_SHORTCUT[shortcut]


def test_every_ordering_has_its_size_in_110_and_164(network: Callable[..., ResNet], ordering: str) -> None:
    with torch.device("meta"):
        assert parameters(network("resnet110", f"model/ordering={ordering}")) == 1_727_962
        assert parameters(network("resnet164", f"model/ordering={ordering}")) == PARAMETERS_164_BY_ORDERING[ordering]


@pytest.mark.slow
def test_options_a_to_c_and_100_classes_have_their_sizes(network: Callable[..., ResNet]) -> None:
    for overrides, classes, expected in [
        (["resnet20", "model.resize=projection"], 10, 272_474),
        (["resnet110", "model.resize=projection"], 10, 1_730_714),
        (["preact110", "model.resize=projection"], 10, 1_730_522),
        (["highway_cifar19"], 100, 2_265_928),
        (["resnet20"], 100, 275_572),
        (["resnet110"], 100, 1_733_812),
        (["preact164"], 100, 1_726_388),
        (["resnet164"], 100, 1_727_284),
        (["preact1001"], 100, 10_350_836),
        (["resnet1001"], 100, 10_351_732),
        (["imagenet_resnet18", "model.resize=zero_padding"], 1000, 11_515_688),
        (["imagenet_resnet34", "model.resize=zero_padding"], 1000, 21_623_848),
        (["imagenet_resnet18", "model/shortcut=projection"], 1000, 12_043_816),
        (["imagenet_resnet34", "model/shortcut=projection"], 1000, 22_716_840),
    ]:
        with torch.device("meta"):
            assert parameters(network(*overrides, classes=classes)) == expected, overrides


def test_orthogonal_choices_make_an_unpublished_net(network: Callable[..., ResNet]) -> None:
    with torch.device("meta"):
        chosen = ["ordering=full_preactivation", "shortcut=exclusive_gating_b6", "block=bottleneck"]
        model = network("resnet110", *[f"model/{choice}" for choice in chosen], "model.depth=164")
    assert len(model.units) == 54
    # 54 gates on preact164, counted by hand: 16 -> 64, 64 -> 64, 64 -> 128, ... with biases.
    gates = (16 + 1) * 64 + 17 * 65 * 64 + 65 * 128 + 17 * 129 * 128 + 129 * 256 + 17 * 257 * 256
    assert parameters(model) == 1_703_258 + gates
