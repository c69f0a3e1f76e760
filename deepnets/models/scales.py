"""More shortcuts: they scale x or r by learned numbers, or by constants that depend on the unit or on the depth.

`shortcuts.Scaled` scales by the same constants in all units.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepnets.models.resize import ShortcutShape
from deepnets.system.settings import Factor, NotNegative, Real


class ScaledBranch(nn.Module):
    """y = x + a r with one learned number a, which starts at `start`.

    With `start` 0 it is ReZero (Bachlechner et al. 2020) or, in nets without normalisation, SkipInit (De and Smith
    2020); with `start` 1 and Fixup's scalar biases it is the multiplier of Zhang et al. 2019.
    """

    def __init__(self, *, start: Factor, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.a = ends.resized(), nn.Parameter(torch.full((1,), start))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.resize(x) + self.a * r


class LayerScale(nn.Module):
    """y = x + g r with a learned number g for each channel, which starts at `start`: Touvron et al. 2021 (CaiT)."""

    def __init__(self, *, start: Factor, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.g = ends.resized(), nn.Parameter(torch.full((ends.outputs,), start))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        x = self.resize(x)
        return x + (self.g.view(-1, 1, 1) if x.dim() == 4 else self.g) * r


class PerUnit(nn.Module):
    """y = a x + b r with constants: unit l takes a and b from entry l of `shortcut_scales` and `branch_scales`.

    Raises ValueError unless each list has one entry for each unit.
    """

    def __init__(self, *, shortcut_scales: Sequence[Real], branch_scales: Sequence[Real], ends: ShortcutShape) -> None:
        super().__init__()
        for name, scales in {"shortcut_scales": shortcut_scales, "branch_scales": branch_scales}.items():
            if len(scales) != ends.units:
                raise ValueError(f"{name}: {len(scales)} numbers given; needs {ends.units}, one for each unit")
        self.resize = ends.resized()
        self.shortcut_scale = float(shortcut_scales[ends.unit - 1])
        self.branch_scale = float(branch_scales[ends.unit - 1])

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.shortcut_scale * self.resize(x) + self.branch_scale * r

    def extra_repr(self) -> str:
        return f"shortcut_scale={self.shortcut_scale}, branch_scale={self.branch_scale}"


class DepthScaled(nn.Module):
    """y = x + L^(-exponent) r for L units; exponent 1/2 in Bordelon et al. 2024, 1 in Dey et al. 2025 (CompleteP)."""

    def __init__(self, *, exponent: NotNegative, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.branch_scale = ends.resized(), ends.units**-exponent

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return torch.add(self.resize(x), r, alpha=self.branch_scale)

    def extra_repr(self) -> str:
        return f"branch_scale={self.branch_scale:g}"


class DeepNormed(nn.Module):
    """y = (2N)^(1/4) x + r, followed by a norm, for N layers of two units each: Wang et al. 2022 (DeepNet)."""

    def __init__(self, *, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize, self.shortcut_scale = ends.resized(), ends.units**0.25

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return torch.add(r, self.resize(x), alpha=self.shortcut_scale)

    def extra_repr(self) -> str:
        return f"shortcut_scale={self.shortcut_scale:g}"
