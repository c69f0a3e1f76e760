"""The number of units in each stage, and the choice of tensors that units store for the backward pass.

Commands read these settings without importing torch, which takes seconds.
"""

from collections.abc import Sequence
from enum import StrEnum


class Memory(StrEnum):
    """The tensors that units store for the backward pass; the backward pass computes all others again.

    `UnitNetwork.keep` says what each value stores.
    """

    full = "full"
    recompute_activations = "recompute_activations"
    recompute_units = "recompute_units"
    recompute_segments = "recompute_segments"


def units_of_stages(depth: int | None, units: Sequence[int] | None, stages: int, kernels: int) -> list[int]:
    """Return the number of units in each stage: `units`, or n for all stages if depth = 2 + stages * n * kernels.

    The 2 stands for stem and head. Raises ValueError unless exactly one of `depth` and `units` is given, unless `units`
    holds one number >= 1 per stage, and if no n gives `depth`; the message then names the nearest depths.
    """
    if depth is not None and units is None:
        return [_equal_units(depth, stages, kernels)] * stages
    if depth is not None or units is None:
        raise ValueError(f"depth={depth}, units={units}: set one of them, and the other to null")
    if len(units) != stages or min(units) < 1:
        raise ValueError(f"units: {list(units)} given; needs {stages} numbers, one per stage, at least 1 each")
    return list(units)


def _equal_units(depth: int, stages: int, kernels: int) -> int:
    step = stages * kernels
    n, rest = divmod(depth - 2, step)
    if rest == 0 and n >= 1:
        return n
    below, above = 2 + n * step, 2 + (max(n, 0) + 1) * step
    nearest = f"the nearest are {below} and {above}" if n >= 1 else f"the smallest is {above}"
    raise ValueError(
        f"depth is {depth}; with {stages} stages and {kernels} kernels per unit a depth is 2 + {step} n: {nearest}"
    )
