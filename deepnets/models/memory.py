"""What the backward pass finds kept of a network's units."""

from enum import StrEnum


class Memory(StrEnum):
    """All, or a part from which the rest is computed again (`deepnets.models.recomputation`).

    Its own module, because a configuration names it without waiting for torch.
    """

    full = "full"
    recompute_activations = "recompute_activations"
    recompute_units = "recompute_units"
    recompute_segments = "recompute_segments"
