"""What a network's parameters are before the first step."""

from math import sqrt
from typing import Literal

from torch import nn

from deepnets.models.shortcuts import Gated

Initialization = Literal["he_fan_out", "he_fan_in"]
FANS: dict[Initialization, str] = {"he_fan_out": "fan_out", "he_fan_in": "fan_in"}


def initialize(model: nn.Module, initialization: Initialization) -> None:
    """Draw W ~ N(0, 2 / fan) for convolutions, U(+-1 / sqrt(fan_in)) and bias 0 for linear layers; in place.

    The fan is k k C_out for he_fan_out (fb.resnet.torch) and k k C_in for he_fan_in (He et al. 2015, "Delving deep",
    forward case). Batch normalisation starts as gamma 1, beta 0. Raises ValueError for another initialisation.
    """
    if initialization not in FANS:
        raise ValueError(f"initialization is {initialization!r}; choose one of {', '.join(FANS)}")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=FANS[initialization], nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            bound = 1 / sqrt(module.in_features)
            nn.init.uniform_(module.weight, -bound, bound)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, Gated):
            module.reset_bias()
