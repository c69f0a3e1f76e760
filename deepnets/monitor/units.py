"""What is measured inside a net while it trains, without any effect on the training."""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from deepnets.models.shortcuts import Gated
from deepnets.models.unit import Unit

PROBE_IMAGES = 32  # for the gates' activity; spread over the whole split, which may be sorted by class


def units_of(model: nn.Module) -> list[Unit]:
    """All units from the images to the head; none for a net that is not made of units."""
    return [module for module in model.modules() if isinstance(module, Unit)]


def gradient_norms(model: nn.Module) -> list[float]:
    """||dL/dw|| of each unit from the images to the head, w all its parameters, L the mean loss of the last batch.

    Reads what the last iteration left behind, clipped in a run that clips gradients; empty before the first. A unit
    without its branch in that iteration (stochastic depth) has norm 0.
    """
    gradients = [[p.grad for p in unit.parameters() if p.grad is not None] for unit in units_of(model)]
    norms = [get_total_norm(own) for own in gradients if own]
    return torch.stack(norms).tolist() if norms else []


def gate_activity(model: nn.Module, images: Tensor, precision: torch.dtype) -> list[float]:
    """The mean of the transform gate g(x) over images, channels and pixels, of each gated unit from images to head.

    Images (N, C, H, W) as in evaluation; empty for a net without gates. Srivastava et al. 2015, section 4.
    """
    gates = [unit.shortcut.gate for unit in units_of(model) if isinstance(unit.shortcut, Gated)]
    if not gates:
        return []
    means: list[Tensor] = []
    observers = [gate.register_forward_hook(lambda _, __, g: means.append(g.float().mean())) for gate in gates]
    training = model.training
    try:
        if training:
            model.eval()
        with (
            torch.inference_mode(),
            torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16),
        ):
            model(images)
    finally:
        for observer in observers:
            observer.remove()
        if training:
            model.train()
    return torch.stack(means).tolist()


def first_filters(model: nn.Module, shape: tuple[int, int, int]) -> Tensor | None:
    """The weights of the first layer as pictures (n, H, W, C); None where they have no 1 or 3 channels or no extent.

    Filters of a convolution, or, for a net on flattened images of `shape` (C, H, W), an image per output.
    """
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    if (first := next(layers, None)) is None:
        return None
    weight = first.weight.detach()
    if isinstance(first, nn.Linear):
        if first.in_features != math.prod(shape):
            return None
        weight = weight.unflatten(1, shape)
    _, channels, height, width = weight.shape
    return weight.permute(0, 2, 3, 1) if channels in (1, 3) and height * width > 1 else None
