"""Where the activations of a unit go: one layer, repeated, and a cut behind its last repetition."""

from dataclasses import dataclass

from deepnets.models.layers import SUBLAYERS, WEIGHTS

CENTRES = (*WEIGHTS, *SUBLAYERS)  # what a layer is built around


@dataclass(frozen=True)
class Ordering:
    """F is `layer` once per kernel, minus its suffix `after`, which acts behind the addition as f.

    The five of He et al. 2016, Fig. 4, are `conf/model/ordering/`. Everything else follows from layer and cut: see the
    properties. Raises ValueError unless `layer` holds one conv or linear and `after` is a suffix of `layer` behind it.
    """

    layer: tuple[str, ...]
    after: tuple[str, ...]

    def __post_init__(self) -> None:
        if sum(name in CENTRES for name in self.layer) != 1:
            raise ValueError(
                f"layer is {list(self.layer)}; it must hold exactly one conv or linear, e.g. [conv, bn, relu]"
            )
        behind_conv = self.layer[self._conv + 1 :]
        if self.after != behind_conv[len(behind_conv) - len(self.after) :]:
            suffixes = [list(behind_conv[start:]) for start in range(len(behind_conv) + 1)]
            raise ValueError(
                f"after is {list(self.after)}, which is not how layer {list(self.layer)} ends behind its conv; "
                f"choose one of {', '.join(map(str, suffixes))}"
            )

    @property
    def _conv(self) -> int:
        return next(index for index, name in enumerate(self.layer) if name in CENTRES)

    @property
    def stem(self) -> tuple[str, ...]:
        """The layer from its conv on: what stands before the first unit."""
        return self.layer[self._conv :]

    @property
    def before(self) -> tuple[str, ...]:
        """The layer up to its conv: in front of the split in the first unit of a stage, and the net's tail.

        He et al. 2016, appendix, activate before the first split and behind the last addition; fb.resnet.torch's
        preresnet does so in the first unit of every stage.
        """
        return self.layer[: self._conv]

    def branch(self, kernels: int) -> tuple[str, ...]:
        """F's layers for that many kernels."""
        layers = self.layer * kernels
        return layers[: len(layers) - len(self.after)]

    @property
    def projection(self) -> tuple[str, ...]:
        """F's last layer from its conv on, without activation: a shortcut ends as F ends, but stays linear."""
        if self.layer[self._conv] in SUBLAYERS:
            return ("linear",)
        return tuple(name for name in self.branch(1)[self._conv :] if name in (*WEIGHTS, "bn"))
