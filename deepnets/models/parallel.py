"""Several processes divide a batch among them, and train as one process would on the whole batch.

Dropout draws the mask of the whole batch, and running statistics are averaged over the processes. Batch normalisation
over several processes is in `batchnorm`; `network.divide` gives a share to all layers of a network that need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Share:
    """Says which images of a batch each process has: process r has `parts[r]`, and this process is number `rank`.

    The parts follow one another without gaps. The iterator over the batches sets `parts` before it yields a batch,
    because an epoch's last batch may be shorter. `network.divide` gives the share to the layers that need it, because
    `forward` has no argument for it.
    """

    rank: int
    parts: Sequence[slice] = ()

    @property
    def own(self) -> slice:
        """The part of the batch that this process has."""
        return self.parts[self.rank]

    @property
    def images(self) -> int:
        """The number of images in the whole batch."""
        return self.parts[-1].stop


def dropout(x: Tensor, rate: float, training: bool, share: Share | None) -> Tensor:
    """Apply torch's dropout to x (n, ...); with a `share`, x is this process's part of the batch.

    Every process draws the mask of the whole batch, as a single process would, and uses its part. So the random
    generators stay equal in all processes, and do not depend on their number.
    """
    if share is None or not training or rate == 0:
        return F.dropout(x, rate, training)
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if is_last else torch.contiguous_format  # numbers are drawn in the order of memory
    whole = torch.empty((share.images, *x.shape[1:]), dtype=x.dtype, device=x.device, memory_format=layout)
    return x * F.dropout(whole.fill_(1), rate)[share.own]


class Dropout(nn.Dropout):
    """torch's Dropout, applied to this process's part of a batch."""

    def __init__(self, rate: float, share: Share) -> None:
        super().__init__(rate)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training, self.share)


def statistics_of(model: nn.Module) -> Tensor:
    """Return the running statistics of all layers of `model` as one vector (values,)."""
    device = next(model.parameters()).device
    return torch.cat([torch.zeros(0, device=device), *(buffer.flatten() for buffer in _running(model).values())])


def mean_statistics(statistics: Tensor) -> Tensor:
    """Return the mean (values,) of the running statistics of all processes (processes, values)."""
    first = statistics[0]
    return first + (statistics - first).mean(0)  # the mean of equal values is the same, bit by bit


def named_statistics(model: nn.Module, values: Tensor) -> dict[str, Tensor]:
    """Split the vector that `statistics_of` returns into tensors; the keys are their names in model.state_dict()."""
    running = _running(model)
    parts = values.split([buffer.numel() for buffer in running.values()])
    return {name: part.view_as(like).to(like.dtype) for (name, like), part in zip(running.items(), parts, strict=True)}


def set_statistics(model: nn.Module, values: Tensor) -> None:
    """Set the running statistics of all layers of `model` to `values` (values,)."""
    running = _running(model)
    for name, part in named_statistics(model, values).items():
        running[name].copy_(part)


def _running(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics, which are all buffers of floats; the keys are their names in state_dict()."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
