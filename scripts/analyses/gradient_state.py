"""What is known of one network at one time: gradients, signals and responses over its units."""

from dataclasses import dataclass

import numpy as np

from deepnets.analysis.signals import Signals
from deepnets.analysis.walk import Walk


@dataclass(frozen=True)
class State:
    """What was measured of one network at one time; arrays have an entry per unit."""

    run: str
    label: str
    time: str
    walk: Walk
    norms: np.ndarray
    signals: Signals
    factors: np.ndarray
    formula: np.ndarray
    clipped: np.ndarray
    responses: dict[str, float]
