"""Shattered gradients: how the gradient of a fresh network varies with its input (Balduzzi et al. 2017, section 2).

Many draws of a network are computed at once, (draws, inputs, units). Centring and batch normalisation use means and
variances over the inputs. The derivative treats these as constants, so that each input has its own gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

Kind = Literal[
    "one_layer",
    "one_layer_literal",
    "feedforward",
    "feedforward_uncentred",
    "resnet",
    "resnet_centred",
    "looks_linear",
]
UNITS = 200  # per hidden layer, N
POINTS, RANGE = 256, 2.0  # the grid: 256 points on [-2, 2]
DRAWS_AT_ONCE = 5  # small enough that a layer's arrays stay in a processor's cache
EPS = 1e-5
LINE_POINTS_AT_ONCE = 64


@dataclass(frozen=True)
class Net:
    """A family of nets and a depth L; `beta` scales the branches of residual ones.

    one_layer is w relu(x - b) with b ~ N(0, 1), so that its kinks lie all over the grid; one_layer_literal has the
    paper's b ~ N(0, 1 / N), so that all kinks lie within about 0.2 of 0. The others have an input layer x v + b, with
    v ~ N(0, 1 / D) for inputs of D values and b ~ N(0, 1 / N), hidden weights N(0, 2 / N) and a readout N(0, 1 / N). In
    feedforward nets all L layers are rectified, and centred except in feedforward_uncentred. resnet has L - 1 blocks
    x + beta W relu(BN(x)) after the input layer, as Theorem 3 counts them; resnet_centred has L blocks
    x + beta W relu(x - mean), as in Theorem 2. looks_linear has L layers with CReLU and mirrored orthogonal weights,
    and a mirrored readout.
    """

    kind: Kind
    depth: int = 1
    beta: float = 1.0


def grid() -> Tensor:
    """Return 256 points from -2 to 2, (256, 1)."""
    return torch.linspace(-RANGE, RANGE, POINTS)[:, None]


def far_inputs(points: int, generator: torch.Generator) -> Tensor:
    """Draw independent inputs ~ N(0, 1), (points, N): distinct and far apart, as the theorems assume."""
    return torch.randn(points, UNITS, generator=generator)


def gradients(net: Net, x: Tensor, draws: int, generator: torch.Generator) -> np.ndarray:
    """Compute df/dx at the inputs x (M, D) for each of `draws` fresh nets, (draws, M, D)."""
    parts = []
    for start in range(0, draws, DRAWS_AT_ONCE):
        some = x.expand(min(DRAWS_AT_ONCE, draws - start), *x.shape).clone().requires_grad_()
        with torch.enable_grad():
            outputs = _output(net, some, generator)
        parts.append(torch.autograd.grad(outputs.sum(), some)[0])
    return torch.cat(parts).numpy()


def line_gradients(model: nn.Module, start: Tensor, end: Tensor, output: int, points: int) -> np.ndarray:
    """Compute df/dt of the logit f with index `output` on the line x = (1 - t) start + t end, t from 0 to 1, (points,).

    `start` and `end` are images (C, H, W). Batch normalisation must use stored statistics, so that each point has its
    own gradient.
    """
    parts = []
    for t in torch.linspace(0, 1, points, dtype=start.dtype, device=start.device).split(LINE_POINTS_AT_ONCE):
        x = torch.lerp(start, end, t.view(-1, 1, 1, 1)).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model(x)[:, output].sum(), x)
        parts.append((gradient * (end - start)).double().flatten(1).sum(1))
    return torch.cat(parts).cpu().numpy()


def _output(net: Net, x: Tensor, generator: torch.Generator) -> Tensor:
    """Compute f(x) (draws, M) of inputs (draws, M, D)."""
    draws, _, inputs = x.shape

    def normal(rows: int, columns: int, variance: float) -> Tensor:
        return torch.randn(draws, rows, columns, generator=generator) * variance**0.5

    if net.kind in ("one_layer", "one_layer_literal"):
        bias = normal(1, UNITS, 1.0 if net.kind == "one_layer" else 1 / UNITS)
        return (relu(x.sum(2, keepdim=True) - bias) @ normal(UNITS, 1, 1 / UNITS))[..., 0]
    x = x @ normal(inputs, UNITS, 1 / inputs) + normal(1, UNITS, 1 / UNITS)
    for layer in range(net.depth):
        match net.kind:
            case "feedforward" | "feedforward_uncentred":
                if net.kind == "feedforward":
                    x = _centred(x)
                x = relu(x)
                if layer < net.depth - 1:
                    x = x @ normal(UNITS, UNITS, 2 / UNITS)
            case "looks_linear":
                x = _looks_linear(x, torch.linalg.qr(normal(UNITS, UNITS, 1.0)).Q)
            case "resnet_centred":
                x = x + net.beta * (relu(_centred(x)) @ normal(UNITS, UNITS, 2 / UNITS))
            case "resnet" if layer > 0:
                x = x + net.beta * (relu(_batch_normalized(x)) @ normal(UNITS, UNITS, 2 / UNITS))
    readout = normal(UNITS, 1, 1 / UNITS)
    x = _looks_linear(x, readout) if net.kind == "looks_linear" else x @ readout
    return x[..., 0]


def _centred(x: Tensor) -> Tensor:
    return x - x.detach().mean(1, keepdim=True)


def _batch_normalized(x: Tensor) -> Tensor:
    return _centred(x) / (x.detach().var(1, unbiased=False, keepdim=True) + EPS).sqrt()


def _looks_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Apply (W, -W) after a CReLU: W relu(x) - W relu(-x) = W x."""
    return torch.cat((relu(x), relu(-x)), 2) @ torch.cat((weight, -weight), 1)


def white_noise(draws: int, generator: torch.Generator, points: int = POINTS) -> np.ndarray:
    """Draw W_k ~ N(0, 1), (draws, points)."""
    return torch.randn(draws, points, generator=generator).numpy()


def brown_noise(draws: int, generator: torch.Generator, points: int = POINTS) -> np.ndarray:
    """Draw B_t, the sum of W_s over s <= t, W_s ~ N(0, 1 / points): (draws, points)."""
    return white_noise(draws, generator, points).cumsum(1) / points**0.5


def autocorrelation(g: np.ndarray, lags: int) -> np.ndarray:
    """Compute r(k), the sum of (g_i - mean)(g_{i+k} - mean) over the sum of squares, for k = 0 to `lags` (Fig. 2).

    g is (draws, M), and the result (draws, lags + 1). A constant sequence, without variance, has r = 1 at all lags.
    """
    g = g.astype(np.float64)
    scale = np.abs(g).max(1, keepdims=True)
    centred = g - g.mean(1, keepdims=True)
    total = (centred**2).sum(1)
    constant = total <= (1e-5 * scale[:, 0]) ** 2 * g.shape[1]
    sums = [(centred[:, : g.shape[1] - k] * centred[:, k:]).sum(1) for k in range(lags + 1)]
    return np.where(constant[:, None], 1.0, np.stack(sums, 1) / np.where(constant, 1.0, total)[:, None])


def covariance_picture(g: np.ndarray) -> np.ndarray:
    """Compute |(g - mean)(g - mean)'| / variance, (M, M), of one sequence g (M,): Fig. 1, bottom row."""
    centred = g.astype(np.float64) - g.mean()
    return np.abs(np.outer(centred, centred)) / max(float((centred**2).mean()), np.finfo(float).tiny)


class GradientMoments(NamedTuple):
    """The mean square of a gradient, and the mean product of the gradients at two far inputs."""

    variance: float
    covariance: float

    @property
    def correlation(self) -> float:
        return self.covariance / self.variance


def moments(g: np.ndarray) -> GradientMoments:
    """Average |g_i|^2, and <g_i, g_j> over pairs i < j, for gradients (draws, M, D)."""
    g = g.astype(np.float64)
    points = g.shape[1]
    squares = (g**2).sum((1, 2))
    pairs = (g.sum(1) ** 2).sum(1) - squares
    return GradientMoments(float(squares.mean() / points), float(pairs.mean() / (points * (points - 1))))


def _normalized(depth: int, beta: float) -> GradientMoments:
    """Return the products of 1 + beta^2 / v_l and of 1 + beta^2 / (2 v_l) over the depth - 1 blocks.

    v_l is the variance that batch normalisation divides by. The paper's v_l = 1 + beta^2 (l - 1) counts the whole
    second moment of a branch. A share 1 / pi of it is the squared mean and not variance, so here
    v_l = 1 + beta^2 (1 - 1 / pi)(l - 1).
    """
    v = 1 + beta**2 * (1 - 1 / np.pi) * np.arange(depth - 1)
    return GradientMoments(float(np.prod(1 + beta**2 / v)), float(np.prod(1 + beta**2 / (2 * v))))


# The exact products of the paper's theorems. For the last entry, the paper prints only the limit 1 / (beta sqrt(L)).
# At initialisation half of the units are active at one input, and a quarter at both of two far inputs.
THEORY: dict[Kind, Callable[[int, float], GradientMoments]] = {
    # Both moments are half of Theorem 1's, since the readout after the last ReLU has variance 1 / N and not 2 / N.
    "feedforward": lambda depth, beta: GradientMoments(0.5, 0.5 ** (depth + 1)),
    # Theorem 2.
    "resnet_centred": lambda depth, beta: GradientMoments((1 + beta**2) ** depth, (1 + beta**2 / 2) ** depth),
    "resnet": _normalized,  # Theorem 3
}
