"""Convolutional highway networks."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from deepnets.models.initialization import Initialization, initialize
from deepnets.models.layers import Conv, Layers
from deepnets.models.unit import Ordering, Unit, UnitDesign
from deepnets.system.settings import Count, Kernel, NotNegative, Rate, Size, Units


class Highway(nn.Module):
    """Stages of highway layers and a linear head: Srivastava et al. 2015, 3.2, 3.3.

    Stage i has, in this order: a plain convolution to `widths[i]` channels with (kernel, padding) = `entries[i]`;
    `units[i]` units, which keep the shape and use `kernels` in turn; max pooling with (kernel, stride) = `pools[i]`,
    which keeps incomplete windows; and dropout with rate `dropouts[i]`. If an entry or a pool is None, the stage has no
    such layer. `initialize` draws all weights. Then, if `first_std` or `head_std` is given, the weights of the
    first convolution or of the head are drawn again, from N(0, std^2). Maps images (N, C, H, W) to logits (N, classes).

    Raises ValueError if the lists are empty or differ in length, an entry or a pool is not a pair, a kernel is even,
    channels change without an entry, images are too small, or Ordering, Layers, UnitDesign or `initialize` raises it.
    """

    def __init__(
        self,
        *,
        layer: Sequence[str],
        widths: Sequence[Size],
        entries: Sequence[Sequence[Units] | None],
        units: Sequence[Units],
        kernels: Sequence[Kernel],
        pools: Sequence[Sequence[Kernel] | None],
        dropouts: Sequence[Rate],
        input_dropout: Rate,
        global_average: bool,
        head_dropout: Rate,
        batchnorm_images: Count | None,
        shortcut: Callable[..., nn.Module],
        initialization: Initialization | str,
        first_std: NotNegative | None,
        head_std: NotNegative | None,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        _check_stages(widths=widths, entries=entries, units=units, pools=pools, dropouts=dropouts)
        if not kernels or any(kernel % 2 == 0 for kernel in kernels):
            raise ValueError(
                f"kernels: {list(kernels)} given; a highway layer keeps the size of a map, so choose odd ones"
            )
        layers = Layers(conv_bias=True, batchnorm_images=batchnorm_images)
        design = UnitDesign(Ordering(tuple(layer), after=()), layers, shortcut, resize="zero_padding", units=sum(units))
        self.stem = nn.Dropout(input_dropout)
        self.stages = nn.Sequential()
        channels, numbers = shape[0], count(1)
        for width, entry, units_of_stage, pool, dropout in zip(widths, entries, units, pools, dropouts, strict=True):
            stage = nn.Sequential()
            if entry is not None:
                kernel, padding = entry
                stage.extend(layers.sequence(layer, channels, [Conv(width, kernel, 1, padding)]))
            elif width != channels:
                raise ValueError(f"widths: {width} follows {channels} channels; this stage needs an entry, e.g. [3, 1]")
            for index in range(units_of_stage):
                convs = [Conv(width, kernels[index % len(kernels)], stride=1)]
                stage.append(design.unit(next(numbers), width, convs))
            if pool is not None:
                size, stride = pool
                stage.append(nn.MaxPool2d(size, stride, ceil_mode=True))
            stage.append(nn.Dropout(dropout))
            self.stages.append(stage)
            channels = width
        self.tail = nn.Sequential(
            nn.AdaptiveAvgPool2d(1) if global_average else nn.Identity(), nn.Flatten(), nn.Dropout(head_dropout)
        )
        self.head = nn.Linear(_features(nn.Sequential(self.stages, self.tail), shape), classes)
        initialize(self, self.head, initialization)
        if first_std is not None:
            nn.init.normal_(next(m for m in self.modules() if isinstance(m, nn.Conv2d)).weight, std=first_std)
        if head_std is not None:
            nn.init.normal_(self.head.weight, std=head_std)

    @property
    def units(self) -> list[Unit]:
        """All highway layers, from the images to the head."""
        return [module for stage in self.stages for module in stage.children() if isinstance(module, Unit)]

    @property
    def parts(self) -> list[nn.Module]:
        """The modules that an image passes, in this order; some of them contain the units."""
        return [self.stem, *self.stages, self.tail, self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tail(self.stages(self.stem(x))))


def _features(body: nn.Module, shape: tuple[int, int, int]) -> int:
    """Return the number of features that `body` computes for an image; raises ValueError if images are too small."""
    try:
        return deepcopy(body).to("meta").eval()(torch.empty(1, *shape, device="meta")).shape[1]
    except RuntimeError as error:
        raise ValueError(f"images of {shape[1]}x{shape[2]} are too small for these entries and pools") from error


def _check_stages(**lists: Sequence[Any]) -> None:
    if not lists["widths"] or len({len(entries) for entries in lists.values()}) != 1:
        lengths = ", ".join(f"{name} {len(entries)}" for name, entries in lists.items())
        raise ValueError(f"lengths: {lengths}; give each list one entry per stage")
    for name in ("entries", "pools"):
        for pair in lists[name]:
            if pair is not None and len(pair) != 2:
                raise ValueError(f"{name}: {list(pair)} given; needs two numbers or null, e.g. [3, 1]")
