"""What a network's parameters are before the first step."""

from math import sqrt
from typing import Literal, get_args

from torch import Tensor, nn

from deepnets.models.layers import CReLU
from deepnets.models.shortcuts import Gated

Initialization = Literal["he_fan_out", "he_fan_in", "looks_linear"]


def initialize(model: nn.Module, head: nn.Linear, initialization: Initialization) -> None:
    """Draw all weights but the head's as named, the head's from U(+-1 / sqrt(fan_in)); all biases are 0; in place.

    he_fan_out and he_fan_in are W ~ N(0, 2 / fan), the fan k k C_out (fb.resnet.torch) or k k C_in (He et al. 2015,
    "Delving deep", forward case). looks_linear is an orthogonal map of each pixel: Balduzzi et al. 2017, section 4; any
    weight behind a CReLU, the head's too, is (W, -W), so that a net of convolutions and CReLU is linear. It takes the
    order of modules for that of computation, which holds without shortcuts. Batch normalisation is neutral.

    Raises ValueError for another initialisation, and where looks_linear meets a layer with fewer outputs than inputs.
    """
    if initialization not in get_args(Initialization):
        raise ValueError(f"initialization is {initialization!r}; choose one of {', '.join(get_args(Initialization))}")
    mirrored = False
    for module in model.modules():
        if isinstance(module, CReLU):
            mirrored = initialization == "looks_linear"
        elif isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight.detach()
            drawn = weight[:, : weight.shape[1] // 2] if mirrored else weight
            if module is head:
                bound = 1 / sqrt(drawn.shape[1])
                nn.init.uniform_(drawn, -bound, bound)
            else:
                _draw(drawn, initialization)
            if mirrored:
                weight[:, drawn.shape[1] :] = -drawn
                mirrored = False
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, Gated):
            module.reset_bias()


def _draw(weight: Tensor, initialization: Initialization) -> None:
    match initialization:
        case "he_fan_out":
            nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        case "he_fan_in":
            nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu")
        case "looks_linear":
            outputs, inputs = weight.shape[:2]
            if outputs < inputs:
                raise ValueError(f"looks_linear keeps all of its input, but a layer goes from {inputs} to {outputs}")
            nn.init.zeros_(weight)
            centre = weight
            for size in weight.shape[2:]:
                centre = centre.select(2, size // 2)
            nn.init.orthogonal_(centre)
