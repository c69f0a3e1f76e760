"""The family of residual networks, plain nets and gated nets included."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from deepnets.models.block import Block, units_of_stages
from deepnets.models.initialization import Initialization, initialize
from deepnets.models.layers import Conv, Layers, channels_behind
from deepnets.models.memory import Memory
from deepnets.models.ordering import Ordering
from deepnets.models.recomputation import through
from deepnets.models.resize import Resize
from deepnets.models.survival import Survival, own_generator
from deepnets.models.unit import Unit, UnitDesign


class ResNet(nn.Module):
    """A stem, one stage of equal units per width, global average pooling and a linear head.

    Every stage but the first halves the map in its first unit. A stage has its entry of `units`, or the n of depth =
    2 + stages * n * kernels, which counts the layers with weights. Maps images (N, C, H, W) to logits (N, classes).
    He et al. 2015, section 4; 2016, sections 3 to 5.

    Raises ValueError for sizes below 1, survival or looks_linear where it makes no sense, and what units_of_stages,
    Ordering, Block, Layers and ShortcutShape refuse.
    """

    def __init__(
        self,
        *,
        depth: int | None,
        units: Sequence[int] | None,
        widths: Sequence[int],
        kernels: Sequence[int],
        expansion: int,
        strided_kernel: int,
        stem: Sequence[str] | None,
        stem_kernel: int,
        stem_stride: int,
        stem_width: int | None,
        layer: Sequence[str],
        after: Sequence[str],
        conv_bias: bool,
        batchnorm_images: int | None,
        shortcut: Callable[..., nn.Module],
        resize: Resize,
        survival: Survival | None,
        initialization: Initialization,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        _check_sizes(widths=widths, expansion=[expansion], shape=shape, classes=[classes])
        stem_width = widths[0] if stem_width is None else stem_width
        _check_sizes(stem_kernel=[stem_kernel], stem_stride=[stem_stride], stem_width=[stem_width])
        ordering = Ordering(tuple(layer), tuple(after))
        block = Block(tuple(kernels), expansion, strided_kernel)
        layers = Layers(conv_bias, batchnorm_images)
        design = UnitDesign(ordering, layers, shortcut, resize)
        units = units_of_stages(depth, units, stages=len(widths), kernels=len(kernels))
        stem_layers = ordering.stem if stem is None else _checked_stem(stem)

        convs = [Conv(stem_width, stem_kernel, stem_stride)]
        self.stem = layers.sequence(stem_layers, shape[0], convs)
        channels = channels_behind(stem_layers, shape[0], convs)
        self.stages = nn.Sequential()
        for width, count in zip(widths, units, strict=True):
            stage = nn.Sequential()
            stage_1 = len(self.stages) == 0
            for first in [True] + [False] * (count - 1):
                convs = block.convs(width, stride=2 if first and not stage_1 else 1)
                activated = first and stage_1 and stem is not None
                stage.append(design.unit(channels, convs, first_of_stage=first, activated=activated))
                channels = design.channels_behind(channels, convs)
            self.stages.append(stage)
        self.tail = layers.sequence(ordering.before, channels)
        self.head = nn.Linear(channels_behind(ordering.before, channels), classes)
        self.survival = survival
        self.keep(Memory.full)
        self._check_survival()
        if initialization == "looks_linear" and not all(unit.is_plain for unit in self.units):
            raise ValueError("looks_linear initializes nets without shortcuts: choose shortcut none")
        initialize(self, self.head, initialization)
        self.draws = own_generator() if survival else None

    @property
    def units(self) -> list[Unit]:
        """All units, from the stem to the head."""
        return [unit for stage in self.stages for unit in stage.children() if isinstance(unit, Unit)]

    def keep(self, memory: Memory) -> None:
        """What the forward pass stores for the backward pass, which computes the rest again; `full` at first.

        recompute_activations stores the outputs of the convolutions, recompute_units the input of every unit,
        recompute_segments the input of about sqrt(3 L) of L units. No choice changes a gradient by a bit.
        """
        self.memory = memory
        for unit in self.units:
            unit.branch.recompute = memory == Memory.recompute_activations

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = through(self.units, self._survival(), x, self.memory)
        return self.head(self.tail(x).mean((2, 3)))

    def _check_survival(self) -> None:
        if self.survival is not None:
            self.survival.expected(len(self.units))
            if any(unit.is_plain for unit in self.units):
                raise ValueError(
                    "without its branch nothing is left of a plain unit: choose a shortcut, or survival none"
                )

    def _survival(self) -> list[float]:
        """b of each unit; in training it is drawn anew at each call."""
        units = len(self.units)
        if self.survival is None:
            return [1.0] * units
        return self.survival.drawn(units, self.draws) if self.training else self.survival.expected(units)


def _check_sizes(**sizes: Sequence[int]) -> None:
    for name, given in sizes.items():
        if not given or min(given) < 1:
            raise ValueError(f"{name}: {list(given)} given; sizes are at least 1")


def _checked_stem(stem: Sequence[str]) -> Sequence[str]:
    if list(stem).count("conv") != 1:
        raise ValueError(f"stem is {list(stem)}; it must hold exactly one conv, e.g. [conv, relu], or be null")
    return stem
