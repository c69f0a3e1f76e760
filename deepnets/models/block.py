"""The kernels of a unit's branch: basic, bottleneck, one layer."""

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
