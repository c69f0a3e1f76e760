"""Densely connected networks: each unit reads its stage's input and the outputs of all earlier units of the stage."""

from collections.abc import Callable, Sequence

from torch import nn

from deepnets.models.initialization import Initialization
from deepnets.models.layers import Conv, Layers, channels_after
from deepnets.models.network import UnitNetwork
from deepnets.models.resize import Resize
from deepnets.models.survival import Survival
from deepnets.models.unit import Ordering, UnitDesign
from deepnets.system.settings import Count, Depth, Kernel, PositiveFactor, Rate, Size


class DenseNet(UnitNetwork):
    """A stem, stages of units with transitions between the stages, and a linear head: Huang et al. 2017.

    Stage i has `units[i]` units. The branch of each unit is BN-ReLU-conv3x3 and adds `growth` channels; with
    `bottleneck` n, BN-ReLU-conv1x1 to n times `growth` channels precedes it. A transition is BN-ReLU-conv1x1 to
    `compression` times the channels, then 2x2 average pooling. Dropout with rate `dropout` follows each convolution
    except the stem's. Maps images (N, C, H, W) to logits (N, classes).

    Raises ValueError if `units` is empty, or if Layers, UnitDesign, ShortcutShape or UnitNetwork.complete raises it.
    """

    def __init__(
        self,
        *,
        units: Sequence[Depth],
        growth: Size,
        bottleneck: Size | None,
        compression: PositiveFactor,
        stem: Sequence[str],
        stem_kernel: Kernel,
        stem_stride: Kernel,
        stem_width: Size,
        dropout: Rate,
        batchnorm_images: Count | None,
        shortcut: Callable[..., nn.Module],
        resize: Resize,
        survival: Survival | None,
        initialization: Initialization | str,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        super().__init__()
        if not units:
            raise ValueError("units: [] given; give one number per stage, e.g. [12, 12, 12]")
        layers = Layers(conv_bias=False, batchnorm_images=batchnorm_images, dropout=dropout)
        ordering = Ordering(("bn", "relu", "conv", *["dropout"] * bool(dropout)), after=())
        design = UnitDesign(ordering, layers, shortcut, resize, units=sum(units), grows=True)
        convs = [Conv(growth, kernel=3, stride=1)]
        if bottleneck is not None:
            convs = [Conv(bottleneck * growth, kernel=1, stride=1), *convs]
        self.stem = layers.sequence(stem, shape[0], [Conv(stem_width, stem_kernel, stem_stride)])
        channels, index = channels_after(stem, shape[0], [Conv(stem_width, stem_kernel, stem_stride)]), 0
        self.stages = nn.Sequential()
        for number, units_of_stage in enumerate(units):
            stage = nn.Sequential()
            if number > 0:
                inputs, channels = channels, int(channels * compression)
                stage.extend(layers.sequence((*ordering.layer, "avg_pool"), inputs, [Conv(channels, 1, 1)]))
            for _ in range(units_of_stage):
                index += 1
                unit = design.unit(index, channels, convs)
                stage.append(unit)
                channels = unit.channels
            self.stages.append(stage)
        self.tail = layers.sequence(ordering.before, channels)
        self.head = nn.Linear(channels, classes)
        self.complete(survival, initialization)
