"""Fully connected highway and plain networks."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from deepnets.models.initialization import Initialization, initialize
from deepnets.models.layers import Conv, Layers
from deepnets.models.unit import Ordering, Unit, UnitDesign
from deepnets.system.settings import Depth, Size


class FullyConnected(nn.Module):
    """A plain layer with `width` outputs, depth - 1 units of the same width, and a linear head.

    `depth` does not count the head. The net flattens images (N, C, H, W) and maps them to logits (N, classes). A unit
    computes y = H(x) T(x) + x (1 - T(x)) with a gated shortcut, and y = H(x) in the plain net: Srivastava et al. 2015,
    "Training very deep networks", 3.1.

    Raises ValueError if `layer` holds other layers than linear, relu and tanh, or if Ordering raises it.
    """

    def __init__(
        self,
        *,
        depth: Depth,
        width: Size,
        layer: Sequence[str],
        shortcut: Callable[..., nn.Module],
        initialization: Initialization | str,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        if not set(layer) <= {"linear", "relu", "tanh"}:
            raise ValueError(f"layer is {list(layer)}; this net has only linear, relu and tanh, e.g. [linear, tanh]")
        layers = Layers(conv_bias=True, batchnorm_images=None)
        design = UnitDesign(Ordering(tuple(layer), after=()), layers, shortcut, resize="zero_padding", units=depth - 1)
        convs = [Conv(width, kernel=1, stride=1)]
        self.stem = layers.sequence(layer, shape[0] * shape[1] * shape[2], convs)
        self.stages = nn.Sequential(*[design.unit(index, width, convs) for index in range(1, depth)])
        self.head = nn.Linear(width, classes)
        initialize(self, self.head, initialization)

    @property
    def units(self) -> list[Unit]:
        """All units, from the first layer to the head."""
        return [unit for unit in self.stages if isinstance(unit, Unit)]

    @property
    def parts(self) -> list[nn.Module]:
        """The modules that an image passes, in this order; the units are children of `stages`."""
        return [nn.Flatten(), self.stem, self.stages, self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x.flatten(-3))))
