"""Batch normalisation over the whole batch or groups of it, on however many processes the batch is divided among."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from deepnets.models.share import Share


class GhostBatchNorm(nn.Module):
    """Batch normalisation whose statistics in training are over groups of at most `images` images, not the whole batch.

    A batch that `images` does not divide falls into groups as equal as possible, so that none is tiny; each group moves
    the running statistics by its share of the momentum. The groups are those of the whole batch: with a `share`, x is
    this process's part of it. He et al.'s batch of 128 lay on two GPUs, presumably normalised as 2 x 64. Hoffer et al.
    2017, "Train longer, generalize better".
    """

    def __init__(self, channels: int, *, images: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.images = images
        self.share: Share | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.bn(x)
        if self.share is not None:
            return _normalised(self.bn, x, group_sizes(self.share.images, self.images), self.share)
        if len(x) <= self.images:
            return self.bn(x)
        _count(self.bn)
        # split, as the gradient of tensor_split is written once into zeros and added for each group
        groups = x.split(group_sizes(len(x), self.images))
        return torch.cat([self._of_group(group, share=len(group) / len(x)) for group in groups])

    def _of_group(self, group: Tensor, share: float) -> Tensor:
        bn = self.bn
        assert bn.momentum is not None
        statistics = bn.running_mean, bn.running_var
        return batch_norm(group, *statistics, bn.weight, bn.bias, True, share * bn.momentum, bn.eps)

    def extra_repr(self) -> str:
        return f"images={self.images}"


class SynchronizedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics in training are over the whole batch, of which x is this process's part.

    torch.nn.SyncBatchNorm refuses the CPU and waits for the GPU three times in each forward pass. This is a
    BatchNorm2d, with its parameters and buffers, so that whatever knows those knows it.
    """

    def __init__(self, norm: nn.BatchNorm2d, share: Share) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, device="meta")
        self.load_state_dict(norm.state_dict(), assign=True)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return _normalised(self, x, [self.share.images], self.share)


def group_sizes(batch: int, images: int) -> list[int]:
    """How many images each group of a batch has: at most `images`, as equal as possible, the larger ones first."""
    count = ceil(batch / images)
    return [batch // count + (group < batch % count) for group in range(count)]


def _normalised(bn: nn.BatchNorm2d, x: Tensor, sizes: Sequence[int], share: Share) -> Tensor:
    """x, this process's part of a batch, normalised by the statistics of groups of `sizes` of the whole batch."""
    own, edges = share.own, list(accumulate(sizes, initial=0))
    assert bn.momentum is not None
    assert len(x) == own.stop - own.start, f"{len(x)} images are not those of {share}"
    _count(bn)
    lengths = [max(0, min(last, own.stop) - max(first, own.start)) for first, last in pairwise(edges)]
    present = [group for group, length in enumerate(lengths) if length]
    pieces = dict(zip(present, x.split([lengths[group] for group in present]), strict=True))
    momenta = [size / share.images * bn.momentum for size in sizes]
    if {part.start for part in share.parts} <= set(edges):
        normalised = _of_whole_groups(bn, pieces, momenta, len(share.parts))
    else:
        normalised = _of_divided_groups(bn, pieces, sizes, momenta)
    return normalised[0] if len(normalised) == 1 else torch.cat(normalised)


def _of_whole_groups(
    bn: nn.BatchNorm2d, pieces: dict[int, Tensor], momenta: Sequence[float], processes: int
) -> list[Tensor]:
    """Each group lies within one process: nothing is communicated.

    A process's running statistics count its own groups `processes` times and the others' not at all. As they are linear
    in the groups' statistics, their mean over the processes is what one process has: `Training.gather_statistics`.
    """
    assert bn.running_mean is not None
    assert bn.running_var is not None
    for statistic in (bn.running_mean, bn.running_var):
        statistic.mul_(prod(1 - momentum for momentum in momenta))
    normalised = []
    for group, piece in pieces.items():
        mean, variance = torch.zeros_like(bn.running_mean), torch.zeros_like(bn.running_var)
        normalised.append(batch_norm(piece, mean, variance, bn.weight, bn.bias, True, 1.0, bn.eps))
        weight = processes * momenta[group] * prod(1 - momentum for momentum in momenta[group + 1 :])
        bn.running_mean.add_(mean, alpha=weight)
        bn.running_var.add_(variance, alpha=weight)
    return normalised


def _of_divided_groups(
    bn: nn.BatchNorm2d, pieces: dict[int, Tensor], sizes: Sequence[int], momenta: Sequence[float]
) -> list[Tensor]:
    """Some group lies on several processes: the statistics of all are summed over the processes, in two sums."""
    assert bn.running_mean is not None
    assert bn.running_var is not None
    first = next(iter(pieces.values()))
    area = first.shape[2] * first.shape[3]
    values = {group: piece if piece.dtype == torch.float64 else piece.float() for group, piece in pieces.items()}
    counts = [size * area for size in sizes]

    def means_of(own: dict[int, Tensor]) -> list[Tensor]:
        none = torch.zeros_like(next(iter(own.values())))
        sums = _Sum.apply(torch.stack([own.get(group, none) for group in range(len(sizes))]))
        return [total / count for total, count in zip(sums.unbind(), counts, strict=True)]

    means = means_of({group: len(x) * area * x.mean((0, 2, 3)) for group, x in values.items()})
    # Squares about the common mean: sums of plain squares would cancel.
    centred = {group: (x - means[group].view(1, -1, 1, 1)).square().sum((0, 2, 3)) for group, x in values.items()}
    variances = means_of(centred)
    with torch.no_grad():
        for mean, variance, count, momentum in zip(means, variances, counts, momenta, strict=True):
            bn.running_mean.lerp_(mean, momentum)
            bn.running_var.lerp_(variance * count / (count - 1), momentum)
    normalised = []
    for group, x in values.items():
        scale = bn.weight * (variances[group] + bn.eps).rsqrt()
        shift = bn.bias - means[group] * scale
        normalised.append((x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)).to(first.dtype))
    return normalised


def _count(bn: nn.BatchNorm2d) -> None:
    if bn.num_batches_tracked is not None:  # it is None while recomputation lets the statistics be
        bn.num_batches_tracked.add_(1)


class _Sum(torch.autograd.Function):
    """The sum over all processes, of the values and, backwards, of the gradients."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        return _sum_in_place(values.clone())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return _sum_in_place(gradient.clone(memory_format=torch.contiguous_format))


def _sum_in_place(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values
