"""Signals on their way through the units: channel statistics, correlation of inputs, the Jacobian's singular values."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepnets.analysis.meanfield import Moments
from deepnets.analysis.walk import Walk, terms
from deepnets.errors import UserError

ROWS_AT_ONCE = 64  # of the Jacobian, in one backward pass


@dataclass(frozen=True)
class Propagation:
    """Of each unit's output, (units,), on a batch of images.

    Brock et al. 2021: `squared_mean` and `variance` of a channel over images and pixels, averaged over channels, and
    `branch_variance`, that of what F(x) adds to the sum. `moments` holds the mean square and the mean product at two
    different images; `start` is that of the first unit's input.
    """

    squared_mean: np.ndarray
    variance: np.ndarray
    branch_variance: np.ndarray
    moments: list[Moments]
    start: Moments


def propagation(walk: Walk, x: Tensor) -> Propagation:
    """The propagation of images x (N, C, H, W), N at least 2."""
    rows, moments = [], []
    with torch.inference_mode():
        x = walk.before[0](x)
        start = moments_of(x)
        for index, (unit, before, b) in enumerate(zip(walk.units, walk.before, walk.b, strict=True)):
            h, y = terms(unit, x if index == 0 else before(x), b)
            x = unit.after(y)
            mean, variance = _channels(x)
            rows.append((mean, variance, _channels(y - h)[1]))
            moments.append(moments_of(x))
    squared_mean, variance, branch = np.array(rows).T
    return Propagation(squared_mean, variance, branch, moments, start)


def moments_of(x: Tensor) -> Moments:
    """The mean square of states x (N, ...) over all values, and the mean product over pairs of different images."""
    x = x.double().flatten(1)
    images, values = x.shape
    squares = x.square().sum().item()
    pairs = x.sum(0).square().sum().item() - squares
    return Moments(squares / (images * values), pairs / (images * (images - 1) * values))


def _channels(x: Tensor) -> tuple[float, float]:
    """The square of a channel's mean, and its variance, over images and pixels or tokens; means over channels."""
    channels = x.double().movedim(-1 if x.dim() == 3 else 1, 0).flatten(1)
    return channels.mean(1).square().mean().item(), channels.var(1, correction=0).mean().item()


def singular_values(walk: Walk, x: Tensor, most: int) -> tuple[np.ndarray, int]:
    """All singular values of the Jacobian from the first unit's input to the last unit's output, the greatest first.

    x (1, C, H, W) is one image, of which the middle is taken, so that the output has at most `most` values; returns its
    height too. Batch normalisation must use stored statistics, or a cropped image has others.

    Raises:
        UserError: the output has too many values even of the smallest crop.
    """
    size = x.shape[-1]
    while size >= 1:
        top, left = ((side - size) // 2 for side in x.shape[-2:])
        cropped = x[..., top : top + size, left : left + size]
        start, output = _ends(walk, cropped) if _accepts(walk, cropped) else (None, None)
        if start is not None and output is not None and output.numel() <= most:
            break
        size //= 2
    else:
        raise UserError(f"--jacobian {most}: the last unit's output has more values for every crop that the net takes")
    rows = []
    for unit_vectors in torch.eye(output.numel(), dtype=x.dtype, device=x.device).split(ROWS_AT_ONCE):
        copies = start.detach().expand(len(unit_vectors), *start.shape[1:]).clone().requires_grad_()
        with torch.enable_grad():
            outputs = _through(walk, copies)
        (gradient,) = torch.autograd.grad(outputs, copies, unit_vectors.view_as(outputs))
        rows.append(gradient.flatten(1))
    return torch.linalg.svdvals(torch.cat(rows)).cpu().numpy(), size


def _accepts(walk: Walk, x: Tensor) -> bool:
    """Whether the net takes images of this size: a fully connected one and a transformer have one size."""
    try:
        _ends(walk, x)
    except (RuntimeError, ValueError):
        return False
    return True


def _ends(walk: Walk, x: Tensor) -> tuple[Tensor, Tensor]:
    """The first unit's input and the last unit's output."""
    with torch.no_grad():
        start = walk.before[0](x)
        return start, _through(walk, start)


def _through(walk: Walk, x: Tensor) -> Tensor:
    for index, (unit, before, b) in enumerate(zip(walk.units, walk.before, walk.b, strict=True)):
        x = unit(x if index == 0 else before(x), b)
    return x
