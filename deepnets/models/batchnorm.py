"""Batch normalisation over the whole batch or groups of it, on however many processes the batch is divided among."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from deepnets.models.parallel import Share

LANES = 64  # float32 numbers in a row, which fill a few of the CPU's vectors
FOLDED_CHANNELS = 8  # with 8 channels or more torch's kernel fills a vector, and is faster


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm2d; in training on a CPU it may normalise maps of few channels by `_Folded`.

    torch's kernel reads the channels of one pixel at a time, which is slow when they do not fill a vector. It also adds
    all values in one float32 sum, so its error is several times as large as the error of `_Folded`.
    """

    may_fold = False  # `batchnorm_kernel` sets it; analyses may need a second derivative, so they use torch's kernel

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.folds(x):
            return self.folded(x)
        return super().forward(x)

    def folds(self, x: Tensor, groups: int = 1) -> bool:
        """Return whether `_Folded` can normalise x (N, C, H, W) in `groups` equal groups faster than torch's kernel."""
        return (
            self.may_fold
            and self.num_features < FOLDED_CHANNELS
            and x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.bfloat16)
            and x.is_contiguous(memory_format=torch.channels_last)
            and len(x) % groups == 0
            and len(x) // groups * x.shape[2] * x.shape[3] % _pixels_in_a_row(self.num_features) == 0
            and not torch.compiler.is_compiling()
        )

    def folded(self, x: Tensor, groups: int = 1) -> Tensor:
        """Normalise x in equal groups; each group moves the running statistics by its share of the momentum."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        _count(self)
        y, means, variances = _Folded.apply(x, self.weight, self.bias, groups, self.eps)
        for mean, variance in zip(means, variances, strict=True):
            self.running_mean.lerp_(mean, self.momentum / groups)
            self.running_var.lerp_(variance, self.momentum / groups)
        return y


def _pixels_in_a_row(channels: int) -> int:
    """Return the largest power of two n for which n pixels of `channels` channels are at most LANES numbers."""
    return 1 << (LANES // channels).bit_length() - 1


class _Folded(torch.autograd.Function):
    """Batch normalisation of equal groups of x (N, C, H, W), which has channels_last strides.

    Several pixels are read as one row of about LANES numbers, so that sums over rows and products use whole vectors;
    the lanes of one channel are added last. Returns y, and each group's mean and unbiased variance, (groups, C).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        channels, pixels = x.shape[1], _pixels_in_a_row(x.shape[1])
        rows = _rows(x, groups).float()
        count = x.numel() // channels // groups

        mean = _by_channel(rows.sum(1), channels) / count
        deviation = rows - _by_lane(mean, pixels)
        variance = _by_channel((deviation * deviation).sum(1), channels) / count
        factor = (variance + eps).rsqrt()
        y = torch.addcmul(bias.repeat(pixels), deviation, _by_lane(weight * factor, pixels))

        ctx.save_for_backward(deviation, weight, factor)
        ctx.count, ctx.pixels = count, pixels
        unbiased = variance * (count / max(count - 1, 1))
        ctx.mark_non_differentiable(mean, unbiased)
        return _maps(y, x), mean, unbiased

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w/s (dy - mean(dy) - x^ mean(dy x^)), with x^ = deviation / s and s^2 = variance + eps."""
        deviation, weight, factor = ctx.saved_tensors
        groups, channels = factor.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        rows = _rows(dy, groups).float()

        dbias = _by_channel(rows.sum(1), channels)
        dweight = _by_channel((rows * deviation).sum(1), channels) * factor
        scale = weight * factor
        constant, slope = scale * dbias / -ctx.count, scale * factor * dweight / -ctx.count
        dx = torch.addcmul(_by_lane(constant, ctx.pixels), deviation, _by_lane(slope, ctx.pixels))
        dx.addcmul_(rows, _by_lane(scale, ctx.pixels))
        return _maps(dx, dy), dweight.sum(0), dbias.sum(0), None, None


def _rows(x: Tensor, groups: int) -> Tensor:
    """View x (N, C, H, W) as (groups, rows, lanes), without a copy."""
    return x.permute(0, 2, 3, 1).view(groups, -1, x.shape[1] * _pixels_in_a_row(x.shape[1]))


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """Undo `_rows`: return maps (N, C, H, W) in the shape and precision of `like`."""
    images, channels, height, width = like.shape
    return rows.to(like.dtype).view(images, height, width, channels).permute(0, 3, 1, 2)


def _by_channel(lanes: Tensor, channels: int) -> Tensor:
    """Add the lanes (groups, lanes) of each channel: (groups, C)."""
    return lanes.view(len(lanes), -1, channels).sum(1)


def _by_lane(values: Tensor, pixels: int) -> Tensor:
    """Repeat each channel's value (groups, C) in all its lanes: (groups, 1, lanes)."""
    return values.repeat(1, pixels).unsqueeze(1)


class GhostBatchNorm(nn.Module):
    """Batch normalisation that in training takes its statistics over groups of at most `images` images.

    The groups are as equal as possible, so that none is tiny. Each group moves the running statistics by its share of
    the momentum. With a `share`, x is this process's part of a batch, and the whole batch is divided into groups. He et
    al.'s batch of 128 lay on two GPUs and was presumably normalised as 2 x 64. Hoffer et al. 2017, "Train longer,
    generalize better".
    """

    def __init__(self, channels: int, *, images: int) -> None:
        super().__init__()
        self.bn = BatchNorm(channels)
        self.images = images
        self.share: Share | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.bn(x)
        if self.share is not None:
            return _normalised(self.bn, x, group_sizes(self.share.images, self.images), self.share)
        if len(x) <= self.images:
            return self.bn(x)
        sizes = group_sizes(len(x), self.images)
        if self.bn.folds(x, len(sizes)):
            return self.bn.folded(x, len(sizes))
        _count(self.bn)
        # Not tensor_split: its backward pass writes each group's gradient into a batch of zeros, and adds these.
        groups = x.split(sizes)
        return torch.cat([self._of_group(group, share=len(group) / len(x)) for group in groups])

    def _of_group(self, group: Tensor, share: float) -> Tensor:
        bn = self.bn
        assert bn.momentum is not None
        statistics = bn.running_mean, bn.running_var
        return batch_norm(group, *statistics, bn.weight, bn.bias, True, share * bn.momentum, bn.eps)

    def extra_repr(self) -> str:
        return f"images={self.images}"


class SynchronizedBatchNorm(BatchNorm):
    """Batch normalisation of x, this process's part of a batch, by the statistics of the whole batch in training.

    torch.nn.SyncBatchNorm refuses the CPU and waits for the GPU three times in each forward pass. This class is a
    BatchNorm2d with the same parameters and buffers, so code for BatchNorm2d takes it too.
    """

    def __init__(self, norm: nn.BatchNorm2d, share: Share) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, device="meta")
        self.load_state_dict(norm.state_dict(), assign=True)
        self.may_fold = getattr(norm, "may_fold", False)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return _normalised(self, x, [self.share.images], self.share)


def let_fold(model: nn.Module, may_fold: bool) -> None:
    """Set whether all batch normalisation of `model` may use `_Folded` in training, or only torch's kernel."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.may_fold = may_fold


def group_sizes(batch: int, images: int) -> list[int]:
    """Return the sizes of the groups of a batch: at most `images`, as equal as possible, the larger ones first."""
    count = ceil(batch / images)
    return [batch // count + (group < batch % count) for group in range(count)]


def _normalised(bn: BatchNorm, x: Tensor, sizes: Sequence[int], share: Share) -> Tensor:
    """Normalise x, this process's part of a batch that is divided into groups of `sizes` images."""
    own_part, edges = share.own, list(accumulate(sizes, initial=0))
    assert bn.running_mean is not None
    assert bn.running_var is not None
    assert bn.momentum is not None
    assert len(x) == own_part.stop - own_part.start, f"{len(x)} images do not fit {share}"
    _count(bn)
    lengths = [max(0, min(last, own_part.stop) - max(first, own_part.start)) for first, last in pairwise(edges)]
    momenta = [size / share.images * bn.momentum for size in sizes]
    if {part.start for part in share.parts} <= set(edges):
        return _of_whole_groups(bn, x, lengths, momenta, len(share.parts))
    counts = [size * x.shape[2] * x.shape[3] for size in sizes]
    with torch.no_grad():
        means, variances = _statistics(x, lengths, sizes, len(share.parts), bn.running_mean)
        for mean, variance, count, momentum in zip(means, variances, counts, momenta, strict=True):
            bn.running_mean.lerp_(mean, momentum)
            bn.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return _OfDividedGroups.apply(x, bn.weight, bn.bias, means, variances, bn.eps, lengths, counts)


def _pieces(x: Tensor, lengths: Sequence[int]) -> dict[int, Tensor]:
    """Split x into its pieces of the groups, by the group's number; a group without images in x is left out."""
    present = {group: length for group, length in enumerate(lengths) if length}
    if len(present) == 1:  # the backward pass of split would copy the gradient
        return dict.fromkeys(present, x)
    return dict(zip(present, x.split([*present.values()]), strict=True))


def _joined(pieces: list[Tensor], x: Tensor) -> Tensor:
    """Join the pieces of x again; there are none if x is empty."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces or [x])


def _of_whole_groups(
    bn: BatchNorm, x: Tensor, lengths: Sequence[int], momenta: Sequence[float], processes: int
) -> Tensor:
    """Normalise x when each group lies within one process, so that the processes need not communicate.

    A process's running statistics count its own groups `processes` times and no others. They are linear in the groups'
    statistics, so their mean over the processes is what one process alone has: see `Training.gather_statistics`.
    """
    assert bn.running_mean is not None
    assert bn.running_var is not None
    for statistic in (bn.running_mean, bn.running_var):
        statistic.mul_(prod(1 - momentum for momentum in momenta))
    normalised = []
    for group, piece in _pieces(x, lengths).items():
        if bn.folds(piece):
            y, (mean,), (variance,) = _Folded.apply(piece, bn.weight, bn.bias, 1, bn.eps)
        else:
            mean, variance = torch.zeros_like(bn.running_mean), torch.zeros_like(bn.running_var)
            y = batch_norm(piece, mean, variance, bn.weight, bn.bias, True, 1.0, bn.eps)
        normalised.append(y)
        weight = processes * momenta[group] * prod(1 - momentum for momentum in momenta[group + 1 :])
        bn.running_mean.add_(mean, alpha=weight)
        bn.running_var.add_(variance, alpha=weight)
    return _joined(normalised, x)


def _statistics(
    x: Tensor, lengths: Sequence[int], sizes: Sequence[int], processes: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means and variances (groups, channels) of groups that lie on several processes; each sends one message.

    Chan et al. 1983, "Algorithms for computing the sample variance": E[x^2] - E[x]^2 would lose digits to cancellation.
    """
    parts = like.new_zeros(len(sizes), 3, *like.shape)
    unused = like.new_empty(2, *like.shape)  # running statistics; their dtype decides the dtype of the result
    for group, piece in _pieces(x, lengths).items():
        mean, variance = torch.batch_norm_update_stats(piece, unused[0], unused[1], 0.0)
        parts[group] = torch.stack([torch.full_like(mean, len(piece) / sizes[group]), mean, variance])
    of_all = parts.new_empty(processes * len(parts), *parts.shape[1:])
    dist.all_gather_into_tensor(of_all, parts)
    weight, mean, variance = of_all.view(processes, *parts.shape).unbind(2)
    means = (weight * mean).sum(0)
    deviation = mean - means
    return means, (weight * torch.addcmul(variance, deviation, deviation)).sum(0)


class _OfDividedGroups(torch.autograd.Function):
    """Batch normalisation by given statistics of groups that are divided among processes.

    For a group of m values, dx = w/s dy - w/s (sum(dy) + sum(dy x^) x^) / m with s^2 = variance + eps. The first term
    is the gradient of a normalisation by constants; torch computes it with this process's part of both sums. The second
    term is x normalised with another weight and bias. Both are torch's fused operations.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        means: Tensor,
        variances: Tensor,
        eps: float,
        lengths: Sequence[int],
        counts: Sequence[int],
    ) -> Tensor:
        ctx.save_for_backward(x, weight, means, variances)
        ctx.eps, ctx.lengths, ctx.counts = eps, lengths, counts
        normalised = [
            batch_norm(piece, means[group], variances[group], weight, bias, eps=eps)
            for group, piece in _pieces(x, lengths).items()
        ]
        return _joined(normalised, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, variances = ctx.saved_tensors
        pieces, factors = _pieces(x, ctx.lengths), (variances + ctx.eps).rsqrt()
        gradients, partial_sums = {}, weight.new_zeros(len(means), 2, *weight.shape)
        for group, dy_piece in _pieces(dy, ctx.lengths).items():
            mean, variance, factor = means[group], variances[group], factors[group]
            gradients[group], *sums = torch.ops.aten.native_batch_norm_backward(
                dy_piece, pieces[group], weight, mean, variance, mean, factor, False, ctx.eps, [True, True, True]
            )
            partial_sums[group] = torch.stack(sums)
        sums = partial_sums.clone()
        dist.all_reduce(sums)
        for group, piece in pieces.items():
            other_weight, other_bias = sums[group] * (weight * factors[group] / -ctx.counts[group])
            gradients[group] += batch_norm(piece, means[group], variances[group], other_weight, other_bias, eps=ctx.eps)
        return _joined([*gradients.values()], dy), *partial_sums.sum(0), None, None, None, None, None


def _count(bn: nn.BatchNorm2d) -> None:
    if bn.num_batches_tracked is not None:  # recomputation sets it to None while statistics must not change
        bn.num_batches_tracked.add_(1)
