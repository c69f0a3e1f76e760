"""The kernels of a unit's branch (basic, bottleneck, one layer), and how many units a depth has."""

from collections.abc import Sequence
from dataclasses import dataclass

from deepnets.models.layers import Conv


@dataclass(frozen=True)
class Block:
    """One convolution per kernel, the last with `expansion` times the width, one of them with the unit's stride.

    He et al.'s released models of 2015 stride in the first kernel; fb.resnet.torch and torchvision in the bottleneck's
    3x3 (index 1). Kernels larger than 1 divide their channels into `groups`: Xie et al. 2017, "Aggregated residual
    transformations" (ResNeXt). Raises ValueError for an even kernel, and a `strided_kernel` that is no index of
    `kernels`.
    """

    kernels: tuple[int, ...]
    expansion: int
    strided_kernel: int
    groups: int = 1

    def __post_init__(self) -> None:
        if not self.kernels or any(kernel % 2 == 0 for kernel in self.kernels):
            raise ValueError(f"kernels are {list(self.kernels)}; choose one or more, odd, e.g. [3, 3]")
        if not 0 <= self.strided_kernel < len(self.kernels):
            raise ValueError(
                f"strided_kernel is {self.strided_kernel}; it is an index of kernels {list(self.kernels)}, "
                f"0 to {len(self.kernels) - 1}"
            )

    def convs(self, width: int, stride: int) -> list[Conv]:
        """The convolutions of a unit whose inner layers have `width` channels."""
        last = len(self.kernels) - 1
        return [
            Conv(
                outputs=width * self.expansion if index == last else width,
                kernel=kernel,
                stride=stride if index == self.strided_kernel else 1,
                groups=self.groups if kernel > 1 else 1,
            )
            for index, kernel in enumerate(self.kernels)
        ]


def units_of_stages(depth: int | None, units: Sequence[int] | None, stages: int, kernels: int) -> list[int]:
    """`units` itself, or the n of depth = 2 + stages * n * kernels in every stage: stem and head are one layer each.

    Raises ValueError unless exactly one of both is given; for numbers of units that are not one per stage and at least
    1; for a depth without such an n, naming the nearest depths.
    """
    if depth is not None and units is None:
        return [_equal_units(depth, stages, kernels)] * stages
    if depth is not None or units is None:
        raise ValueError(f"depth={depth}, units={units}: set one of them, and the other to null")
    if len(units) != stages or min(units) < 1:
        raise ValueError(f"units: {list(units)} given; needs {stages} numbers, one per stage, at least 1 each")
    return list(units)


def _equal_units(depth: int, stages: int, kernels: int) -> int:
    step = stages * kernels
    n, rest = divmod(depth - 2, step)
    if rest == 0 and n >= 1:
        return n
    below, above = 2 + n * step, 2 + (max(n, 0) + 1) * step
    nearest = f"the nearest are {below} and {above}" if n >= 1 else f"the smallest is {above}"
    raise ValueError(
        f"depth is {depth}; with {stages} stages and {kernels} kernels per unit a depth is 2 + {step} n: {nearest}"
    )
