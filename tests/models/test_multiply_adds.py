"""What a forward pass costs."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from deepnets.models.resnet import ResNet


@pytest.mark.parametrize(
    ("overrides", "millions"),
    [
        (["resnet20"], 40.55),
        (["plain56"], 125.49),
        (["resnet110"], 252.89),
        (["highway_a"], 31.13),
        (["preact164"], 244.5),
        (["preact164", "model.strided_kernel=1"], 247.6),
        pytest.param(["resnet1001"], 1488, marks=pytest.mark.slow),  # 5.9 times resnet110
        (["imagenet_vgg19"], 19632),  # 19.6 billion: He et al. 2015, Fig. 3
        (["imagenet_plain34"], 3644),
        (["imagenet_resnet18"], 1814),
        (["imagenet_resnet34"], 3664),
        (["imagenet_resnet50"], 3858),
        (["imagenet_resnet50", "model.strided_kernel=1"], 4089),
        (["imagenet_resnet101"], 7570),
        (["imagenet_resnet152"], 11282),
        (["imagenet_resnet152", "model.strided_kernel=1"], 11514),
    ],
)
def test_multiply_adds_of_one_image(network: Callable[..., ResNet], overrides: list[str], millions: float) -> None:
    with torch.device("meta"):
        size, classes = (224, 1000) if "imagenet" in overrides[0] else (32, 10)
        model = network(*overrides, shape=(3, size, size), classes=classes).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, size, size))
    last_digit = 1 if millions > 1000 else 0.1 if "164" in overrides[0] else 0.01  # of the printed number
    assert counter.get_total_flops() / 2e6 == pytest.approx(millions, abs=0.51 * last_digit)
