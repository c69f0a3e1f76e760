"""Batch normalisation over groups of a batch, and over the images of all processes."""

from math import ceil

import torch
import torch.distributed as dist
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
        assert bn.momentum is not None
        statistics = bn.running_mean, bn.running_var
        return batch_norm(group, *statistics, bn.weight, bn.bias, True, share * bn.momentum, bn.eps)

    def extra_repr(self) -> str:
        return f"images={self.images}"


class SynchronizedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics in training are over the batches of all processes together.

    torch.nn.SyncBatchNorm is this for GPUs and refuses the CPU. This is a BatchNorm2d, with its parameters and buffers,
    so that whatever knows those knows it.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        values = x.float()
        images = x.new_full((1,), x.numel() // x.shape[1], dtype=torch.float32)
        own = values.mean((0, 2, 3))
        count, total = _sum(torch.cat((images, images * own))).split((1, len(own)))
        mean = total / count
        # Squares about the common mean: sums of plain squares would cancel.
        variance = _sum((values - mean.view(1, -1, 1, 1)).square().sum((0, 2, 3))) / count
        self._keep(mean.detach(), variance.detach(), count)
        scale = self.weight * (variance + self.eps).rsqrt()
        shift = self.bias - mean * scale
        return (values * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)).to(x.dtype)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.num_batches_tracked is not None:  # it is None while recomputation lets the statistics be
            self.num_batches_tracked.add_(1)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)


def synchronize(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with every batch normalisation over all processes, for training on `device`."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, _synchronized(child))
    return model


def _synchronized(norm: nn.BatchNorm2d) -> SynchronizedBatchNorm:
    synchronized = SynchronizedBatchNorm(norm.num_features, norm.eps, norm.momentum, device="meta")
    synchronized.load_state_dict(norm.state_dict(), assign=True)
    return synchronized


class _Sum(torch.autograd.Function):
    """The sum over all processes, of the values and, backwards, of the gradients."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        return _sum_in_place(values.clone())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return _sum_in_place(gradient.clone(memory_format=torch.contiguous_format))


def _sum(values: Tensor) -> Tensor:
    return _Sum.apply(values)


def _sum_in_place(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values
