"""Shows analyses a network as a sequence of units, and chooses the statistics of its batch normalisation."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepnets.errors import UserError, first_line
from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.unit import Unit

JOIN = (
    "give it a property `parts`, the modules that an image passes in their order, with deepnets.models.unit.Unit among "
    "them or their children (docs/networks.md)"
)


@dataclass(frozen=True)
class Walk:
    """A network in evaluation mode: x = before[i](x), x = units[i](x, b[i]) for i = 0, 1, ..., then logits = end(x).

    `b` scales each branch at test time; it is 1, except with stochastic depth. `stages` holds the stage of each unit,
    counted from 0.
    """

    units: list[Unit]
    before: list[Callable[[Tensor], Tensor]]
    end: Callable[[Tensor], Tensor]
    b: list[float]
    stages: list[int]

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[tuple[Unit, Callable[[Tensor], Tensor], float]]:
        """Yield each unit, what is before it, and the scale b of its branch."""
        return zip(self.units, self.before, self.b, strict=True)

    def inputs(self, x: Tensor) -> list[Tensor]:
        """Return the input of each unit, and the logits, for the images x."""
        states = []
        for unit, before, b in self:
            states.append(before(x))
            x = unit(states[-1], b)
        return [*states, self.end(x)]


def walk_of(model: nn.Module) -> Walk:
    """Return the walk through `model.parts`, in order. A part is a `Unit`, has `Unit`s as children, or is a layer.

    Raises:
        UserError: the network is in training mode, does not say what its parts are, or has no units.
    """
    if model.training:
        raise UserError("this network is in training mode, where its output depends on the batch: call model.eval()")
    parts: Sequence[Any] | None = getattr(model, "parts", None)
    if parts is None:
        raise UserError(f"{type(model).__name__}: does not say which units it has; {JOIN}")
    units: list[Unit] = []
    before: list[Callable[[Tensor], Tensor]] = []
    stages: list[int] = []
    pending: list[Callable[[Tensor], Tensor]] = []
    stage = -1
    for module in parts:
        inner = list(module.children()) if isinstance(module, nn.Module) and not isinstance(module, Unit) else []
        has_units = any(isinstance(part, Unit) for part in inner)
        stage += has_units
        for part in inner if has_units else [module]:
            if isinstance(part, Unit):
                units.append(part)
                before.append(_chain(pending))
                stages.append(max(stage, 0))
                pending = []
            else:
                pending.append(part)
    if not units:
        raise UserError(f"this network has no units to look at: choose a greater depth, or, if it is your own, {JOIN}")
    survival = getattr(model, "survival", None)
    b = survival.expected(len(units)) if survival else [1.0] * len(units)
    return Walk(units, before, _chain(pending), b, stages)


def check_parts(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Check on two images of noise (C, H, W), on the CPU, that a network's `parts` give the same logits as its forward.

    Raises:
        UserError: one does not fit to the next, or their logits differ from the forward's.
    """
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(x)
        try:
            walked = walk_of(model).inputs(x)[-1]
        except Exception as error:  # modules of the user's own may raise anything
            raise UserError(
                f"{type(model).__name__}: its parts do not fit together in their order: {first_line(error)}. All that "
                "its forward does to an image, pooling and flattening too, must be a module among them"
            ) from error
    if logits.shape != walked.shape or not torch.allclose(logits, walked, rtol=1e-3, atol=1e-4):
        raise UserError(f"{type(model).__name__}: its parts, in their order, give other logits than its forward")


def terms(unit: Unit, x: Tensor, b: float) -> tuple[Tensor, Tensor]:
    """Return h(x), a scalar 0 for a plain unit, and y = h(x) + b F(x)."""
    x = unit.before(x)
    r = unit.branch(x)
    return unit.shortcut(x, unit.zero(x)), unit.shortcut(x, r if b == 1 else b * r)


def unchanged(x: Tensor) -> Tensor:
    """Return x; `Walk.before` holds this function for a unit that directly follows another."""
    return x


def with_batch_statistics(model: nn.Module) -> nn.Module:
    """Copy `model` in evaluation mode, but let its batch normalisation still use the batch's own statistics.

    Training normalises in this way; before training there are no other statistics.
    """
    model = deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, _BatchNorm | GhostBatchNorm):
            module.train()
    return model


def recalibrate_batchnorm(model: nn.Module, x: Tensor) -> None:
    """Set the running statistics of every BatchNorm2d to its statistics on one batch of images x (N, C, H, W).

    Before training, means are 0 and variances 1, so a fresh network in evaluation mode does not normalise. `model` must
    be in evaluation mode, so that dropout is off and stochastic depth scales each branch by its survival probability.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    with torch.no_grad():
        model(x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.eval()
        layer.momentum = momentum


def _chain(parts: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    if not parts:
        return unchanged

    def chained(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    return chained
