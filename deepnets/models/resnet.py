"""The CIFAR family of residual networks, plain nets and gated nets included."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from deepnets.models.block import Block
from deepnets.models.initialization import Initialization, initialize
from deepnets.models.layers import Conv, sequence
from deepnets.models.ordering import Ordering
from deepnets.models.resize import Resize
from deepnets.models.unit import Unit, residual_unit


class ResNet(nn.Module):
    """A 3x3 stem, one stage of n equal units per width, global average pooling and a linear head.

    Every stage but the first halves the map in its first unit; depth = 2 + stages * n * kernels counts the layers with
    weights. Maps images (N, C, H, W) to logits (N, classes). He et al. 2015, 4.2; 2016, 3 to 5.

    Raises ValueError for a depth that no n gives, sizes below 1, and what Ordering, Block and Ends refuse.
    """

    def __init__(
        self,
        *,
        depth: int,
        widths: Sequence[int],
        kernels: Sequence[int],
        expansion: int,
        strided_kernel: int,
        layer: Sequence[str],
        after: Sequence[str],
        shortcut: Callable[..., nn.Module],
        resize: Resize,
        initialization: Initialization,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        for name, sizes in {"widths": widths, "expansion": [expansion], "shape": shape, "classes": [classes]}.items():
            if not sizes or min(sizes) < 1:
                raise ValueError(f"{name}: {list(sizes)} given; sizes are at least 1")
        ordering = Ordering(tuple(layer), tuple(after))
        block = Block(tuple(kernels), expansion, strided_kernel)
        units = units_per_stage(depth, stages=len(widths), kernels=len(kernels))

        self.stem = sequence(ordering.stem, shape[0], [Conv(widths[0], kernel=3, stride=1)])
        self.stages = nn.Sequential()
        channels = widths[0]
        for width in widths:
            stage = nn.Sequential()
            for _ in range(units):
                first = len(stage) == 0
                convs = block.convs(width, stride=2 if first and len(self.stages) > 0 else 1)
                stage.append(residual_unit(channels, convs, ordering, shortcut, resize, first_of_stage=first))
                channels = convs[-1].outputs
            self.stages.append(stage)
        self.tail = sequence(ordering.before, channels)
        self.head = nn.Linear(channels, classes)
        initialize(self, initialization)

    @property
    def units(self) -> list[Unit]:
        """All units, from the stem to the head."""
        return [unit for stage in self.stages for unit in stage]

    def forward(self, x: Tensor) -> Tensor:
        x = self.tail(self.stages(self.stem(x)))
        return self.head(x.mean((2, 3)))


def units_per_stage(depth: int, stages: int, kernels: int) -> int:
    """n of depth = 2 + stages * n * kernels: stem and head are one layer each.

    Raises ValueError, naming the nearest depths, when there is no such n.
    """
    step = stages * kernels
    n, rest = divmod(depth - 2, step)
    if rest == 0 and n >= 1:
        return n
    below, above = 2 + n * step, 2 + (max(n, 0) + 1) * step
    nearest = f"the nearest are {below} and {above}" if n >= 1 else f"the smallest is {above}"
    raise ValueError(
        f"depth is {depth}; with {stages} stages and {kernels} kernels per unit a depth is 2 + {step} n: {nearest}"
    )
