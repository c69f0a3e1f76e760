"""The part of a batch that one of several processes trains on."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Share:
    """Which part of a batch process `rank` has: `parts` are those of all processes, contiguous and by rank.

    Whoever makes the batches sets `parts` for each of them, as the last one of an epoch may be shorter.
    """

    rank: int
    parts: Sequence[slice] = ()

    @property
    def own(self) -> slice:
        return self.parts[self.rank]

    @property
    def images(self) -> int:
        """Of the whole batch."""
        return self.parts[-1].stop
