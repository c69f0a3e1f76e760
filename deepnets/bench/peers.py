"""Peers train the same network in other ways, and deepnets is compared with them; each of them gets the same task.

The plain peer is the usual PyTorch script for CIFAR. Its other forms may be faster: they have another layout,
arithmetic or data pipeline, or are compiled. timm and Lightning are imported only when somebody compares with them. A
peer may also be a user's file.
"""

import importlib.util
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from deepnets.bench.comparison import BenchRun, precision_name, seconds_of
from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.run import build_model
from deepnets.training.hardware import wait

STARTING = 2  # iterations before the one whose end starts the clock: a Trainer and its loader's workers start anew


@dataclass(frozen=True)
class Task:
    """The training of `model` by SGD with Nesterov momentum on images that are shifted, mirrored and normalised.

    A peer is a Python file with a function `prepare(task) -> Callable[[int], float]`. Each call of the returned
    function with a number trains this many more iterations of `batch_size` and returns the seconds that they took.
    `prepare` does all that a peer does once (starts workers, compiles). The table names the peer after its file.

    `model` is fresh, on the CPU, float32 and NCHW. `images` (N, H, W, C) uint8 and `labels` (N,) int64 are on the CPU;
    `mean` and `std` have a value for each channel, on a scale of 0 to 1. The peer surrounds an image by `pad` pixels of
    zeros and takes a crop of its size; `flip` mirrors half of the images. deepnets trains in the same `precision` (for
    bfloat16 by autocast) and `layout`.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor
    mean: list[float]
    std: list[float]
    pad: int
    flip: bool
    batch_size: int
    device: torch.device
    precision: torch.dtype
    workers: int
    layout: torch.memory_format = torch.channels_last
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4


def task_of(run: BenchRun, split: Split, pad: int, flip: bool, workers: int) -> Task:
    """Make the task to train the network of a run on these images, which have values 0..255."""
    images = split.images.cpu()
    scaled = images.float().div_(255)
    return Task(
        model=build_model(list(run.overrides)),
        images=images,
        labels=split.labels.cpu(),
        mean=scaled.mean((0, 1, 2)).tolist(),
        std=scaled.std((0, 1, 2)).tolist(),
        pad=pad,
        flip=flip,
        batch_size=run.config.batch_size,
        device=run.device,
        precision=run.precision,
        workers=workers,
    )


def peer_in(path: Path) -> ModuleType:
    """Import the peer in a user's file.

    Raises:
        UserError: there is no such file, or it is not a peer.
    """
    if not path.is_file():
        raise UserError(f"--peer {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--peer {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "prepare", None)):
        raise UserError(f"--peer {path}: defines no prepare(task) -> Callable[[int], float] (deepnets/bench/peers.py)")
    return module


def arithmetic_name(precision: torch.dtype, layout: torch.memory_format) -> str:
    """Return the name of an arithmetic, e.g. "bfloat16 channels_last"."""
    return f"{precision_name(precision)} {'channels_last' if layout == torch.channels_last else 'NCHW'}"


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


def plain_augmentation(task: Task) -> list[Callable]:
    """Return the transforms that crop and mirror PIL images."""
    from torchvision.transforms import RandomCrop, RandomHorizontalFlip

    crop = [RandomCrop(task.images.shape[1:3], padding=task.pad)] if task.pad else []
    return [*crop, RandomHorizontalFlip()] if task.flip else crop


def plain_normalization(task: Task) -> list[Callable]:
    """Return the transforms that turn PIL images into normalised tensors."""
    from torchvision.transforms import Normalize, ToTensor

    return [ToTensor(), Normalize(task.mean, task.std)]


def plain_loader(
    task: Task, transforms: Sequence[Callable] | None = None, *, trains: bool = True, collate: Callable | None = None
) -> DataLoader:
    """Return the usual script's loader; in training it drops the last, smaller batch, so that iterations are equal."""
    return DataLoader(
        PlainImages(task.images, task.labels, transforms or [*plain_augmentation(task), *plain_normalization(task)]),
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


def plain_steps(task: Task, *, as_tensor: bool = False, compiled: bool = False) -> Iterator[None]:
    """Train by the usual loop, which reads no loss; in float32, autocast is off."""
    batches = tensor_batches(task) if as_tensor else forever(plain_loader(task))
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


def prepare_plain(task: Task, *, as_tensor: bool = False, compiled: bool = False) -> Callable[[int], float]:
    """Prepare the usual loop in the task's precision and layout; the usual script has float32 and NCHW."""
    training = plain_steps(task, as_tensor=as_tensor, compiled=compiled)
    return lambda iterations: seconds_of(training, iterations, task.device)


def prepare_timm(task: Task) -> Callable[[int], float]:
    """Prepare timm's loader, optimiser and meters, in the loop of its train.py, which is not part of its package.

    timm has no network for CIFAR, so it trains the task's. Its own augmentation is for ImageNet, so the task's replaces
    it. The loop is the one for one process, with --amp in bfloat16 and --channels-last; it reads each loss.

    Raises:
        ModuleNotFoundError: timm is not installed.
    """
    from timm.data.loader import PrefetchLoader, fast_collate
    from timm.data.transforms import ToNumpy
    from timm.optim import create_optimizer_v2
    from timm.utils import AverageMeter

    def steps() -> Iterator[None]:
        loader = plain_loader(task, [*plain_augmentation(task), ToNumpy()], collate=fast_collate)
        # The PrefetchLoader normalises uint8 batches on the device, one batch ahead of the loop.
        batches = PrefetchLoader(loader, task.mean, task.std, channels=task.images.shape[3], device=task.device)
        model = task.model.to(task.device).to(memory_format=task.layout).train()
        optimizer = create_optimizer_v2(
            model,
            opt="sgd",
            lr=task.lr,
            weight_decay=task.weight_decay,
            momentum=task.momentum,
            filter_bias_and_bn=False,
        )
        autocast = torch.autocast(task.device.type, torch.bfloat16, enabled=task.precision == torch.bfloat16)
        losses, seconds, waited = AverageMeter(), AverageMeter(), AverageMeter()
        end = time.time()
        for images, labels in forever(batches):
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

    training = steps()
    return lambda iterations: seconds_of(training, iterations, task.device)


def prepare_lightning(task: Task) -> Callable[[int], float]:
    """Prepare Lightning: a minimal LightningModule, the plain script's loader, and a Trainer as fast as it can be.

    The Trainer has no logger, no checkpoints and no progress bar.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
    """
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        """Computes the network's loss, makes its optimiser, and notes the time when each iteration ends."""

        def __init__(self, task: Task) -> None:
            super().__init__()
            self.task, self.network = task, task.model.to(memory_format=task.layout)
            self.ends: list[float] = []

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            images, labels = batch
            return cross_entropy(self.network(images.to(memory_format=self.task.layout)), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            task = self.task
            return torch.optim.SGD(
                self.parameters(), lr=task.lr, momentum=task.momentum, nesterov=True, weight_decay=task.weight_decay
            )

        def on_train_batch_end(self, *_: Any) -> None:
            if len(self.ends) == STARTING or self.trainer.global_step == self.trainer.max_steps:
                wait(self.task.device)
            self.ends.append(time.perf_counter())

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    batches, module = plain_loader(task), Module(task)

    def seconds(iterations: int) -> float:
        module.ends.clear()
        with warnings.catch_warnings(action="ignore"):  # Lightning advises on workers, loggers and clusters
            trainer = Trainer(
                max_epochs=-1,
                max_steps=STARTING + 1 + iterations,
                accelerator="gpu" if task.device.type == "cuda" else "cpu",
                devices=1 if task.device.index is None else [task.device.index],
                precision="bf16-mixed" if task.precision == torch.bfloat16 else "32-true",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, batches)
        return module.ends[-1] - module.ends[STARTING]

    return seconds
