"""A network that trains on one process's part of a batch as it would on the whole one."""

import torch
from torch import Tensor, nn

from deepnets.models.batchnorm import BatchNorm, GhostBatchNorm, SynchronizedBatchNorm
from deepnets.models.dropout import Dropout
from deepnets.models.share import Share
from deepnets.models.shortcuts import Dropped


def divide(model: nn.Module, share: Share) -> None:
    """Let all layers whose output depends on more than one image, or that draw, know this process's share of a batch.

    Layers of classes of one's own that contain torch's BatchNorm2d and Dropout take part; those that compute statistics
    or draw random numbers themselves do so for this process's part alone.
    """
    for module in list(model.modules()):
        if isinstance(module, GhostBatchNorm | Dropped):
            module.share = share
            continue  # the statistics of a ghost's own BatchNorm2d are computed by the ghost
        for name, child in module.named_children():
            if type(child) in (nn.BatchNorm2d, BatchNorm):
                setattr(module, name, SynchronizedBatchNorm(child, share))
            elif type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p, share))


def statistics_of(model: nn.Module) -> Tensor:
    """The running statistics of all its layers, one behind the other: (values,)."""
    device = next(model.parameters()).device
    return torch.cat([torch.zeros(0, device=device), *(buffer.flatten() for buffer in _running(model).values())])


def mean_statistics(statistics: Tensor) -> Tensor:
    """The whole batch's running statistics from those of every process (processes, values)."""
    first = statistics[0]
    return first + (statistics - first).mean(0)  # equal ones stay what they are, to the bit


def named_statistics(model: nn.Module, values: Tensor) -> dict[str, Tensor]:
    """`values` (values,), as `statistics_of` returns them, by the names that they have in the state of `model`."""
    running = _running(model)
    parts = values.split([buffer.numel() for buffer in running.values()])
    return {name: part.view_as(running[name]) for name, part in zip(running, parts, strict=True)}


def set_statistics(model: nn.Module, values: Tensor) -> None:
    """Let the running statistics of all layers be `values` (values,)."""
    running = _running(model)
    for name, part in named_statistics(model, values).items():
        running[name].copy_(part)


def _running(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
