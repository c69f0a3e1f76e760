"""Trains by Lightning: a minimal LightningModule, the plain script's loader, and a Trainer that logs nothing."""

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepnets.bench.peers import Task, plain
from deepnets.training.hardware import wait

STARTING = 2  # iterations before the clock: a Trainer starts anew each time, and so do the loader's workers


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


def prepare(task: Task) -> Callable[[int], float]:
    """Prepare a Trainer without logger, checkpoints and progress bar, so that it is as fast as it can be."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    batches, module = plain.loader(task), Module(task)

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
