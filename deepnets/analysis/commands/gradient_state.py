"""What is known of one network at one time: gradients, signals and responses over its units."""

from dataclasses import dataclass

import numpy as np

from deepnets.analysis.commands.bypass import Bypass
from deepnets.analysis.signals import Signals
from deepnets.analysis.walk import Walk


@dataclass(frozen=True)
class State:
    """What was measured of one network at one time; arrays have an entry per unit.

    A ReLU behind the addition clipped `below` of `values` values; 0 of 0 where there is none.
    """

    run: str
    label: str
    time: str
    walk: Walk
    norms: np.ndarray
    signals: Signals
    bypass: Bypass
    below: np.ndarray
    values: np.ndarray
    responses: dict[str, float]

    @property
    def clipped(self) -> np.ndarray:
        """The share of values that is clipped; NaN where no ReLU stands."""
        return np.where(self.values > 0, self.below / np.maximum(self.values, 1), np.nan)
