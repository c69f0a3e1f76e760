"""What a gradient meets that takes no branch: the shortcuts, and all else that stands on its way."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepnets.analysis import gradients
from deepnets.analysis.walk import Walk

CHANGED = 0.01  # a factor that differs by more is named
MOST_NAMED = 5  # units by number


@dataclass(frozen=True)
class Bypass:
    """Factors per unit, (units,): of the shortcut alone, by formula, and of the whole way with `before` and `after`."""

    shortcut: np.ndarray
    formula: np.ndarray
    whole: np.ndarray

    @property
    def numbers(self) -> dict[str, float]:
        """Both products over the units, for a finding."""
        return {"shortcut_product": float(np.prod(self.shortcut)), "bypass_product": float(np.prod(self.whole))}

    def sentence(self, when: str, fresh: bool = True) -> str:
        """Both products over the units, and the units whose factors are not those of their shortcuts alone.

        The formula is that of a `fresh` net, and is left out of others.
        """
        product, formula = np.prod(self.shortcut), np.prod(self.formula)
        text = f"product of {len(self.shortcut)} shortcuts {product:.4g} {when}"
        text += "" if np.isnan(formula) or not fresh else f" (formula {formula:.4g})"
        text += f"; past all branches, with what precedes and follows the additions, {np.prod(self.whole):.4g}"
        changed = np.flatnonzero(~np.isclose(self.whole, self.shortcut, rtol=CHANGED))
        if not len(changed):
            return text
        if len(changed) > MOST_NAMED:
            return f"{text}: {len(changed)} of {len(self.whole)} units scale it beyond their shortcuts"
        names = ", ".join(f"{index + 1} ({self.whole[index]:.3g})" for index in changed)
        return f"{text}: of {len(self.whole)} units {names} scale it beyond their shortcuts"


def bypass_of(walk: Walk, x: Tensor, seed: int) -> Bypass:
    """The factors on the images x (N, C, H, W), with random gradients of this seed."""
    generator = torch.Generator().manual_seed(seed)
    return Bypass(
        gradients.shortcut_factors(walk, x, generator),
        gradients.shortcut_formula(walk),
        gradients.bypass_factors(walk, x, generator),
    )
