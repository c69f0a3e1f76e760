"""Loss surfaces: the loss over a plane or a line in the space of weights (Li et al. 2018)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError

Weights = Mapping[str, Tensor]  # parameters by name


def random_direction(weights: Weights, generator: torch.Generator) -> dict[str, Tensor]:
    """N(0, 1) for every weight, each filter scaled to the norm of the net's own; 0 for biases and normalisation.

    A filter is what makes one output: a layer's weights by their first dimension. Li et al. 2018, section 4.
    """
    directions = {}
    for name, weight in weights.items():
        drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
        if weight.dim() > 1:
            norms, own = (each.flatten(1).norm(dim=1) for each in (drawn, weight))
            directions[name] = drawn * (own / norms).view(-1, *[1] * (weight.dim() - 1))
        else:
            directions[name] = torch.zeros_like(weight)
    return directions


def difference(start: Weights, end: Weights) -> dict[str, Tensor]:
    """The direction that leads from one net to another in a step of 1.

    Raises:
        UserError: they are nets of different shapes.
    """
    if {name: weight.shape for name, weight in start.items()} != {name: weight.shape for name, weight in end.items()}:
        raise UserError("a line joins two runs of one network; these two have different layers")
    return {name: end[name] - weight for name, weight in start.items()}


def score_at(
    model: nn.Module, weights: Weights, steps: Sequence[tuple[float, Weights]], x: Tensor, labels: Tensor
) -> tuple[float, float]:
    """Mean cross-entropy and error (%) on the images x (N, C, H, W), some steps away from `weights`.

    Batch normalisation of `model` must be in training mode: statistics are those of the same images, as they would be
    after a recomputation at this point. Not finite far away, where a net overflows.
    """
    moved = dict(weights)
    for size, direction in steps:
        moved = {name: weight + size * direction[name] for name, weight in moved.items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.inference_mode():
        logits = functional_call(model, (moved, buffers), x).float()
    wrong = (logits.argmax(1) != labels).double().mean().item()
    return cross_entropy(logits, labels).item(), 100 * wrong


def nonconvexity(losses: np.ndarray) -> float:
    """The share of second differences along rows and columns of a surface (points, points) that lie below 0."""
    found = np.concatenate([np.diff(losses, 2, axis=axis).ravel() for axis in range(losses.ndim)])
    finite = found[np.isfinite(found)]
    return float((finite < -1e-6 * np.abs(losses[np.isfinite(losses)]).max()).mean()) if len(finite) else float("nan")
