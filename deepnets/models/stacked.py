"""Several fully connected networks as one, whose layers multiply batched matrices."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

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
    """K linear layers: x (K, N, inputs) to (K, N, outputs) by `weight` (K, outputs, inputs) and `bias` (K, outputs).

    Computes in the precision of `weight` and `bias`. The backward pass writes their gradients, in any precision, where
    `weight_gradient` and `bias_gradient` are: what torch would do by four more operations a layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight.detach().requires_grad_(), bias
        self.weight_gradient, self.bias_gradient = weight_gradient, bias_gradient

    def forward(self, x: Tensor) -> Tensor:
        return _Affine.apply(x.to(self.weight.dtype), self.weight, self)


class _Affine(torch.autograd.Function):
    """x W' + b; W is an argument so that there is a backward pass where x needs no gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, layer: StackedLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return torch.baddbmm(layer.bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        if layer.weight_gradient.dtype == gradient.dtype:
            torch.bmm(gradient.mT, x, out=layer.weight_gradient)
        else:
            layer.weight_gradient.copy_(torch.bmm(gradient.mT, x))
        layer.bias_gradient.copy_(gradient.sum(1))
        return torch.bmm(gradient, layer.weight.detach()) if ctx.needs_input_grad[0] else None, None, None


def unstackable(model: nn.Module) -> list[str]:
    """The kinds of modules for which the model cannot be stacked, by name; none when it can."""
    return sorted({type(module).__name__ for module in model.modules() if type(module) not in STACKABLE})


def stack(model: nn.Module, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> nn.Module:
    """K networks of the structure of `model` as one, which maps images (K, N, C, H, W) to logits (K, N, classes).

    `weights` are those of the K networks, (K, *shape) in the order of `model.parameters()`, and are used where they
    are; a backward pass overwrites `gradients`.
    """
    names = [name for name, _ in model.named_parameters()]
    by_name = dict(zip(names, zip(weights, gradients, strict=True), strict=True))
    stacked = copy.deepcopy(model)
    for name in [name for name, module in stacked.named_modules() if isinstance(module, nn.Linear)]:
        (weight, weight_gradient), (bias, bias_gradient) = by_name[f"{name}.weight"], by_name[f"{name}.bias"]
        stacked.set_submodule(name, StackedLinear(weight, bias, weight_gradient, bias_gradient))
    return stacked
