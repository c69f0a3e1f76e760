"""From a configuration to the objects of a run, everything checked on the way."""

import json
import math
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from deepnets.config import Config, Memory, Selection
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.dataset import Dataset, Splits
from deepnets.errors import UserError
from deepnets.fit import Training
from deepnets.hardware import find_device, keep_freed_memory
from deepnets.metrics import Sums
from deepnets.models.synchronized import synchronize
from deepnets.nodes import build
from deepnets.step import check_network
from deepnets.world import ALONE, World


def check(config: Config) -> None:
    """Whether a run can be executed: everything short of training it. Its data are read and stay in memory.

    Raises:
        UserError: names the first thing that is wrong.
    """
    dataset, _ = check_settings(config)
    # Of several devices none is this process's: those that train read their own.
    splits_of(dataset, find_device(config.device if config.devices == 1 else "cpu"))


def check_settings(config: Config) -> tuple[Dataset, int]:
    """Whether a run can be executed once its data are read; returns the data set and the budget in iterations.

    Raises:
        UserError: names the first thing that is wrong.
    """
    for name in (
        "batch_size",
        "evaluation_batch_size",
        "log_iterations",
        "threads",
        "devices",
        "runs_per_device",
        "stacked",
    ):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: must be at least 1")
    _check_devices(config)
    if config.seed < 0:
        raise UserError(f"seed={config.seed}: must not be negative")
    if not 0 <= config.checkpoint_seconds < math.inf:
        raise UserError(f"checkpoint_seconds={config.checkpoint_seconds}: must be a number of seconds, 0 or more")
    build("optimizer", config.optimizer, config.trusted_targets, model=nn.Linear(1, 1))
    build("schedule", config.schedule, config.trusted_targets, total=1)
    dataset = dataset_of(config)
    if config.selection is Selection.best_validation and not config.dataset["validation"]:
        raise UserError("selection=best_validation: needs a validation split; add for example dataset.validation=5000")
    with torch.device("meta"):
        model = model_of(config, dataset.shape, dataset.classes)
    if not config.trusted_targets:  # a user's own need not be able to compute without numbers
        try_out(model, dataset.shape)
    check_network(config.step.value, model, config.devices)
    # The data come last: looking for them may mean a download.
    iterations = iterations_of(config, dataset)
    if config.batch_size > dataset.training_size:
        raise UserError(
            f"batch_size={config.batch_size}: larger than the training set of {dataset.training_size} images"
        )
    for images in (config.batch_size, dataset.training_size % config.batch_size or config.batch_size):
        if images < config.devices:
            raise UserError(
                f"devices={config.devices}: a batch of {images} cannot be divided among them ({dataset.training_size} "
                f"images in batches of {config.batch_size}); change batch_size or devices"
            )
    return dataset, iterations


def _check_devices(config: Config) -> None:
    device = find_device(config.device)
    if config.sync_batchnorm and config.model.get("batchnorm_images") is not None:
        raise UserError(
            f"sync_batchnorm=true model.batchnorm_images={config.model['batchnorm_images']}: one normalises over the "
            "whole batch, the other over parts of it; choose one"
        )
    if config.devices > 1 and device.type == "cuda":
        if ":" in config.device:
            raise UserError(f"devices={config.devices} device={config.device}: names one GPU; give device=cuda")
        if config.devices > torch.cuda.device_count():
            raise UserError(f"devices={config.devices}: this machine has {torch.cuda.device_count()}")


def prepare(config: Config, device: torch.device, precision: torch.dtype, world: World = ALONE) -> Training:
    """A run at its beginning, as this process of `world` sees it; every process has the same weights."""
    if device.type == "cpu":
        keep_freed_memory()
    dataset = dataset_of(config)
    splits = splits_of(dataset, device)
    torch.manual_seed(config.seed)
    model = model_of(config, dataset.shape, dataset.classes).to(device, memory_format=torch.channels_last)
    if world.size > 1 and config.sync_batchnorm:
        model = synchronize(model, device)
    if not world.is_first:  # what is drawn from now on, for dropout, differs
        torch.manual_seed(int(np.random.SeedSequence((config.seed, world.rank)).generate_state(1)[0]))
    optimizer = build("optimizer", config.optimizer, config.trusted_targets, model=model)
    iterations = iterations_of(config, dataset)
    schedule = build("schedule", config.schedule, config.trusted_targets, total=iterations)
    evaluated = {"validation": splits.validation, "test": splits.test}
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        batches=TrainingBatches(
            splits.train,
            splits.normalization,
            pad=dataset.pad,
            flip=dataset.flip,
            batch_size=config.batch_size,
            seed=config.seed,
            world=world,
        ),
        evaluated={
            name: EvaluationBatches(split, splits.normalization, batch_size=config.evaluation_batch_size, world=world)
            for name, split in evaluated.items()
            if split is not None
        },
        iterations=iterations,
        device=device,
        precision=precision,
        sums=Sums(device),
        world=world,
        step=config.step.value,
    )


def model_of(config: Config, shape: tuple[int, int, int], classes: int) -> nn.Module:
    model = build("model", config.model, config.trusted_targets, shape=shape, classes=classes)
    if config.memory is not Memory.full:
        if not hasattr(model, "keep"):
            raise UserError(f"memory={config.memory.value}: {type(model).__name__} always keeps all; give memory=full")
        model.keep(config.memory.value)
    return model


def try_out(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Compute the logits of one image without numbers, of a model on the meta device, which is left in evaluation mode.

    Raises:
        UserError: its parts do not fit together.
    """
    try:
        with torch.no_grad():
            model.eval()(torch.empty(1, *shape, device="meta"))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"model: its layers, shortcuts and widths do not fit together: {error}") from error


def dataset_of(config: Config) -> Dataset:
    return _built(json.dumps([config.dataset, config.trusted_targets], sort_keys=True))


@lru_cache(maxsize=4)
def _built(key: str) -> Dataset:
    node, trusted = json.loads(key)
    return build("dataset", node, trusted)


def splits_of(dataset: Dataset, device: torch.device) -> Splits:
    """The images, shared by all rows of this process that name the same dataset node."""
    splits = _read(dataset, device)
    if isinstance(splits, UserError):
        raise splits
    return splits


@lru_cache(maxsize=4)
def _read(dataset: Dataset, device: torch.device) -> Splits | UserError:
    try:
        return dataset.load(device)
    except UserError as error:  # kept, so that a grid does not look again for each of its rows
        return error


def iterations_of(config: Config, dataset: Dataset) -> int:
    budgets = {"epochs": config.epochs, "iterations": config.iterations}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) != 1:
        what = " and ".join(f"{name}={value}" for name, value in budgets.items())
        raise UserError(f"{what}: give one of them and null for the other, as in 'epochs=null iterations=64000'")
    ((name, value),) = given.items()
    if value < 1:
        raise UserError(f"{name}={value}: must be at least 1")
    if not 0 < config.scale.budget <= 1:
        raise UserError(f"scale.budget={config.scale.budget}: must be above 0 and at most 1, which is the whole budget")
    iterations = value if name == "iterations" else value * math.ceil(dataset.training_size / config.batch_size)
    return max(1, round(iterations * config.scale.budget))
