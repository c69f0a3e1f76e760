"""Gradients and signals over depth: how large they are at each unit, and by how much shortcuts scale a gradient.

Signals are the values that units and layers put out in the forward pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from deepnets.analysis.walk import Walk, terms, unchanged
from deepnets.errors import UserError
from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.shortcuts import Dropped, Gated, Identity, Scaled
from deepnets.models.transformer import MLP, Attention
from deepnets.models.unit import Unit

BATCH = 128  # images in one backward pass, which holds all their activations; the papers train with as many
CANCELLED = 0.1  # branches cancel a gradient if the whole is less than this share of its part through shortcuts
CHANGED = 0.01  # a unit is named if its factor differs by more than this share from its shortcut's factor
MOST_NAMED = 5  # if more units than this differ, they are only counted


def gradient_norms(walk: Walk, x: Tensor, labels: Tensor) -> np.ndarray:
    """Compute ||dL/dx_l|| of each unit's output x_l, (units,): L2 over an image, averaged over images x (N, C, H, W).

    L is the sum of the images' cross-entropies, so that an image's gradient does not depend on N. If a ReLU follows the
    addition of unit l, x_l is the ReLU's output. More than BATCH images are split into batches.
    """
    count = ceil(len(x) / BATCH)
    batches = zip(x.tensor_split(count), labels.tensor_split(count), strict=True)
    return np.sum([_summed_norms(walk, *batch) for batch in batches], axis=0) / len(x)


def _summed_norms(walk: Walk, x: Tensor, labels: Tensor) -> np.ndarray:
    outputs = []
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        for unit, before, b in walk:
            x = unit(before(x), b)
            outputs.append(x)
        loss = cross_entropy(walk.end(x), labels, reduction="sum")
    gradients = torch.autograd.grad(loss, outputs)
    return torch.stack([gradient.double().flatten(1).norm(dim=1).sum() for gradient in gradients]).cpu().numpy()


def first_to_last(norms: np.ndarray) -> float:
    """Divide the first unit's gradient norm by the last unit's; NaN if the last unit's is 0."""
    return float(norms[0] / norms[-1]) if norms[-1] else float("nan")


@dataclass(frozen=True)
class Signals:
    """Statistics of each unit's output, (units,): mean, deviation, 10th and 90th percentile, share of values below 0.

    `shortcut` and `branch` are the root mean squares of the two terms of the unit's sum: h(x), and what F(x) adds.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    negative: np.ndarray
    shortcut: np.ndarray
    branch: np.ndarray


def signals(walk: Walk, x: Tensor) -> Signals:
    """Measure each unit's output, and the two terms of its sum, on images x (N, C, H, W)."""
    rows = []
    with torch.inference_mode():
        for unit, before, b in walk:
            h, y = terms(unit, before(x), b)
            x = unit.after(y)
            values = x.double().flatten().cpu().numpy()
            low, high = np.percentile(values, (10, 90))
            rows.append((values.mean(), values.std(), low, high, (values < 0).mean(), _rms(h), _rms(y - h)))
    return Signals(*np.array(rows).T)


def _rms(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()


def clipped(walk: Walk, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Count the values below 0, which the ReLU after each unit's addition clips to 0, and all values that enter it.

    Both counts are arrays (units,), with 0 for a unit without such a ReLU. This is not gradient clipping.

    Raises:
        UserError: no unit has such a ReLU.
    """
    if not any(isinstance(layer, nn.ReLU) for unit in walk.units for layer in unit.after.children()):
        raise UserError("no ReLU follows an addition here: choose for example model/ordering=original")
    below, values = np.zeros(len(walk)), np.zeros(len(walk))
    with torch.inference_mode():
        for x, _ in batches:
            for index, (unit, before, b) in enumerate(walk):
                _, x = terms(unit, before(x), b)
                for layer in unit.after.children():
                    if isinstance(layer, nn.ReLU):
                        below[index] += (x < 0).sum().item()
                        values[index] += x.numel()
                    x = layer(x)
    return below, values


def responses(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Map each layer's name to the standard deviation of its response over all images, channels and positions.

    These are the layers with weights, except head and shortcuts. A response is the output of the BN that follows the
    layer, or of the layer if no BN follows; ReLU and addition come later. He et al. 2015, section 4.2 and Fig. 7.
    """
    layers = _response_layers(model)
    sums = {name: np.zeros(3) for name in layers}

    def note(total: np.ndarray, _: nn.Module, __: tuple[Tensor, ...], response: Tensor) -> None:
        response = response.double()
        total += (response.numel(), response.sum().item(), (response**2).sum().item())

    observers = [module.register_forward_hook(partial(note, sums[name])) for name, module in layers.items()]
    try:
        with torch.inference_mode():
            for x, _ in batches:
                model(x)
    finally:
        for observer in observers:
            observer.remove()
    return {
        name: float(np.sqrt(max(squares / count - (total / count) ** 2, 0.0)))
        for name, (count, total, squares) in sums.items()
    }


def _response_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Map the name of each layer with weights to the module that puts out its response: its BN, or the layer.

    Names are in the order of the net. A transformer's attention or MLP counts as one layer.
    """
    layers: dict[str, nn.Module] = {}
    for name, parent in model.named_modules():
        if isinstance(parent, nn.Sequential) and "shortcut" not in name.split("."):
            for (child, layer), (_, following) in pairwise([*parent.named_children(), ("", None)]):
                if isinstance(layer, nn.Conv2d | nn.Linear | Attention | MLP):
                    layers[f"{name}.{child}"] = (
                        following if isinstance(following, _BatchNorm | GhostBatchNorm) else layer
                    )
    return layers


@dataclass(frozen=True)
class Bypass:
    """The factors by which each unit scales a gradient that passes only through shortcuts, (units,).

    `shortcut` is the measured factor of the shortcut alone, `formula` the same factor by formula, and `whole` the
    measured factor of the shortcut together with the unit's `before` and `after`.
    """

    shortcut: np.ndarray
    formula: np.ndarray
    whole: np.ndarray

    @property
    def numbers(self) -> dict[str, float]:
        """The products of `shortcut` and of `whole` over the units, for a finding."""
        return {"shortcut_product": float(np.prod(self.shortcut)), "bypass_product": float(np.prod(self.whole))}

    def sentence(self, when: str, fresh: bool = True) -> str:
        """Describe both products over the units, and name the units whose factor differs from their shortcut's.

        The formula is left out unless the net is `fresh`, since training changes gates.
        """
        product, formula = np.prod(self.shortcut), np.prod(self.formula)
        text = f"product of {len(self.shortcut)} shortcuts {product:.4g} {when}"
        text += "" if np.isnan(formula) or not fresh else f" (formula {formula:.4g})"
        text += f"; with the layers before and after the additions they scale a gradient by {np.prod(self.whole):.4g}"
        changed = np.flatnonzero(~np.isclose(self.whole, self.shortcut, rtol=CHANGED))
        if not len(changed):
            return text
        if len(changed) > MOST_NAMED:
            return f"{text}: {len(changed)} of {len(self.whole)} units scale it by another factor than their shortcuts"
        names = ", ".join(f"number {index + 1} (by {self.whole[index]:.3g})" for index in changed)
        return f"{text}: of the {len(self.whole)} units, {names} scale it by another factor than their shortcuts"


def bypass_of(walk: Walk, x: Tensor, seed: int) -> Bypass:
    """Measure all factors of `Bypass` on the images x (N, C, H, W); the seed draws the gradients that are scaled."""
    generator = torch.Generator().manual_seed(seed)
    return Bypass(shortcut_factors(walk, x, generator), shortcut_formula(walk), bypass_factors(walk, x, generator))


def shortcut_factors(walk: Walk, x: Tensor, generator: torch.Generator) -> np.ndarray:
    """Measure by how much each unit's h scales a gradient that passes through it, (units,): 0 for plain units.

    The factor is ||J^T v|| / ||S^T v|| over the batch x (N, C, H, W), with v ~ N(0, 1), the Jacobian J of h, and the
    Jacobian S of h's change of shape alone. In He et al. 2016, Eq. 7, the product of these factors scales a gradient
    that takes no branch; `bypass_factors` also measures the other layers that scale it.
    """
    with torch.no_grad():
        inputs = walk.inputs(x)[:-1]
    return np.array([_shortcut_factor(unit, state, generator) for unit, state in zip(walk.units, inputs, strict=True)])


def _shortcut_factor(unit: Unit, x: Tensor, generator: torch.Generator) -> float:
    if unit.is_plain:
        return 0.0
    with torch.no_grad():
        x = unit.before(x)
    x.requires_grad_()
    with torch.enable_grad():
        h = unit.shortcut(x, unit.zero(x))
        v = torch.randn(h.shape, generator=generator, dtype=h.dtype).to(h.device)
        (pulled,) = torch.autograd.grad(h, x, v)
        resize = getattr(unit.shortcut, "resize", None)
        reference = v if resize is None else _through(resize, x, v)
    return (pulled.double().norm() / reference.double().norm()).item()


def shortcut_formula(walk: Walk) -> np.ndarray:
    """Compute `shortcut_factors` of a fresh net by formula: a constant, 1 - sigmoid(b) for a gate, NaN for others."""
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


def bypass_factors(walk: Walk, x: Tensor, generator: torch.Generator) -> np.ndarray:
    """Measure by how much each unit scales a gradient that passes through no branch, (units,).

    With the layers e before the split and f after the addition, a unit and its Jacobian without the branch are

        x_l+1 = f(y)        J = f'(y) h'(e(x_l)) e'(x_l),    y = h(e(x_l)) + b F(e(x_l))

    We draw v_L ~ N(0, 1) at the last unit's output and pull it back: v_l = J_l^T v_l+1. The factor of unit l is
    ||J_l^T v_l+1|| / ||S^T v_l+1||, where S is the Jacobian of its change of shape alone. The factors contain e and f,
    such as a ReLU after the addition or a normalisation before a stage; `shortcut_factors` contain h alone. A plain
    unit and all units before it have the factor 0. The gradient is also pulled back through layers between two units,
    e.g. pooling, but they count for neither unit. He et al. 2016, Eq. 5.
    """
    steps = []
    with torch.no_grad():
        for unit, before, b in walk:
            steps.append((unit, before, b, x))
            x = unit(before(x), b)
    gradient = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    factors: list[float] = []
    for unit, before, b, x in reversed(steps):
        gradient, factor = _past_branch(unit, before(x), b, gradient)
        factors.append(factor)
        if before is not unchanged and len(factors) < len(steps):  # the stem is left out
            x = x.requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(before(x), x, gradient)
            gradient = gradient / (gradient.norm() or 1.0)
    return np.array(factors[::-1])


def _past_branch(unit: Unit, x: Tensor, b: float, gradient: Tensor) -> tuple[Tensor, float]:
    """Return the gradient at a unit's input x, scaled to norm 1, and the unit's factor as in `bypass_factors`."""
    if unit.is_plain:
        return torch.zeros_like(x), 0.0
    pulled = _pulled_past_branch(unit, x, b, gradient)
    resize = getattr(unit.shortcut, "resize", None)
    with torch.no_grad():
        split = unit.before(x)
    with torch.enable_grad():
        reference = gradient if resize is None else _through(resize, split.detach().requires_grad_(), gradient)
    norm = reference.double().norm().item()
    size = pulled.double().norm().item()
    return pulled / (size or 1.0), size / norm if norm else 0.0  # scaled, or it could underflow


def _pulled_past_branch(unit: Unit, x: Tensor, b: float, gradient: Tensor) -> Tensor:
    """Pull the gradient at a unit's output back to its input x, without the branch; 0 for a plain unit."""
    if unit.is_plain:
        return torch.zeros_like(x)
    with torch.no_grad():
        split = unit.before(x)
        y = unit.shortcut(split, b * unit.branch(split))
    x, y = (state.detach().requires_grad_() for state in (x, y))
    with torch.enable_grad():
        (at_y,) = torch.autograd.grad(unit.after(y), y, gradient)
        split = unit.before(x)
        h = unit.shortcut(split, unit.zero(split))  # r = 0: what a gate lets through of r belongs to the branch
        (pulled,) = torch.autograd.grad(h, x, at_y)
    return pulled


def _through(resize: nn.Module, x: Tensor, v: Tensor) -> Tensor:
    """Pull v back through the change of shape; for a concatenation, through its first channels, which are x."""
    resized = resize(x)
    return torch.autograd.grad(resized, x, v[:, : resized.shape[1]])[0]


@dataclass(frozen=True)
class Cancelled:
    """How often branches cancel the gradient that passes through shortcuts, (units,); NaN without such a gradient.

    `values` and `images` are the shares of coordinates and of images where a unit's own branch cancels it. `values_all`
    and `images_all` are the shares where the branches of this unit and of all later units together cancel it.
    """

    values: np.ndarray
    images: np.ndarray
    values_all: np.ndarray
    images_all: np.ndarray

    @property
    def most(self) -> dict[str, float]:
        """The largest value of each share over the units, for a finding; NaN if all values are NaN."""
        shares = vars(self).items()
        return {name: float("nan") if np.isnan(array).all() else float(np.nanmax(array)) for name, array in shares}

    def sentence(self, when: str) -> str:
        """Name, for coordinates and for images, the share that is cancelled in the unit where it is largest."""
        values, images, values_all, images_all = (f"{100 * share:.2g}%" for share in self.most.values())
        text = f"{values} of coordinates and {images} of images {when}"
        return f"{text} (with all later branches {values_all}, {images_all})"


def cancelled(walk: Walk, x: Tensor, labels: Tensor) -> Cancelled:
    """Measure where branches cancel the gradient through shortcuts, on images x (N, C, H, W).

    He et al. 2016, Eq. 5: dL/dx_l = dL/dx_L (1 + d/dx_l sum_{i=l}^{L-1} F(x_i)) is not cancelled out, since the second
    term cannot be -1 for all samples of a mini-batch. Here x_l is the input of unit l, and the first term is dL/dx_L
    pulled back without the branches (`bypass_factors`). A coordinate counts as cancelled if the whole gradient is
    smaller than CANCELLED times the first term there; an image, if this holds for the L2 norms. Coordinates and images
    whose first term is 0 are left out. For a unit's own branch, x_L is the unit's output.
    """
    count = ceil(len(x) / BATCH)
    batches = zip(x.tensor_split(count), labels.tensor_split(count), strict=True)
    counts = np.sum([_count_cancelled(walk, *batch) for batch in batches], axis=0)  # (units, 4, 2)
    shares = np.where(counts[..., 1] > 0, counts[..., 0] / np.maximum(counts[..., 1], 1), np.nan)
    return Cancelled(*shares.T)


def _count_cancelled(walk: Walk, x: Tensor, labels: Tensor) -> np.ndarray:
    """Count, for each field of `Cancelled`, the cancelled cases and all cases that are not left out: (units, 4, 2)."""
    inputs, outputs = [], []
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        for unit, before, b in walk:
            inputs.append(before(x))
            x = unit(inputs[-1], b)
            outputs.append(x)
        loss = cross_entropy(walk.end(x), labels, reduction="sum")
    gradients = torch.autograd.grad(loss, [*inputs, *outputs])
    at_inputs, at_outputs = gradients[: len(walk)], gradients[len(walk) :]
    counts = []
    past_later = at_outputs[-1]  # pulled back without the branches of this unit and all later ones
    for index in reversed(range(len(walk))):
        unit, state, b = walk.units[index], inputs[index].detach(), walk.b[index]
        past_own = _pulled_past_branch(unit, state, b, at_outputs[index])
        past_later = _pulled_past_branch(unit, state, b, past_later)
        whole = at_inputs[index]
        counts.append([*_smaller(whole, past_own), *_smaller(whole, past_later)])
        if index and walk.before[index] is not unchanged:
            previous = outputs[index - 1].detach().requires_grad_()
            with torch.enable_grad():
                (past_later,) = torch.autograd.grad(walk.before[index](previous), previous, past_later)
    return np.array(counts[::-1])


def _smaller(whole: Tensor, direct: Tensor) -> list[tuple[int, int]]:
    """Count where `whole` is below CANCELLED times `direct`, and where `direct` is not 0: coordinates, then images."""
    whole, direct = whole.double().abs(), direct.double().abs()
    pairs = ((whole, direct), (whole.flatten(1).norm(dim=1), direct.flatten(1).norm(dim=1)))
    return [(int((a < CANCELLED * d).sum()), int((d > 0).sum())) for a, d in pairs]
