"""Builds the objects of a run from its configuration."""

import json
from functools import lru_cache

import torch
from torch import nn

from deepnets.config.build import build, check_budget
from deepnets.config.schema import BatchNormKernel, Config
from deepnets.data.dataset import Dataset, Splits
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.models.batchnorm import let_fold
from deepnets.models.network import divide
from deepnets.system.settings import Memory
from deepnets.training.fit import Sums, Training
from deepnets.training.hardware import keep_freed_memory, set_arithmetic


def prepare(config: Config, device: torch.device, precision: torch.dtype, world: World = ALONE) -> Training:
    """Build a run in its initial state for this process of `world`; every process has the same weights."""
    if device.type == "cpu":
        keep_freed_memory()
    set_arithmetic(deterministic=config.deterministic)
    dataset = dataset_of(config)
    splits = splits_of(dataset, device)
    batches = dataset.training_batches(splits, batch_size=config.batch_size, seed=config.seed, world=world)
    torch.manual_seed(config.seed)
    model = model_of(config, dataset.shape, dataset.classes).to(device).to(memory_format=torch.channels_last)
    let_fold(model, config.batchnorm_kernel is BatchNormKernel.auto)
    if world.size > 1:
        divide(model, batches.share)
    optimizer = build("optimizer", config.optimizer, model=model)
    iterations = iterations_of(config, len(batches))
    schedule = build("schedule", config.schedule, total=iterations)
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        batches=batches,
        evaluated={**dataset.batches_to_evaluate(splits, batch_size=config.evaluation_batch_size, world=world)},
        iterations=iterations,
        device=device,
        precision=precision,
        sums=Sums(device),
        criterion=build("loss", config.loss),
        world=world,
        step=config.step,
        clip_gradient_norm=config.clip_gradient_norm,
        log_iterations=config.log_iterations,
    )


def model_of(config: Config, shape: tuple[int, int, int], classes: int) -> nn.Module:
    model = build("model", config.model, shape=shape, classes=classes)
    if config.memory is not Memory.full:
        if not hasattr(model, "keep"):
            raise UserError(
                f"memory={config.memory}: {type(model).__name__} does not support recomputation; use memory=full"
            )
        model.keep(config.memory)
    return model


def dataset_of(config: Config) -> Dataset:
    return _built(json.dumps(config.dataset, sort_keys=True))


@lru_cache(maxsize=4)
def _built(key: str) -> Dataset:
    return build("dataset", json.loads(key))


def splits_of(dataset: Dataset, device: torch.device) -> Splits:
    """Return the images; all runs of this process with the same dataset node share them. A GPU holds one data set."""
    if device.type == "cuda":
        if (dataset, device) not in _on_gpu:
            _on_gpu.clear()  # frees the memory that the next data set may need
            torch.cuda.empty_cache()  # so that the check of free memory counts it
            _on_gpu[dataset, device] = dataset.load(device)
        return _on_gpu[dataset, device]
    splits = _on_cpu(dataset, device)
    if isinstance(splits, UserError):
        raise splits
    return splits


_on_gpu: dict[tuple[Dataset, torch.device], Splits] = {}


@lru_cache(maxsize=4)
def _on_cpu(dataset: Dataset, device: torch.device) -> Splits | UserError:
    try:
        return dataset.load(device)
    except UserError as error:  # keep the error, so that a sweep does not look for the data again for each row
        return error


def iterations_of(config: Config, epoch_iterations: int) -> int:
    """Return the budget in iterations at the run's scale; an epoch has `epoch_iterations` iterations.

    Raises:
        UserError: `check_budget` raises it.
    """
    check_budget(config)
    iterations = config.iterations if config.epochs is None else config.epochs * epoch_iterations
    assert iterations
    return max(1, round(iterations * config.scale.budget))
