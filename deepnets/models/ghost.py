"""Batch normalisation over groups of a batch."""

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm


class GhostBatchNorm(nn.Module):
    """Batch normalisation whose statistics in training are over groups of at most `images` images, not the whole batch.

    A batch that `images` does not divide falls into groups as equal as possible, so that none is tiny; each group moves
    the running statistics by its share of the momentum. This is what one process does that stands for several devices:
    He et al.'s batch of 128 lay on two GPUs, presumably normalised as 2 x 64. Hoffer et al. 2017, "Train longer,
    generalize better".
    """

    def __init__(self, channels: int, *, images: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.images = images

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or len(x) <= self.images:
            return self.bn(x)
        if self.bn.num_batches_tracked is not None:  # it is None while recomputation lets the statistics be
            self.bn.num_batches_tracked.add_(1)
        count = ceil(len(x) / self.images)
        # split, as the gradient of tensor_split is written once into zeros and added for each group
        groups = x.split([len(x) // count + (group < len(x) % count) for group in range(count)])
        return torch.cat([self._normalised(group, share=len(group) / len(x)) for group in groups])

    def _normalised(self, group: Tensor, share: float) -> Tensor:
        bn = self.bn
        statistics = bn.running_mean, bn.running_var
        return batch_norm(group, *statistics, bn.weight, bn.bias, True, share * bn.momentum, bn.eps)

    def extra_repr(self) -> str:
        return f"images={self.images}"
