"""Mean-field theory of random networks: how lengths and correlations of signals change from layer to layer.

Poole et al. 2016; Schoenholz et al. 2017. In a wide net with weights of variance sigma_w^2 / fan_in and biases of
variance sigma_b^2, u = W x + b is Gaussian; phi is what follows; q = <u^2>, and c is its correlation at two inputs. By
chi = sigma_w^2 <phi'(u)^2> the square of a perturbation grows in a layer: below 1 in the ordered phase, above 1 in the
chaotic one.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from torch import Tensor, nn

from deepnets.analysis.walk import Walk, unchanged

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
Phi = type[nn.ReLU] | type[nn.Tanh]
GREATEST_LENGTH = 1e3  # q; tanh is a sign long before


@dataclass(frozen=True)
class Moments:
    """Of a signal: its mean square `length` at an input, and its mean product `product` at two inputs.

    `growth` is by how much the square of a small perturbation has grown on its way: the mean squared singular value of
    the Jacobian.
    """

    length: float
    product: float
    growth: float = 1.0

    @property
    def correlation(self) -> float:
        return self.product / self.length if self.length else 1.0


def weighted(x: Moments, weight_variance: float, bias_variance: float) -> Moments:
    """Moments of W x + b."""
    length, product = (weight_variance * moment + bias_variance for moment in (x.length, x.product))
    return Moments(length, product, weight_variance * x.growth)


def activated(phi: Phi, u: Moments) -> Moments:
    """Moments of phi(u): q / 2 and the arc-cosine kernel of a ReLU (Cho and Saul 2009), tanh by quadrature."""
    q, c, growth = u.length, min(max(u.correlation, -1.0), 1.0), u.growth * slope(phi, u.length)
    if phi is nn.ReLU:
        return Moments(q / 2, q / (2 * np.pi) * (np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))), growth)
    first = np.sqrt(q) * NODES
    second = c * first[:, None] + np.sqrt(q * (1 - c * c)) * NODES
    product = WEIGHTS @ (np.tanh(first) * (np.tanh(second) @ WEIGHTS))
    return Moments(float(WEIGHTS @ np.tanh(first) ** 2), float(product), growth)


def slope(phi: Phi, q: float) -> float:
    """<phi'(u)^2> for u ~ N(0, q)."""
    return 0.5 if phi is nn.ReLU else float(WEIGHTS @ np.cosh(np.sqrt(q) * NODES) ** -4)


def critical_weight_variance(phi: Phi, bias_variance: float) -> float:
    """sigma_w^2 at which chi = 1 at the length q* that layers do not change: 2 for ReLU, 1 for tanh without biases.

    On that line both sigmas are functions of q*: sigma_w^2 = 1 / <phi'^2>, sigma_b^2 = q* - sigma_w^2 <phi^2>.
    """
    if phi is nn.ReLU:
        return 2.0
    if bias_variance == 0:
        return 1.0

    def biased(q: float) -> float:
        return q - activated(phi, Moments(q, q)).length / slope(phi, q) - bias_variance

    return 1 / slope(phi, brentq(biased, 1e-12, GREATEST_LENGTH, xtol=1e-15))


def theory_of(walk: Walk, start: Moments) -> list[Moments] | None:
    """The moments behind each unit, from those in front of the first.

    None where the theory does not reach: it takes plain units of linear layers or convolutions, ReLU and tanh, with
    nothing between them. A sum with a rectified x is not Gaussian, and batch normalisation couples the inputs.
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
    """sigma_w^2, fan_in times the mean square of the weights, and sigma_b^2, the mean square of the biases."""
    fan_in = weight[0].numel()
    square = 0.0 if bias is None else bias.double().square().mean().item()
    return fan_in * weight.double().square().mean().item(), square
