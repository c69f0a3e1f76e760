"""Trains by timm: its loader, optimiser and meters in the loop of its train.py, which its package leaves out.

timm has no network for CIFAR, so it trains the task's. Its own augmentation is for ImageNet, so the task's replaces it.
"""

import time
from collections.abc import Callable, Iterator

import torch
from timm.data.loader import PrefetchLoader, fast_collate
from timm.data.transforms import ToNumpy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter
from torch.nn.functional import cross_entropy

from deepnets.bench.comparison import seconds_of
from deepnets.bench.peers import Task, plain


def loader(task: Task) -> PrefetchLoader:
    """Return a loader that normalises uint8 batches on the device, one batch ahead of the loop."""
    batches = plain.loader(task, [*plain.augmentation(task), ToNumpy()], collate=fast_collate)
    return PrefetchLoader(batches, task.mean, task.std, channels=task.images.shape[3], device=task.device)


def steps(task: Task) -> Iterator[None]:
    """Train by train.py's loop for one process, with --amp in bfloat16 and --channels-last; it reads each loss."""
    model = task.model.to(task.device).to(memory_format=task.layout).train()
    optimizer = create_optimizer_v2(
        model, opt="sgd", lr=task.lr, weight_decay=task.weight_decay, momentum=task.momentum, filter_bias_and_bn=False
    )
    autocast = torch.autocast(task.device.type, torch.bfloat16, enabled=task.precision == torch.bfloat16)
    losses, seconds, waited = AverageMeter(), AverageMeter(), AverageMeter()
    end = time.time()
    for images, labels in plain.forever(loader(task)):
        waited.update(time.time() - end)
        images = images.contiguous(memory_format=task.layout)
        with autocast:
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(images))
        seconds.update(time.time() - end)
        end = time.time()
        yield


def prepare(task: Task) -> Callable[[int], float]:
    """Prepare timm's loop."""
    training = steps(task)
    return lambda iterations: seconds_of(training, iterations, task.device)
