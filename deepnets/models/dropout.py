"""Dropout whose mask is drawn for the whole batch, on however many processes the batch is divided among."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepnets.models.share import Share


def dropout(x: Tensor, rate: float, training: bool, share: Share | None) -> Tensor:
    """torch's dropout of x (n, ...); with a `share`, x is this process's part of the batch.

    Every process draws the mask of the whole batch, as one process alone would, and takes its part: their generators
    stay equal, whatever their number.
    """
    if share is None or not training or rate == 0:
        return F.dropout(x, rate, training)
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if is_last else torch.contiguous_format  # the draws follow it
    whole = torch.empty((share.images, *x.shape[1:]), dtype=x.dtype, device=x.device, memory_format=layout)
    return x * F.dropout(whole.fill_(1), rate)[share.own]


class Dropout(nn.Dropout):
    """torch's Dropout on this process's part of a batch."""

    def __init__(self, rate: float, share: Share) -> None:
        super().__init__(rate)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training, self.share)
