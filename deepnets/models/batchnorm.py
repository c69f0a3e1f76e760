"""Batch normalisation over a whole batch or over groups of it; several processes may share the batch."""

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

LANES = 64  # at most so many float32 numbers are in a row of `_Folded`, enough to fill a few of the CPU's vectors
FOLDED_CHANNELS = 8  # from 8 channels on, torch's kernel fills a vector and is faster


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm2d, except that in training on a CPU `_Folded` may normalise maps with few channels.

    torch's kernel reads the channels of one pixel at a time, which is slow if they do not fill a vector. It also adds
    all values in one float32 sum, so its rounding error is several times as large as `_Folded`'s. To fold means here to
    read several pixels as one row; nothing is fused with a convolution.
    """

    may_fold = False  # `let_fold` sets it for training; analyses may need second derivatives, which `_Folded` lacks

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.folds(x):
            return self.folded(x)
        return super().forward(x)

    def folds(self, x: Tensor, groups: int = 1) -> bool:
        """Return whether `_Folded` may normalise x (N, C, H, W) in `groups` equal groups, and is faster at it."""
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
        """Normalise x in equal groups; each group updates the running statistics with weight momentum / groups."""
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
    """Return the largest power of two n for which n pixels, each of `channels` numbers, have at most LANES numbers."""
    return 1 << (LANES // channels).bit_length() - 1


class _Folded(torch.autograd.Function):
    """Normalises equal groups of x (N, C, H, W), which has channels_last strides.

    Several pixels are read as one row of at most LANES numbers, so that products and sums over the rows use whole
    vectors. Then the lanes of each channel are added. Returns y, and each group's mean and unbiased variance
    (groups, C).
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
        """dx = w/s (dy - mean(dy) - x^ mean(dy x^)), where x^ = deviation / s and s^2 = variance + eps."""
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
    """Batch normalisation that in training divides a batch into groups, and normalises each by its own statistics.

    A group has at most `images` images; the groups are as equal in size as possible, so that none is tiny. Each group
    updates the running statistics with the momentum times its fraction of the batch. With a `share`, x is this
    process's part of a batch, and the groups divide the whole batch. He et al. trained batches of 128 images on two
    GPUs, and each presumably normalised 64 images. Hoffer et al. 2017, "Train longer, generalize better".
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
        # Not tensor_split: its backward pass writes each group's gradient into a batch of zeros, then adds the batches.
        groups = x.split(sizes)
        return torch.cat([self._of_group(group, fraction=len(group) / len(x)) for group in groups])

    def _of_group(self, group: Tensor, fraction: float) -> Tensor:
        bn = self.bn
        assert bn.momentum is not None
        statistics = bn.running_mean, bn.running_var
        return batch_norm(group, *statistics, bn.weight, bn.bias, True, fraction * bn.momentum, bn.eps)

    def extra_repr(self) -> str:
        return f"images={self.images}"


class SynchronizedBatchNorm(BatchNorm):
    """Batch normalisation that in training normalises this process's part x by the statistics of the whole batch.

    torch.nn.SyncBatchNorm refuses the CPU and waits for the GPU three times in each forward pass. This class is a
    BatchNorm2d with the same parameters and buffers, so code that expects a BatchNorm2d accepts it.
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
    """Let all batch normalisation in `model` use `_Folded` in training, or restrict it to torch's kernel."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.may_fold = may_fold


def group_sizes(batch: int, images: int) -> list[int]:
    """Divide a batch into groups of at most `images` images; return their sizes, which differ by 1 at most."""
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
    """Split x into one piece for each group, by the group's number; leave out groups that have no images in x."""
    present = {group: length for group, length in enumerate(lengths) if length}
    if len(present) == 1:  # the backward pass of split would copy the gradient
        return dict.fromkeys(present, x)
    return dict(zip(present, x.split([*present.values()]), strict=True))


def _joined(pieces: list[Tensor], x: Tensor) -> Tensor:
    """Join the pieces of x again; an empty x has no pieces."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces or [x])


def _of_whole_groups(
    bn: BatchNorm, x: Tensor, lengths: Sequence[int], momenta: Sequence[float], processes: int
) -> Tensor:
    """Normalise x when no group is divided among processes, so that the processes need not communicate.

    Each process updates its running statistics only by its own groups, but with `processes` times their weight.
    `Training.gather_statistics` then averages over the processes. The running statistics are linear in the groups'
    statistics, so this mean equals the running statistics of a single process that has the whole batch.
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
    """Return the means and variances (groups, channels) of groups that are divided among processes.

    Each process sends one message. The statistics of the pieces are combined as in Chan et al. 1983, "Algorithms for
    computing the sample variance", because E[x^2] - E[x]^2 would lose digits to cancellation.
    """
    parts = like.new_zeros(len(sizes), 3, *like.shape)
    unused = like.new_empty(2, *like.shape)  # placeholders for running statistics; the result has their dtype
    for group, piece in _pieces(x, lengths).items():
        mean, variance = torch.batch_norm_update_stats(piece, unused[0], unused[1], 0.0)
        parts[group] = torch.stack([torch.full_like(mean, len(piece) / sizes[group]), mean, variance])
    gathered = parts.new_empty(processes * len(parts), *parts.shape[1:])
    # Older versions of torch know the function only by the second name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered, parts)
    weight, mean, variance = gathered.view(processes, *parts.shape).unbind(2)
    means = (weight * mean).sum(0)
    deviation = mean - means
    return means, (weight * torch.addcmul(variance, deviation, deviation)).sum(0)


class _OfDividedGroups(torch.autograd.Function):
    """Normalises groups that are divided among processes, by the given means and variances.

    For a group of m values, dx = w/s dy - w/s (sum(dy) + sum(dy x^) x^) / m with s^2 = variance + eps. The first term
    is the gradient of a normalisation by constants; the same call of torch returns this process's part of both sums.
    The second term is x normalised with another weight and bias. Torch has a fused operation for each term.
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
    if bn.num_batches_tracked is not None:  # None during recomputation, when the statistics must not change
        bn.num_batches_tracked.add_(1)
