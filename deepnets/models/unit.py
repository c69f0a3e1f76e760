"""The residual unit: y = h(x) + F(x), x' = f(y)."""

from collections.abc import Callable, Sequence
from math import prod

from torch import Tensor, nn

from deepnets.models.layers import Conv, sequence
from deepnets.models.ordering import Ordering
from deepnets.models.resize import Ends, Resize


class Unit(nn.Module):
    """x' = f(h(x) + F(x)), with F the `branch`, f what comes `after`, and `shortcut` how h joins F.

    `before` acts in front of the split, so that shortcut and branch both see it. He et al. 2016, Eq. 1 and 2.
    """

    def __init__(self, *, before: nn.Module, branch: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before = before
        self.branch = branch
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y = self.shortcut(x, self.branch(x))
        return self.after(y)


def residual_unit(
    inputs: int,
    convs: Sequence[Conv],
    ordering: Ordering,
    shortcut: Callable[..., nn.Module],
    resize: Resize,
    first_of_stage: bool,
) -> Unit:
    """The unit on `inputs` channels whose branch holds `convs`; a stage's first activates in front of the split."""
    before = ordering.before if first_of_stage else ()
    outputs, stride = convs[-1].outputs, prod(conv.stride for conv in convs)
    return Unit(
        before=sequence(before, inputs),
        branch=sequence(ordering.branch(len(convs))[len(before) :], inputs, convs),
        shortcut=shortcut(ends=Ends(inputs, outputs, stride, resize, ordering.projection)),
        after=sequence(ordering.after, outputs),
    )
