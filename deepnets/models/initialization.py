"""Initialisations: they draw a network's parameters before the first step."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from torch import Tensor, nn

from deepnets.models.batchnorm import GhostBatchNorm
from deepnets.models.layers import CReLU
from deepnets.models.resize import ZeroPadding
from deepnets.models.unit import Unit
from deepnets.system.settings import NotNegative, Positive, PositiveFactor


class Initialization(ABC):
    """Draws the weights of all layers except the head; `initialize` calls it, and sets all other parameters.

    Attributes:
        mirrors: whether a weight that follows a CReLU is (W, -W).
    """

    mirrors: ClassVar[bool] = False

    @abstractmethod
    def draw(self, weight: Tensor) -> None:
        """Draw a weight (outputs, inputs, ...) in place."""

    def draw_bias(self, bias: Tensor) -> None:
        nn.init.zeros_(bias)

    def finish(self, model: nn.Module, head: nn.Linear) -> None:  # noqa: B027, most initialisations change nothing
        """Change some parameters after all are drawn; raises ValueError if the net lacks the layers to change."""


class HeFanOut(Initialization):
    """W ~ N(0, 2 / (k k C_out)): fb.resnet.torch."""

    def draw(self, weight: Tensor) -> None:
        nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


class HeFanIn(Initialization):
    """W ~ N(0, 2 / (k k C_in)): He et al. 2015, "Delving deep", forward case."""

    def draw(self, weight: Tensor) -> None:
        nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu")


class Huang2016(HeFanIn):
    """As HeFanIn, but the head's bias ~ U(+-1 / sqrt(fan_in)), Torch's default, as in Huang et al.'s released code."""

    def finish(self, model: nn.Module, head: nn.Linear) -> None:
        bound = 1 / sqrt(head.in_features)
        nn.init.uniform_(head.bias, -bound, bound)


class Glorot(Initialization):
    """W ~ N(0, 2 / (fan_in + fan_out)): Glorot and Bengio 2010, as in Xiong et al. 2020."""

    def draw(self, weight: Tensor) -> None:
        nn.init.xavier_normal_(weight)


@dataclass(frozen=True)
class TruncatedNormal(Initialization):
    """W ~ N(0, std^2), truncated at +-2, as in vision transformers."""

    std: PositiveFactor

    def draw(self, weight: Tensor) -> None:
        nn.init.trunc_normal_(weight, std=self.std)


@dataclass(frozen=True)
class Orthogonal(Initialization):
    """W, as a matrix with one row per output, has orthonormal rows or columns, times `gain`: Saxe et al. 2014."""

    gain: Positive

    def draw(self, weight: Tensor) -> None:
        nn.init.orthogonal_(weight, self.gain)


@dataclass(frozen=True)
class DeltaOrthogonal(Initialization):
    """W is sigma_w times an orthogonal matrix at the kernel's centre, and 0 around it; biases ~ N(0, sigma_b^2).

    Xiao et al. 2018 (1806.05393).
    """

    weight_variance: Positive
    bias_variance: NotNegative

    def draw(self, weight: Tensor) -> None:
        _centre_tap(weight, "delta_orthogonal", sqrt(self.weight_variance))

    def draw_bias(self, bias: Tensor) -> None:
        nn.init.normal_(bias, std=sqrt(self.bias_variance))


class LooksLinear(Initialization):
    """W is an orthogonal matrix at the kernel's centre, and 0 around it: Balduzzi et al. 2017, section 4.

    Every weight that follows a CReLU, including the head's, is (W, -W), so a net of convolutions, CReLU and linear
    shortcuts is linear. `initialize` refuses zero padding after a CReLU, because it would separate the two halves.
    """

    mirrors = True

    def draw(self, weight: Tensor) -> None:
        _centre_tap(weight, "looks_linear", 1.0)


class Fixup(HeFanOut):
    """As HeFanOut, but the head's weight and the last weight of each branch are 0: Zhang et al. 2019, rules 1 and 2.

    The other weights of a branch are scaled by L^(-1 / (2m - 2)), where L is the number of units and m the number of
    weights in a branch. The stem has torch's own initial values. `model/ordering=fixup model/shortcut=fixup` add the
    scalars of rule 3.
    """

    def finish(self, model: nn.Module, head: nn.Linear) -> None:
        units = _units(model)
        for unit in units:
            *others, last = (layer.weight.detach() for layer in _with_weights(unit.branch))
            for weight in others:
                weight.mul_(len(units) ** (-1 / (2 * len(others))))
            nn.init.zeros_(last)
        nn.init.zeros_(head.weight)
        if isinstance(stem := getattr(model, "stem", None), nn.Module):
            for layer in _with_weights(stem):
                layer.reset_parameters()


class ZeroGamma(HeFanOut):
    """As HeFanOut, but the gain of the batch normalisation that ends each branch is 0: Goyal et al. 2017."""

    def finish(self, model: nn.Module, head: nn.Linear) -> None:
        for unit in _units(model):
            last = list(unit.branch.children())[-1]
            last = last.bn if isinstance(last, GhostBatchNorm) else last
            if not isinstance(last, nn.BatchNorm2d):
                raise ValueError(
                    "zero_gamma needs branches that end in batch normalisation: choose model/ordering=original or "
                    "relu_only_preactivation, or another initialization"
                )
            nn.init.zeros_(last.weight)


class DeepNorm(Glorot):
    """As Glorot, but weights of MLPs, values and outputs are scaled by (8N)^(-1/4) for N layers: Wang et al. 2022.

    A layer is two units, attention and MLP. The method `values_and_outputs` of both returns the weights to scale;
    queries and keys are not among them. Use it with `model/shortcut=deepnorm`.
    """

    def finish(self, model: nn.Module, head: nn.Linear) -> None:
        beta = (4 * len(_units(model))) ** -0.25
        methods = (getattr(module, "values_and_outputs", None) for module in model.modules())
        sublayers = [values_and_outputs for values_and_outputs in methods if callable(values_and_outputs)]
        if not sublayers:
            raise ValueError(
                "deepnorm scales the sublayers of transformers: choose a model=vit_*, or another initialization"
            )
        for values_and_outputs in sublayers:
            for weight in values_and_outputs():
                weight.detach().mul_(beta)


class PyTorch(Initialization):
    """Each layer has torch's own initial values."""

    def draw(self, weight: Tensor) -> None:
        """Draw nothing: `finish` lets each layer draw its own weights."""

    def finish(self, model: nn.Module, head: nn.Linear) -> None:
        for layer in _with_weights(model):
            layer.reset_parameters()


NAMED: dict[str, Callable[[], Initialization]] = {
    "he_fan_out": HeFanOut,
    "he_fan_in": HeFanIn,
    "looks_linear": LooksLinear,
    "glorot": Glorot,
    "fixup": Fixup,
    "zero_gamma": ZeroGamma,
    "deepnorm": DeepNorm,
    "pytorch": PyTorch,
    "huang2016": Huang2016,
}


def initialize(model: nn.Module, head: nn.Linear, initialization: Initialization | str) -> None:
    """Draw the head's weight from U(+-1 / sqrt(fan_in)) and all others by `initialization`, in place.

    Biases are 0 unless `initialization` draws them; batch and layer normalisation start with weight 1 and bias 0. Then
    `initialization.finish` may change any of these. At the end, modules that have a method `reset_bias`, such as gates,
    set their own biases.

    Raises ValueError for a name that is not one of `NAMED`, and if the initialization does not fit the net.
    """
    if isinstance(initialization, str):
        if initialization not in NAMED:
            raise ValueError(f"initialization is {initialization!r}; choose one of {', '.join(NAMED)}")
        initialization = NAMED[initialization]()
    _visit(model, head, initialization, mirrored=False)
    initialization.finish(model, head)
    for module in model.modules():
        if callable(reset_bias := getattr(module, "reset_bias", None)):
            reset_bias()


def _visit(module: nn.Module, head: nn.Linear, initialization: Initialization, mirrored: bool) -> bool:
    """Draw a module's weights, mirrored if its input comes from a CReLU.

    Return whether to mirror the weights of the module that follows.
    """
    if isinstance(module, CReLU):
        return initialization.mirrors
    if isinstance(module, nn.Conv2d | nn.Linear):
        _draw(module, module is head, initialization, mirrored)
        return False
    if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
        module.reset_parameters()
    if isinstance(module, Unit):
        mirrored = _visit(module.before, head, initialization, mirrored)
        after = _visit(module.branch, head, initialization, mirrored)
        if mirrored and any(isinstance(part, ZeroPadding) and part.extra for part in module.shortcut.modules()):
            raise ValueError("looks_linear needs shortcuts that project, not pad: choose model.resize=projection")
        _visit(module.shortcut, head, initialization, mirrored)
        return _visit(module.after, head, initialization, after)
    for child in module.children():
        mirrored = _visit(child, head, initialization, mirrored)
    return mirrored


def _draw(layer: nn.Conv2d | nn.Linear, is_head: bool, initialization: Initialization, mirrored: bool) -> None:
    weight = layer.weight.detach()
    drawn = weight[:, : weight.shape[1] // 2] if mirrored else weight
    if is_head:
        bound = 1 / sqrt(drawn.shape[1])
        nn.init.uniform_(drawn, -bound, bound)
    else:
        for part in drawn.chunk(getattr(layer, "parts", 1)):
            initialization.draw(part)
    if mirrored:
        weight[:, drawn.shape[1] :] = -drawn
    if layer.bias is not None:
        initialization.draw_bias(layer.bias)


def _with_weights(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def _units(model: nn.Module) -> list[Unit]:
    return [module for module in model.modules() if isinstance(module, Unit)]


def _centre_tap(weight: Tensor, name: str, gain: float) -> None:
    outputs, inputs = weight.shape[:2]
    if outputs < inputs:
        raise ValueError(f"{name} cannot reduce the number of channels, but a layer does, from {inputs} to {outputs}")
    nn.init.zeros_(weight)
    centre = weight
    for size in weight.shape[2:]:
        centre = centre.select(2, size // 2)
    nn.init.orthogonal_(centre, gain)
