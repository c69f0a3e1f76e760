"""Legal values of settings: ranges of numbers as types, the tensors that units may store, the units in each stage.

Commands read these without importing torch, which takes seconds. config/build.py checks the ranges, and that numbers
are finite.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

Count = Annotated[int, Ge(1), Le(10**12)]  # epochs, iterations, images
Natural = Annotated[int, Ge(0), Le(10**12)]
Size = Annotated[int, Ge(1), Le(100_000)]  # channels, pixels, processes
Depth = Annotated[int, Ge(1), Le(20_000)]  # layers, units: building a network with more takes over a minute
Units = Annotated[int, Ge(0), Le(20_000)]  # units in a stage
Kernel = Annotated[int, Ge(1), Le(255)]  # kernels, strides
# More cores than a machine with two sockets has. This machine's cores are no limit, because a run's last bits depend on
# its number of threads, and a smaller machine may repeat the run with as many.
Threads = Annotated[int, Ge(1), Le(512)]
Seed = Annotated[int, Ge(0), Lt(2**63)]  # torch's limits
Real = Annotated[float, Ge(-1e30), Le(1e30)]  # float32 holds up to 3e38
Positive = Annotated[float, Gt(0), Le(1e30)]
NotNegative = Annotated[float, Ge(0), Le(1e30)]
Factor = Annotated[float, Ge(0), Le(1)]
PositiveFactor = Annotated[float, Gt(0), Le(1)]
Share = Annotated[float, Gt(0), Lt(1)]
Rate = Annotated[float, Ge(0), Lt(1)]  # a dropout rate, a momentum
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]  # one line, not empty


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

    The 2 stands for stem and head.

    Raises:
        ValueError: both or neither of `depth` and `units` are given, `units` does not hold a number >= 1 for each
            stage, or no n gives `depth`; then the message names the nearest depths.
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
