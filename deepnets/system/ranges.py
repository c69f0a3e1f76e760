"""Legal ranges of a configuration's numbers, as types. config/build.py checks them, and that numbers are finite."""

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
