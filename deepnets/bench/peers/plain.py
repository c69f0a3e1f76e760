"""The usual PyTorch script for CIFAR, and forms that may be faster: in layout, arithmetic and data, or compiled."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from deepnets.bench.comparison import seconds_of
from deepnets.bench.peers import Task


class PlainImages(Dataset):
    """Images (N, H, W, C) uint8 in memory; PIL and torchvision's transforms process an image when it is requested."""

    def __init__(self, images: Tensor, labels: Tensor, transforms: Sequence[Callable]) -> None:
        from torchvision.transforms import Compose, ToPILImage

        self.images, self.labels = images.numpy(), labels.tolist()
        self.transform = Compose([ToPILImage(), *transforms])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def augmentation(task: Task) -> list[Callable]:
    """Return the transforms that crop and mirror PIL images."""
    from torchvision.transforms import RandomCrop, RandomHorizontalFlip

    crop = [RandomCrop(task.images.shape[1:3], padding=task.pad)] if task.pad else []
    return [*crop, RandomHorizontalFlip()] if task.flip else crop


def normalization(task: Task) -> list[Callable]:
    """Return the transforms that turn PIL images into normalised tensors."""
    from torchvision.transforms import Normalize, ToTensor

    return [ToTensor(), Normalize(task.mean, task.std)]


def loader(
    task: Task, transforms: Sequence[Callable] | None = None, *, trains: bool = True, collate: Callable | None = None
) -> DataLoader:
    """Return a loader as in the usual script; for training it drops the last, short batch: all iterations are equal."""
    return DataLoader(
        PlainImages(task.images, task.labels, transforms or [*augmentation(task), *normalization(task)]),
        task.batch_size,
        shuffle=trains,
        drop_last=trains,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        pin_memory=task.device.type == "cuda",
        collate_fn=collate,
    )


def forever(batches: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a loader, epoch after epoch."""
    while True:
        yield from batches


def tensor_batches(task: Task) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches, epoch after epoch, from one tensor on the device, as scripts written for speed do.

    Indexing crops and mirrors each image, then the batch is normalised; no other processes take part.
    """
    count, height, width, _ = task.images.shape
    padded = torch.nn.functional.pad(task.images.to(task.device).permute(0, 3, 1, 2), [task.pad] * 4)
    labels = task.labels.to(task.device)
    mean, std = (255 * torch.tensor(values, device=task.device).view(-1, 1, 1) for values in (task.mean, task.std))
    rows, columns = torch.arange(height, device=task.device), torch.arange(width, device=task.device)
    while True:
        for chosen in torch.randperm(count, device=task.device).split(task.batch_size)[: count // task.batch_size]:
            top, left = torch.randint(2 * task.pad + 1, (2, len(chosen), 1), device=task.device)
            across = columns.expand(len(chosen), -1)
            if task.flip:
                across = torch.where(torch.rand(len(chosen), 1, device=task.device) < 0.5, across, across.flip(1))
            place = (chosen[:, None, None], slice(None), (top + rows)[:, :, None], (left + across)[:, None, :])
            images = padded[place].permute(0, 3, 1, 2)  # indices on both sides of a slice come first
            yield (images - mean) / std, labels[chosen]


def steps(task: Task, *, as_tensor: bool = False, compiled: bool = False) -> Iterator[None]:
    """Train by the usual loop, which reads no loss; in float32 autocast is off, as in scripts that do not use it."""
    batches = tensor_batches(task) if as_tensor else forever(loader(task))
    model = task.model.to(task.device).to(memory_format=task.layout).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=task.lr, momentum=task.momentum, nesterov=True, weight_decay=task.weight_decay
    )
    autocast = torch.autocast(task.device.type, torch.bfloat16, enabled=task.precision == torch.bfloat16)
    network = torch.compile(model) if compiled else model
    for images, labels in batches:
        images = images.to(task.device, memory_format=task.layout, non_blocking=True)
        labels = labels.to(task.device, non_blocking=True)
        optimizer.zero_grad()
        with autocast:
            loss = cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        yield


def prepare(task: Task, *, as_tensor: bool = False, compiled: bool = False) -> Callable[[int], float]:
    """Prepare the usual loop in the task's precision and layout; the usual script has float32 and NCHW."""
    training = steps(task, as_tensor=as_tensor, compiled=compiled)
    return lambda iterations: seconds_of(training, iterations, task.device)
