"""Residual networks; with other shortcuts they are plain or gated networks."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Literal

from torch import nn

from deepnets.models.initialization import Initialization
from deepnets.models.layers import LAYERS, Conv, Layers, channels_after, own_layers_of
from deepnets.models.network import UnitNetwork
from deepnets.models.resize import Resize
from deepnets.models.survival import Survival
from deepnets.models.unit import Block, Ordering, UnitDesign
from deepnets.system.settings import Count, Depth, Kernel, Natural, Rate, Size, units_of_stages


class ResNet(UnitNetwork):
    """A stem, a stage of units for each of `widths`, global average pooling and a linear head.

    The first unit of every stage but the first halves the map. Stage i has `units[i]` units. If `depth` is given
    instead, each stage has n units: depth = 2 + len(widths) * n * len(kernels) is the number of layers with weights.
    Maps images (N, C, H, W) to logits (N, classes). He et al. 2015, section 4; 2016, sections 3 to 5.

    In a stage's first unit, shortcut and branch both read the activated x (2016, appendix); with `opening` raw, the
    shortcut reads x itself. Dropout with rate `dropout` precedes each convolution of a branch except its first:
    Zagoruyko and Komodakis 2016, "Wide residual networks". `own_layers` names layers of the user's own classes, for
    `layer`, `after` and `stem`; with the name of a built-in layer, such as `relu`, it replaces that layer.

    Raises ValueError if `widths` is empty, if `stem` does not hold exactly one conv, or if units_of_stages, Ordering,
    Block, Layers, UnitDesign, ShortcutShape or UnitNetwork.complete raises it.
    """

    def __init__(
        self,
        *,
        depth: Depth | None,
        units: Sequence[Depth] | None,
        widths: Sequence[Size],
        kernels: Sequence[Kernel],
        expansion: Kernel,
        strided_kernel: Natural,
        groups: Size,
        stem: Sequence[str] | None,
        stem_kernel: Kernel,
        stem_stride: Kernel,
        stem_width: Size | None,
        layer: Sequence[str],
        after: Sequence[str],
        conv_bias: bool,
        batchnorm_images: Count | None,
        dropout: Rate,
        opening: Literal["activated", "raw"],
        shortcut: Callable[..., nn.Module],
        resize: Resize,
        survival: Survival | None,
        initialization: Initialization | str,
        shape: tuple[int, int, int],
        classes: int,
        own_layers: Mapping[str, Callable[..., nn.Module]] | None = None,
    ) -> None:
        super().__init__()
        if not widths:
            raise ValueError("widths: [] given; give one number per stage, e.g. [16, 32, 64]")
        stem_width = widths[0] if stem_width is None else stem_width
        layers = Layers(conv_bias, batchnorm_images, dropout, own_layers_of(own_layers or {}))
        layers.check_names([*layer, *after])
        if unused := sorted({*(own_layers or {})} - {*LAYERS, *layer, *after, *(stem or ())}):
            raise ValueError(f"own_layers.{unused[0]}: neither layer, after nor stem has this name")
        ordering = Ordering(tuple(layer), tuple(after))
        block = Block(tuple(kernels), expansion, strided_kernel, groups)
        units = units_of_stages(depth, units, stages=len(widths), kernels=len(kernels))
        drops = bool(dropout) and "dropout" not in layer
        design = UnitDesign(ordering, layers, shortcut, resize, units=sum(units), grows=True, drops=drops)
        stem_layers = ordering.stem if stem is None else _checked_stem(stem)

        convs = [Conv(stem_width, stem_kernel, stem_stride)]
        self.stem = layers.sequence(stem_layers, shape[0], convs)
        channels, numbers = channels_after(stem_layers, shape[0], convs), count(1)
        self.stages = nn.Sequential()
        for width, units_of_stage in zip(widths, units, strict=True):
            stage = nn.Sequential()
            is_first_stage = len(self.stages) == 0
            for first in [True] + [False] * (units_of_stage - 1):
                unit = design.unit(
                    next(numbers),
                    channels,
                    block.convs(width, stride=2 if first and not is_first_stage else 1),
                    opens_stage=first and opening == "activated",
                    activated=first and is_first_stage and stem is not None and opening == "activated",
                )
                stage.append(unit)
                channels = unit.channels
            self.stages.append(stage)
        self.tail = layers.sequence(ordering.before, channels)
        self.head = nn.Linear(channels_after(ordering.before, channels), classes)
        self.complete(survival, initialization)


def _checked_stem(stem: Sequence[str]) -> Sequence[str]:
    if list(stem).count("conv") != 1:
        raise ValueError(f"stem is {list(stem)}; it must hold exactly one conv, e.g. [conv, relu], or be null")
    return stem
