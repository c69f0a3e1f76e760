"""Measures signals on their way through units: channel statistics, correlation of inputs, singular values of Jacobians.

Mean-field theory predicts lengths and correlations for random networks (Poole et al. 2016; Schoenholz et al. 2017). In
a wide net with weights of variance sigma_w^2 / fan_in and biases of variance sigma_b^2, u = W x + b is Gaussian; the
layer returns phi(u). q is <u^2>, and c is the correlation of u at two inputs. Each layer multiplies the square of a
small perturbation by chi = sigma_w^2 <phi'(u)^2>, which is below 1 in the ordered phase and above 1 in the chaotic.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from deepnets.analysis.walk import Walk, terms, unchanged
from deepnets.errors import UserError

ROWS_AT_ONCE = 64  # rows of the Jacobian that one backward pass computes
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
Phi = type[nn.ReLU] | type[nn.Tanh]
GREATEST_LENGTH = 1e3  # the largest q that is tried; tanh is already like the sign function at much smaller q


@dataclass(frozen=True)
class Moments:
    """`length` is a signal's mean square at one input, and `product` is its mean product at two inputs.

    `growth` is the factor by which theory lets the square of a small perturbation grow from the first unit's input on:
    the mean squared singular value of the Jacobian. Only theory computes it; in measured moments it is 1.
    """

    length: float
    product: float
    growth: float = 1.0

    @property
    def correlation(self) -> float:
        return self.product / self.length if self.length else 1.0


@dataclass(frozen=True)
class Propagation:
    """Statistics of each unit's output on a batch of images, (units,).

    `squared_mean` and `variance` are a channel's squared mean and variance over images and pixels, averaged over
    channels (Brock et al. 2021). `branch_variance` is this variance for y - h(x), the branch's part of y. `moments`
    holds the mean square and the mean product at two different images; `start` holds both for the first unit's input.
    """

    squared_mean: np.ndarray
    variance: np.ndarray
    branch_variance: np.ndarray
    moments: list[Moments]
    start: Moments


def propagation(walk: Walk, x: Tensor) -> Propagation:
    """Measure how the signals of at least 2 images x (N, C, H, W) change from unit to unit."""
    rows, moments = [], []
    with torch.inference_mode():
        x = walk.before[0](x)
        start = moments_of(x)
        for index, (unit, before, b) in enumerate(walk):
            h, y = terms(unit, x if index == 0 else before(x), b)
            x = unit.after(y)
            mean, variance = _channels(x)
            rows.append((mean, variance, _channels(y - h)[1]))
            moments.append(moments_of(x))
    squared_mean, variance, branch = np.array(rows).T
    return Propagation(squared_mean, variance, branch, moments, start)


def moments_of(x: Tensor) -> Moments:
    """Return the mean square of states x (N, ...) over all values, and the mean product over pairs of images."""
    x = x.double().flatten(1)
    images, values = x.shape
    squares = x.square().sum().item()
    pairs = x.sum(0).square().sum().item() - squares
    return Moments(squares / (images * values), pairs / (images * (images - 1) * values))


def _channels(x: Tensor) -> tuple[float, float]:
    """Return a channel's squared mean and variance over images and pixels or tokens, averaged over channels."""
    channels = x.double().movedim(-1 if x.dim() == 3 else 1, 0).flatten(1)
    return channels.mean(1).square().mean().item(), channels.var(1, correction=0).mean().item()


def singular_values(walk: Walk, x: Tensor, most: int) -> tuple[np.ndarray, int]:
    """Return all singular values of the Jacobian from the first unit's input to the last unit's output, greatest first.

    x (1, C, H, W) is one image. A square around its middle is halved until the net takes it and the output has at most
    `most` values; the second result is the side of the square. Batch normalisation must use stored statistics, since
    those of a crop differ.

    Raises:
        UserError: the output has more than `most` values for every such square that the net takes.
    """
    size = min(x.shape[-2:])
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
    """Return whether the net takes images of this size: a fully connected net or a transformer takes only one."""
    try:
        _ends(walk, x)
    except (RuntimeError, ValueError):
        return False
    return True


def _ends(walk: Walk, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first unit's input and the last unit's output."""
    with torch.no_grad():
        start = walk.before[0](x)
        return start, _through(walk, start)


def _through(walk: Walk, x: Tensor) -> Tensor:
    for index, (unit, before, b) in enumerate(walk):
        x = unit(x if index == 0 else before(x), b)
    return x


def theory_of(walk: Walk, start: Moments) -> list[Moments] | None:
    """Compute the moments after each unit from the moments `start` before the first unit.

    Returns None for a net that the theory does not cover: it needs plain units of linear layers or convolutions, ReLU
    and tanh, with nothing between the units. With a shortcut, the sum contains a rectified x and is not Gaussian;
    batch normalisation makes an output depend on all inputs.
    """
    if any(before is not unchanged for before in walk.before[1:]):
        return None
    moments: list[Moments] = []
    for unit in walk.units:
        parts = [*unit.before.children(), *unit.branch.children(), *unit.after.children()]
        if not unit.is_plain or not all(type(part) in (nn.Linear, nn.Conv2d, nn.ReLU, nn.Tanh) for part in parts):
            return None
        start = _chained(unit.branch, _chained(unit.before, start))
        start = weighted(start, float(getattr(unit.shortcut, "branch_scale", 1)) ** 2, 0.0)
        start = _chained(unit.after, start)
        moments.append(start)
    return moments


def _chained(parts: nn.Module, x: Moments) -> Moments:
    for part in parts.children():
        if isinstance(part, nn.Linear | nn.Conv2d):
            x = weighted(x, *variances(part.weight, part.bias))
        else:
            x = activated(nn.ReLU if isinstance(part, nn.ReLU) else nn.Tanh, x)
    return x


def variances(weight: Tensor, bias: Tensor | None) -> tuple[float, float]:
    """Return sigma_w^2 (fan_in times the mean square of the weights) and sigma_b^2 (the mean square of the biases)."""
    fan_in = weight[0].numel()
    square = 0.0 if bias is None else bias.double().square().mean().item()
    return fan_in * weight.double().square().mean().item(), square


def weighted(x: Moments, weight_variance: float, bias_variance: float) -> Moments:
    """Return the moments of W x + b."""
    length, product = (weight_variance * moment + bias_variance for moment in (x.length, x.product))
    return Moments(length, product, weight_variance * x.growth)


def activated(phi: Phi, u: Moments) -> Moments:
    """Return the moments of phi(u), by the arc-cosine kernel for ReLU (Cho, Saul 2009) and by quadrature for tanh."""
    q, c, growth = u.length, min(max(u.correlation, -1.0), 1.0), u.growth * mean_squared_slope(phi, u.length)
    if phi is nn.ReLU:
        return Moments(q / 2, q / (2 * np.pi) * (np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))), growth)
    first = np.sqrt(q) * NODES
    second = c * first[:, None] + np.sqrt(q * (1 - c * c)) * NODES
    product = WEIGHTS @ (np.tanh(first) * (np.tanh(second) @ WEIGHTS))
    return Moments(float(WEIGHTS @ np.tanh(first) ** 2), float(product), growth)


def mean_squared_slope(phi: Phi, q: float) -> float:
    """Return <phi'(u)^2> for u ~ N(0, q)."""
    return 0.5 if phi is nn.ReLU else float(WEIGHTS @ np.cosh(np.sqrt(q) * NODES) ** -4)


def critical_weight_variance(phi: Phi, bias_variance: float) -> float:
    """Return the sigma_w^2 with chi = 1 at the length q* that layers preserve: 2 for ReLU, 1 for tanh without biases.

    If chi = 1, both sigmas are functions of q*: sigma_w^2 = 1 / <phi'^2>, sigma_b^2 = q* - sigma_w^2 <phi^2>.
    """
    if phi is nn.ReLU:
        return 2.0
    if bias_variance == 0:
        return 1.0

    def biased(q: float) -> float:
        return q - activated(phi, Moments(q, q)).length / mean_squared_slope(phi, q) - bias_variance

    return 1 / mean_squared_slope(phi, brentq(biased, 1e-12, GREATEST_LENGTH, xtol=1e-15))
