"""Several fully connected networks as one, whose layers multiply batched matrices."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepnets.models.fully_connected import FullyConnected
from deepnets.models.recomputation import Branch
from deepnets.models.shortcuts import Gated, Identity, Scaled
from deepnets.models.unit import Unit

# All that works on (K, N, C) as K times on (N, C), once its linear layers are stacked: no batch statistics, which are
# kept in buffers, and no dropout, whose draws would be those of another order.
STACKABLE = frozenset(
    {FullyConnected, Unit, Branch, Gated, Identity, Scaled, nn.Sequential}
    | {nn.Linear, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid}
)


class StackedLinear(nn.Module):
    """K linear layers: x (K, N, inputs) to (K, N, outputs) by `weight` (K, outputs, inputs) and `bias` (K, outputs)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


def unstackable(model: nn.Module) -> list[str]:
    """The kinds of modules for which the model cannot be stacked, by name; none when it can."""
    return sorted({type(module).__name__ for module in model.modules() if type(module) not in STACKABLE})


def stack(model: nn.Module, weights: Sequence[Tensor]) -> nn.Module:
    """K networks of the structure of `model` as one, which maps images (K, N, C, H, W) to logits (K, N, classes).

    `weights` are those of the K networks, (K, *shape) in the order of `model.parameters()`; the stacked network's
    parameters, in the same order, share their memory.
    """
    names = [name for name, _ in model.named_parameters()]
    by_name = dict(zip(names, weights, strict=True))
    stacked = copy.deepcopy(model).requires_grad_(True)
    layers = [name for name, module in stacked.named_modules() if isinstance(module, nn.Linear)]
    for name in layers:
        stacked.set_submodule(name, StackedLinear(by_name[f"{name}.weight"], by_name[f"{name}.bias"]))
    return stacked
