"""Checks that a run can be executed, before it writes or trains anything."""

import json
import math
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from deepnets.config.build import build, check_node, check_plain_settings, own_targets
from deepnets.config.schema import Config, Selection, StepKind
from deepnets.data.augmentation import Operation
from deepnets.data.dataset import Dataset, memory_size
from deepnets.errors import UserError, first_line, own_code_message
from deepnets.models.batchnorm import GhostBatchNorm, group_sizes
from deepnets.models.shortcuts import Gated
from deepnets.system.printing import print_line
from deepnets.training.assembly import dataset_of, iterations_of, splits_of
from deepnets.training.hardware import find_device, with_counted_devices
from deepnets.training.size import (
    meta_network,
    network_key,
    optimizer_key,
    passed,
    remember_passed,
    size_of,
)
from deepnets.training.step import check_network, check_step

LARGEST_TRIED = 30_000_000  # a network with more parameters is not tried on a CPU
NO_VALIDATION = "needs a validation split; add dataset.validation=IMAGES, e.g. 5000 of CIFAR-10's 50000"


def check(config: Config, code: str | None = None) -> None:
    """Check everything about a run except its training; this reads the run's data, which stay in memory.

    For `code` see `check_settings`.

    Raises:
        UserError: names the first thing that is wrong.
    """
    config = with_counted_devices(config)
    dataset, _ = check_settings(config, code)
    # With several devices, each training process reads the data onto its own device.
    splits_of(dataset, find_device(config.device if config.devices == 1 else "cpu"))


def check_settings(config: Config, code: str | None = None) -> tuple[Dataset, int]:
    """Check that a run can be executed, without reading its data; returns the data set and the budget in iterations.

    A network with the user's own classes is tried out, once in each process. `code` is a hash of all the user's code
    that the run uses: if the network has passed with the same hash, later commands do not try it again either.

    Raises:
        UserError: names the first thing that is wrong.
    """
    config = with_counted_devices(config)
    check_plain_settings(config)
    _check_devices(config)
    check_node("optimizer", config.optimizer, ["model"])
    dataset = dataset_of(config)
    is_own = bool(own_targets(config.model))
    tried = network_key(config, dataset, code) if is_own and code else None
    size = passed().get(tried) if tried else None
    if size:
        check_node("model", config.model, ["shape", "classes"])  # this command must trust its classes, too
        check_memory(size)
    elif is_own:
        size = sum(parameter.nbytes for parameter in meta_network(config, dataset).parameters())
        check_memory(size)
    else:
        check_memory(size_of(config, dataset).bytes)
    _check_optimizer(config)
    if is_own and not (tried and tried in passed()):
        is_tried = _try_out_own(json.dumps(config.model, sort_keys=True), dataset.shape, dataset.classes)
        if is_tried and tried and size:
            remember_passed(tried, size)
    operations = list(zip(getattr(dataset, "augmentation", ()), config.dataset.get("augmentation") or (), strict=False))
    for place, (operation, node) in enumerate(operations):
        if own_targets(node):
            _try_out_operation(f"dataset.augmentation[{place}]", operation, dataset)
    _try_out_loss(json.dumps(config.loss, sort_keys=True), dataset.classes, bool(operations))
    if config.step is not StepKind.eager:
        check_network(config.step, meta_network(config, dataset), dataset.is_streamed)
    # The data come last, because they may have to be downloaded.
    iterations = check_batches(config, dataset)
    for images in _batch_sizes(config, dataset):
        groups = group_sizes(images, config.model.get("batchnorm_images") or images)
        if groups[-1] == 1 and not is_own:
            _try_out_single(meta_network(config, dataset), dataset.shape, images)
    return dataset, iterations


def check_processes(config: Config) -> None:
    """Check that the processes of a run can start on this machine.

    This builds no network, because that would take a second.

    Raises:
        UserError: names the first thing that is wrong.
    """
    _check_devices(config)
    check_batches(config, dataset_of(config))


def check_batches(config: Config, dataset: Dataset) -> int:
    """Check that budget, schedule and batches suit the data and the processes; returns the budget in iterations.

    Raises:
        UserError: names the first thing that is wrong.
    """
    check_step(config.step, config.devices)
    if config.selection is Selection.best_validation:
        if not config.dataset["validation"]:
            raise UserError(f"selection=best_validation: {NO_VALIDATION}")
        if (view := config.dataset.get("view", "center")) != "center":
            raise UserError(
                f"selection=best_validation: dataset.view={view} is tested in the last epoch only; set "
                "dataset.view=center, or selection=final"
            )
    iterations = iterations_of(config, math.ceil(dataset.training_size / config.batch_size))
    schedule = build("schedule", config.schedule, total=iterations)
    if getattr(schedule, "watched", None) == "validation" and not config.dataset["validation"]:
        raise UserError(f"schedule.watched=validation: {NO_VALIDATION}")
    if (warmup := getattr(schedule, "warmup_iterations", 0)) >= iterations:
        raise UserError(f"schedule.warmup_iterations={warmup}: the budget is only {iterations} iterations")
    if config.batch_size > dataset.training_size:
        raise UserError(
            f"batch_size={config.batch_size}: larger than the training set of {dataset.training_size} images; choose "
            f"for example batch_size={max(1, dataset.training_size // 4)}"
        )
    for images in _batch_sizes(config, dataset):
        if images < config.devices:
            raise UserError(
                f"devices={config.devices}: a batch of {images} cannot be divided among them ({dataset.training_size} "
                f"images in batches of {config.batch_size}); change batch_size or devices"
            )
    return iterations


def _batch_sizes(config: Config, dataset: Dataset) -> tuple[int, int]:
    """Return the number of images in a batch, and in the last batch of an epoch."""
    return config.batch_size, dataset.training_size % config.batch_size or config.batch_size


def _check_devices(config: Config) -> None:
    device = find_device(config.device)
    if config.devices > 1 and device.type == "cuda":
        if ":" in config.device:
            raise UserError(f"devices={config.devices} device={config.device}: names one GPU; use device=cuda")
        if config.devices > torch.cuda.device_count():
            raise UserError(f"devices={config.devices}: this machine has {torch.cuda.device_count()} GPUs")


def _check_optimizer(config: Config) -> None:
    """Build the optimiser, but one of deepnets' own with the same settings only once on this machine.

    torch imports a compiler for the first optimiser of a process, which takes a second.
    """
    key = optimizer_key(config)
    if key not in passed():
        build("optimizer", config.optimizer, model=nn.Linear(1, 1))
        if key:
            remember_passed(key, 0)


def check_memory(parameters: int) -> None:
    """Check that parameters of this many bytes, and their gradients, fit into this machine's memory.

    Raises:
        UserError: they do not fit.
    """
    size, memory = 2 * parameters, memory_size()
    if size > memory:
        raise UserError(
            f"model: its parameters and their gradients take {size / 2**30:,.0f} GiB, this machine has "
            f"{memory / 2**30:.0f}: make it narrower or shallower"
        )


@lru_cache(maxsize=256)
def _try_out_own(model: str, shape: tuple[int, int, int], classes: int) -> bool:
    """Let a network with the user's own classes compute logits and gradients for two images.

    It is first tried on the meta device, which has no numbers and takes no memory. If it fails there, it is
    tried on the CPU, unless it is large: then a line says that it is not tried. Returns whether it was tried; the
    cache keeps the answer, so a process tries each network only once.

    Raises:
        UserError: names the class's file and line, or what does not fit together.
    """
    settings = json.loads(model)
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), torch.random.fork_rng(devices=[]):
                network = build("model", settings, shape=shape, classes=classes)
                if device == "cpu" and sum(parameter.numel() for parameter in network.parameters()) > LARGEST_TRIED:
                    print_line("model: too large to be tried on two images before it is trained")
                    return False
                _check_gates(network)
                logits = network.train()(torch.zeros(2, *shape))
                if logits.shape != (2, classes):
                    raise UserError(f"model: two images give logits {tuple(logits.shape)}, not (2, {classes})")
                logits.sum().backward()
            return True
        except Exception as error:
            if device == "meta":
                continue
            if isinstance(error, UserError):
                raise
            own = ", ".join(sorted(own_targets(settings)))
            unfit = f"its layers, shortcuts and widths do not fit together ({own} among them): {first_line(error)}"
            raise UserError(f"model: {own_code_message(error) or unfit}") from error
    raise AssertionError


def _check_gates(network: nn.Module) -> None:
    """Check the shortcuts whose gates TensorBoard and the analyses will show; raises UserError."""
    for module in network.modules():
        if isinstance(module, Gated) and not isinstance(getattr(module, "gate", None), nn.Module):
            name = type(module).__name__
            raise UserError(f"model: {name} has no module `gate`: a subclass of Gated must call Gated.__init__")


def _try_out_operation(where: str, operation: Operation, dataset: Dataset) -> None:
    """Let an operation of the user's own change two images.

    Raises:
        UserError: names the operation's file and line, or which of its return values is wrong.
    """
    x, targets = torch.zeros(2, *dataset.shape), torch.eye(dataset.classes)[:2]
    try:
        draws = operation.draw(np.random.default_rng(0), 2)
        if not isinstance(draws, np.ndarray) or draws.ndim != 2 or len(draws) != 2:
            raise UserError(f"{where}: draw must return an array (images, k): a row for each image, here 2 rows")
        x_changed, targets_changed = operation(x, targets, torch.from_numpy(draws))
        if x_changed.shape != x.shape or targets_changed.shape != targets.shape:
            raise UserError(
                f"{where}: returns images {tuple(x_changed.shape)} and targets {tuple(targets_changed.shape)}, must be "
                f"{tuple(x.shape)} and {tuple(targets.shape)}"
            )
        if x_changed.dtype != x.dtype or targets_changed.dtype != targets.dtype:
            changed = " and ".join(str(each.dtype).removeprefix("torch.") for each in (x_changed, targets_changed))
            raise UserError(
                f"{where}: returns images and targets of type {changed}, must keep float32; draws are float64, so that "
                "draws.to(x.dtype) helps"
            )
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: {own_code_message(error) or first_line(error)}") from error


@lru_cache(maxsize=256)
def _try_out_loss(loss: str, classes: int, is_mixed: bool) -> None:
    """Compute a loss of the user's own, and its gradients, for an image and for the same image twice.

    Raises:
        UserError: names the class's file and line, or that the value is not the sum over the images.
    """
    criterion = build("loss", settings := json.loads(loss))
    if not own_targets(settings):
        return
    if not callable(criterion):
        raise UserError(f"loss: {settings['_target_']} does not make a function of logits and targets")
    logits = torch.linspace(-1, 1, classes).expand(2, classes).clone().requires_grad_()
    targets = torch.eye(classes)[[0, 0]] if is_mixed else torch.zeros(2, dtype=torch.int64)
    sums = []
    for images in (1, 2):
        try:
            loss_of_images = criterion(logits[:images], targets[:images])
            if not isinstance(loss_of_images, torch.Tensor) or loss_of_images.shape != ():
                raise UserError("loss: must return one number, a tensor without dimensions: the sum over the images")
            loss_of_images.backward()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"loss: {own_code_message(error) or first_line(error)}") from error
        sums.append(loss_of_images.item())
    if not math.isclose(sums[1], 2 * sums[0], rel_tol=1e-3, abs_tol=1e-6):
        raise UserError(
            f"loss: {sums[0]:g} for an image, {sums[1]:g} for the same image twice: must be the sum over the "
            "images, not their mean, so that batches can be divided"
        )


def _try_out_single(model: nn.Module, shape: tuple[int, int, int], images: int) -> None:
    """Try a network on the meta device on one image: a batch of `images` leaves one image alone in a group."""
    for module in model.modules():
        if isinstance(module, _BatchNorm | GhostBatchNorm):
            module.train()
    try:
        with torch.no_grad():
            model(torch.empty(1, *shape, device="meta"))
    except ValueError as error:
        raise UserError(
            f"a batch of {images} images leaves one image alone for batch normalisation, too few for maps of 1 x 1 "
            f"({error}); change batch_size or model.batchnorm_images"
        ) from error
