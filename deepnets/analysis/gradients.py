"""Gradients over depth: what of the loss reaches each unit, and what its shortcut lets through."""

from copy import deepcopy
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from deepnets.analysis.walk import Walk, unchanged
from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.shortcuts import Dropped, Gated, Identity, Scaled
from deepnets.models.transformer import MLP, Attention
from deepnets.models.unit import Unit

BATCH = 128  # images, of which the papers train so many at once; a backward pass holds all their activations


def with_batch_statistics(model: nn.Module) -> nn.Module:
    """A copy of `model` in evaluation mode, but for batch normalisation: that works with the batch's own statistics.

    This is how training sees the network; before training there are no other statistics.
    """
    model = deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, _BatchNorm | GhostBatchNorm):
            module.train()
    return model


def gradient_norms(walk: Walk, x: Tensor, labels: Tensor) -> np.ndarray:
    """||dL/dx_l|| of each unit's output x_l, (units,): L2 over an image, then the mean over the images x (N, C, H, W).

    L is the sum of the images' cross-entropies, so that an image's gradient does not depend on N. x_l is what follows
    the addition of unit l: with a ReLU behind it, the ReLU's output. More than BATCH images are several batches.
    """
    count = ceil(len(x) / BATCH)
    batches = zip(x.tensor_split(count), labels.tensor_split(count), strict=True)
    return np.sum([_summed_norms(walk, *batch) for batch in batches], axis=0) / len(x)


def _summed_norms(walk: Walk, x: Tensor, labels: Tensor) -> np.ndarray:
    outputs = []
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        for unit, before, b in zip(walk.units, walk.before, walk.b, strict=True):
            x = unit(before(x), b)
            outputs.append(x)
        loss = cross_entropy(walk.end(x), labels, reduction="sum")
    found = torch.autograd.grad(loss, outputs)
    return torch.stack([gradient.double().flatten(1).norm(dim=1).sum() for gradient in found]).cpu().numpy()


def first_to_last(norms: np.ndarray) -> float:
    """The first unit's gradient over the last one's; NaN where that one is 0."""
    return float(norms[0] / norms[-1]) if norms[-1] else float("nan")


def shortcut_factors(walk: Walk, x: Tensor, generator: torch.Generator) -> np.ndarray:
    """By how much each unit's h scales a gradient that passes it, (units,), measured: 0 for plain units.

    ||J' v|| over the batch x (N, C, H, W) for v ~ N(0, 1) and the Jacobian J of h, over the same of h's change of shape
    alone. He et al. 2016, Eq. 7, where this product over units is all that a gradient meets that takes no branch; see
    `bypass_factors` for what else it meets.
    """
    with torch.no_grad():
        inputs = walk.inputs(x)[:-1]
    return np.array([_factor(unit, state, generator) for unit, state in zip(walk.units, inputs, strict=True)])


def bypass_factors(walk: Walk, x: Tensor, generator: torch.Generator) -> np.ndarray:
    """By how much each unit scales a gradient that passes all units without their branches, (units,).

    With e what stands before the split and f what follows the addition, a unit and its Jacobian past the branch are

        x' = f(h(e(x)) + b F(e(x)))        J = f'(y) h'(e(x)) e'(x),    y = h(e(x)) + b F(e(x))

    v_L ~ N(0, 1) behind the last unit is pulled back, v_l-1 = J_l' v_l. The factor of unit l is the norm of J_l' v_l
    over that of S' v_l, with S its change of shape alone; the product over units is that of the whole way. So a ReLU
    behind the additions, or a normalisation in front of a stage, is part of it; of h alone are `shortcut_factors`. 0
    from a plain unit on. What stands between two units, as pooling does, turns the gradient and counts for neither. He
    et al. 2016, Eq. 5.
    """
    steps = []
    with torch.no_grad():
        for unit, before, b in zip(walk.units, walk.before, walk.b, strict=True):
            steps.append((unit, before, b, x))
            x = unit(before(x), b)
    gradient = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    factors: list[float] = []
    for unit, before, b, x in reversed(steps):
        gradient, factor = _past_branch(unit, before(x), b, gradient)
        factors.append(factor)
        if before is not unchanged and len(factors) < len(steps):  # the stem, which is first, is not passed
            x = x.requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(before(x), x, gradient)
            gradient = gradient / (gradient.norm() or 1.0)
    return np.array(factors[::-1])


def _past_branch(unit: Unit, x: Tensor, b: float, gradient: Tensor) -> tuple[Tensor, float]:
    """The direction of the gradient in front of a unit, and its norm over what the change of shape would leave."""
    if unit.is_plain:
        return torch.zeros_like(x), 0.0
    with torch.no_grad():
        split = unit.before(x)
        y = unit.shortcut(split, b * unit.branch(split))
    x, split, y = (state.detach().requires_grad_() for state in (x, split, y))
    with torch.enable_grad():
        (at_y,) = torch.autograd.grad(unit.after(y), y, gradient)
        h = unit.shortcut(unit.before(x), x.new_zeros(()))  # without r: what a gate adds to it belongs to the branch
        (pulled,) = torch.autograd.grad(h, x, at_y)
        resize = getattr(unit.shortcut, "resize", None)
        reference = gradient if resize is None else _through(resize, split, gradient)
    norm = reference.double().norm().item()
    size = pulled.double().norm().item()
    return pulled / (size or 1.0), size / norm if norm else 0.0  # of unit length: many units leave little for float32


def _through(resize: nn.Module, x: Tensor, v: Tensor) -> Tensor:
    """v pulled back through the change of shape; of a concatenation, whose first channels are x, these alone."""
    resized = resize(x)
    return torch.autograd.grad(resized, x, v[:, : resized.shape[1]])[0]


def _factor(unit: Unit, x: Tensor, generator: torch.Generator) -> float:
    if unit.is_plain:
        return 0.0
    with torch.no_grad():
        x = unit.before(x)
    x.requires_grad_()
    with torch.enable_grad():
        h = unit.shortcut(x, x.new_zeros(()))
        v = torch.randn(h.shape, generator=generator, dtype=h.dtype).to(h.device)
        (pulled,) = torch.autograd.grad(h, x, v)
        resize = getattr(unit.shortcut, "resize", None)
        reference = v if resize is None else _through(resize, x, v)
    return (pulled.double().norm() / reference.double().norm()).item()


def shortcut_formula(walk: Walk) -> np.ndarray:
    """The same by formula, of a fresh net: a constant's value, 1 - sigmoid(b) of a gate; NaN where there is none."""
    return np.array([_formula(unit.shortcut) for unit in walk.units])


def _formula(shortcut: nn.Module) -> float:
    match shortcut:
        case Identity():
            return 1.0
        case Scaled():
            return float(shortcut.shortcut_scale)
        case Gated():
            return 1 - 1 / (1 + float(np.exp(-shortcut.bias)))
        case Dropped():
            return 1.0 if shortcut.inverted else 1 - shortcut.rate
        case _:
            return float("nan")


def layers_with_weights(model: nn.Module) -> dict[str, nn.Module]:
    """Of every layer with weights but the head and those of shortcuts, where its response is: itself, or the BN behind.

    By name of the convolution or linear layer, in the order of the net; a transformer's attention or MLP counts as one.
    """
    found: dict[str, nn.Module] = {}
    for name, parent in model.named_modules():
        if isinstance(parent, nn.Sequential) and "shortcut" not in name.split("."):
            for (child, layer), (_, following) in pairwise([*parent.named_children(), ("", None)]):
                if isinstance(layer, nn.Conv2d | nn.Linear | Attention | MLP):
                    found[f"{name}.{child}"] = (
                        following if isinstance(following, _BatchNorm | GhostBatchNorm) else layer
                    )
    return found
