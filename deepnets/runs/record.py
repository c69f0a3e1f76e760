"""Describes a run for its result: its environment, its errors, and the evidence with which anybody can check it."""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from deepnets.config.build import own_targets
from deepnets.config.identity import PLAIN_LOSS, identity_hash
from deepnets.config.project import git_commit
from deepnets.config.schema import Config, Selection
from deepnets.data.augmentation import SHORTER
from deepnets.data.class_folders import ImageFiles
from deepnets.data.dataset import Dataset
from deepnets.errors import UserError, printable
from deepnets.models.batchnorm import group_sizes
from deepnets.runs.contents import DIVERGED, FinalStatus, Input, Result, packed
from deepnets.runs.folder import RunFolder
from deepnets.training.assembly import dataset_of, splits_of
from deepnets.training.fit import FIRST, Training
from deepnets.training.hardware import choose_precision, describe, processor_model

MOST_CHECKED = 2**30  # bytes of images that a command reads to see whether a complete run trained on them
PART = re.compile(r", (?![^()]*\))")  # the comma between parts of a protocol, not one in brackets
SPLITS = ("train", "validation", "test")
THREADS = torch.get_num_threads()  # read when this process starts, before a run sets another number


def environment_of(config: Config, device: torch.device) -> dict[str, Any]:
    """Return the environment, which checkpoints store: a resumed run has the same bits only if it stays the same."""
    dataset = dataset_of(config)
    precision = choose_precision(config.precision, device)
    return {
        "data": data_of(config, device),
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "threads": threads_of(config),
        "precision": str(precision).removeprefix("torch."),
        "step": config.step.value,
        "device": describe(device),
        **_processor(device),
        "torch": str(torch.__version__),
        "processes": {"0": config.devices},
    }


def _processor(device: torch.device) -> dict[str, str]:
    return {"processor": processor} if device.type == "cpu" and (processor := processor_model()) else {}


def threads_of(config: Config) -> int:
    """Return how many CPU threads a process uses: its share of `threads`, or torch's default if `threads` is null."""
    return max(1, config.threads // config.devices) if config.threads else THREADS


def with_processes(frozen: dict[str, Any], processes: int, iteration: int, config: Config) -> dict[str, Any]:
    """Return the environment `frozen`, with a note that the run has this many processes from `iteration` on.

    If the number changes, the number of threads of each process is computed again.
    """
    if list(frozen["processes"].values())[-1] == processes:
        return frozen
    counts = frozen["processes"] | {str(iteration): processes}
    return {**frozen, "threads": threads_of(config), "processes": counts}


def check_arithmetic(folder: RunFolder, began: str, config: Config, device: torch.device) -> None:
    """Check that a run resumes on this device in the arithmetic in which it began, e.g. "float32".

    Raises:
        UserError: `precision=auto` means another arithmetic here.
    """
    here = str(choose_precision(config.precision, device)).removeprefix("torch.")
    if here != began:
        name = {"float32": "fp32", "bfloat16": "bf16"}.get(began, began)
        raise UserError(
            f"{folder}: began in {began}, but precision={config.precision} is {here} on {describe(device)}: resume it "
            f"on a device like the one it began on, or start again, in a separate folder, with precision={name}, "
            "which is the same on any device"
        )


def protocol_of(config: Config, schedule: Any, iterations: int, batches: int, precision: object) -> str:
    """Describe a training in a line, which a reader of the result can compare with a paper's protocol.

    `iterations` is the budget, `batches` the number of batches in an epoch.
    """
    images = f"batches of {config.batch_size}"
    if together := config.model.get("batchnorm_images"):
        images += f", normalised over {group_sizes(config.batch_size, together)[0]} images"
    clip = f", gradient norm at most {config.clip_gradient_norm:g}" if config.clip_gradient_norm else ""
    is_described = type(schedule).__str__ is not object.__str__  # a user's own class or function may have none
    loss = f", training loss {_described(config.loss)}" if config.loss != PLAIN_LOSS else ""
    operations = [node for node in config.dataset.get("augmentation") or [] if isinstance(node, dict)]
    epochs = f"{iterations / batches:.4g}"
    images += "".join(f", {_described(node)}" for node in operations)
    return (
        f"protocol: {_described(config.optimizer)}{clip}{loss}, "
        f"{schedule if is_described else _described(config.schedule)}, {images}, "
        f"{iterations} iterations ({epochs} epoch{'s' * (epochs != '1')}), "
        f"scale {config.scale.name}, result by {config.selection.value} epoch, "
        f"{str(precision).removeprefix('torch.')}"
    )


def protocol_of_training(config: Config, training: Training) -> str:
    """Describe a training as `protocol_of` does."""
    schedule = training.schedule.lr_lambdas[0]
    return protocol_of(config, schedule, training.iterations, len(training.batches), training.precision)


def protocol_change(line: str, other: str) -> str | None:
    """Return what a protocol has instead of another; None if little of the two is equal, or a part only vanishes."""
    parts, before = PART.split(line), PART.split(other)
    new = [part for part in parts if part not in before]
    gone = [part for part in before if part not in parts]
    same_subjects = [part.split()[:2] for part in gone] == [part.split()[:2] for part in new][: len(gone)]
    return ", ".join(new).removeprefix("protocol: ") if same_subjects and 0 < 2 * len(new) <= len(parts) else None


def _described(node: dict[str, Any]) -> str:
    """Return a node's class and its plain settings, e.g. `sgd (lr 0.1, momentum 0.9)`."""
    settings = ", ".join(
        f"{key} {value}" for key, value in node.items() if isinstance(value, int | float | str) and key[0] != "_"
    )
    return node["_target_"].rpartition(".")[2] + f" ({settings})" * bool(settings)


def changes_since(folder: RunFolder, config: Config, frozen: dict[str, Any], device: torch.device) -> list[str]:
    """Return a line about each change of the environment since the run started, and one about several processes."""
    now = {"torch": str(torch.__version__), "device": describe(device), **_processor(device), "step": config.step}
    remarks = [
        f"started with {name} {frozen[name]}, resumes with {now[name]}"
        for name in now
        if frozen.get(name, now[name]) != now[name]  # a run that an older version began lacks the processor
    ]
    if config.threads and threads_of(config) != frozen["threads"]:
        each = " in each process" if config.devices > 1 else ""
        remarks.append(f"threads={config.threads} is not used; the run began with {frozen['threads']}{each}")
    processes = [f"{count} from iteration {iteration}" for iteration, count in frozen["processes"].items()]
    if len(processes) > 1 or config.devices > 1:
        remarks.append(f"number of processes: {', '.join(processes)}")
    commit, frozen_commit = git_commit(), folder.origin.commit
    if frozen_commit and commit != frozen_commit:
        remarks.append(f"the code is at commit {commit}, the run was set up at {frozen_commit}")
    return remarks


def result_of(
    config: Config,
    training: Training,
    history: list[dict[str, Any]],
    times: dict[str, Any],
    status: FinalStatus,
    frozen: dict[str, Any],
    facts: dict[str, Any],
) -> Result:
    """Return the content of result.json, with `facts` and `times` (seconds of all executions); errors are in percent.

    `test_error` is the error after the selected epoch, or null if the run diverged. `best_test_error` is the lowest of
    all epochs; no epoch is selected by it.
    """
    speeds = sorted(row["images_per_second"] for row in history)
    return Result(
        status=status,
        **errors_of(config, history, status),
        epochs=training.epoch,
        iterations=training.iteration,
        **{name: round(seconds, 2) for name, seconds in times.items()},
        images_per_second=speeds[len(speeds) // 2] if speeds else None,
        protocol=protocol_of_training(config, training),
        data=frozen["data"],
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        identity=identity_hash(config),
        commit=git_commit(),
        versions={name: version(name) for name in ("torch", "hydra-core", "numpy")},
        python=sys.version.split()[0],
        device_type=training.device.type,
        **{name: frozen[name] for name in ("device", "precision", "threads", "step", "processes")},
        **{name: frozen[name] for name in ("processor", "code") if name in frozen},
        **facts,
    )


def errors_of(config: Config, history: list[dict[str, Any]], status: str) -> dict[str, Any]:
    """Compute the errors (percent) and the selected epoch in result.json from metrics.csv, `config` and `status`."""
    last = history[-1] if history else {}
    selected = last
    if config.selection == Selection.best_validation and history:
        selected = min(history, key=lambda row: row["validation_error"])
    if status == DIVERGED:
        selected = {}
    view = config.dataset.get("view", "center")  # how the test images were shown for the result
    tested = "test" if view == "center" else view
    tested_5 = selected.get(f"{tested}_top5_error")
    return {
        "test_error": selected.get(f"{tested}_error"),
        **({} if tested_5 is None else {"test_top5_error": tested_5, "view": view}),
        "selection": str(config.selection),
        "selected_epoch": selected.get("epoch"),
        "last_test_error": last.get("test_error"),
        "best_test_error": min((row["test_error"] for row in history), default=None),
        "train_error": last.get("train_error"),
        "validation_error": selected.get("validation_error"),
    }


def data_of(config: Config, device: torch.device) -> dict[str, Any]:
    """Return the `contents` of the run's data. They tell data sets of the same name apart."""
    return splits_of(dataset_of(config), device).contents()


def input_of(config: Config, device: torch.device) -> Input:
    """Describe the input of the run's network, and its classes, from the splits that `splits_of` keeps.

    The mean is an image if the pixels of a channel have different means.
    """
    dataset = dataset_of(config)
    splits = splits_of(dataset, device)
    mean, scale = (x.cpu() for x in (splits.normalization.mean, splits.normalization.scale))
    entries: dict[str, Any] = {}
    if not (mean == mean[0, 0]).all():
        entries["mean_image"] = base64.b64encode(mean.numpy().astype("<f4").tobytes()).decode()
    if dataset.is_streamed:
        entries["shorter_side"] = round(dataset.shape[1] * SHORTER)
    elif dataset.reduce > 1:
        entries["reduce"] = dataset.reduce
    names = splits.train.classes if isinstance(splits.train, ImageFiles) else dataset.source.classes
    return Input(
        shape=list(dataset.shape),
        classes=[printable(name) for name in names],
        normalization=dataset.normalization,
        mean=None if "mean_image" in entries else _shortest(mean[0, 0]),
        scale=_shortest(scale[0, 0]),
        **entries,
    )


def _shortest(numbers: Tensor) -> list[float]:
    """Round numbers (n,) float32 to nine digits, which are enough to read each back exactly."""
    return [float(f"{number:.9g}") for number in numbers.tolist()]


def differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    """List the entries of `before` that have another value now, with both values; empty if there are none."""
    keys = [key for key in before if before[key] != now.get(key)]
    return ", ".join(f"{key} {before[key]} then, {now.get(key)} now" for key in keys)


def change_of_images(config: Config, result: Result) -> str:
    """Say how the images in the data folder differ from those of a complete run; empty if equal or not checked.

    This checks only what takes a second or two (a source of the user's own may need longer): data sets that are in the
    data folder and have at most `MOST_CHECKED` bytes.
    """
    if not result.data:
        return ""
    # The run needs no images any more, so it does not matter if they, or the user's own class, cannot be read.
    with suppress(Exception if own_targets(config.dataset) else UserError):
        if now := _contents(dataset_of(config)):
            changed = {name: value for name, value in result.data.items() if value != now.get(name)}
            counts = {name: changed[name] for name in SPLITS if name in changed}
            return differing(counts or dict([*changed.items()][-1:]), now)  # the last is the checksum of all images
    return ""


@lru_cache(maxsize=4)
def _contents(dataset: Dataset) -> dict[str, Any] | None:
    if dataset.is_streamed or (found := dataset.source.found).missing:
        return None
    size = sum(found.sizes) * prod(dataset.source.shape)
    return splits_of(dataset, torch.device("cpu")).contents() if size <= MOST_CHECKED else None


def describe_result(result: Result) -> str:
    """Describe in a line how a run ended."""
    name, value = "test error", result.test_error
    if value is None:  # it diverged
        name, value = "last test error", result.last_test_error
    error = "" if value is None else f" {name} {value:.2f}%"  # None: no epoch was completed
    if result.selected_epoch and result.selection == "best_validation":
        error += f" at epoch {result.selected_epoch}, which has the lowest validation error,"
    pace = f"{result.images_per_second:,.0f} images/s" if result.images_per_second else "no epoch timed"
    epochs = f"after {result.epochs} epoch{'s' * (result.epochs != 1)}" if error else f"in epoch {result.epochs or 1}"
    return f"{result.status}:{error} {epochs} in {duration(result.seconds or 0)} ({pace})"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Evidence:
    """Collects evidence while a run trains; the run's checkpoints hold `state`, and its result holds `facts`.

    `losses` has the losses of the first `FIRST` iterations, which stay on the device until they are read; `weights` is
    the checksum of the weights after these iterations. `right` (N,) says which test images the network classified
    correctly after the last completed epoch.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self.losses: list[Tensor] = list(state.get("losses", torch.zeros(0)))
        self.weights: str | None = state.get("weights")
        self.right: Tensor | None = state.get("right")

    def note(self, training: Training) -> None:
        """Note an iteration or epoch; call this when `fit` yields. It waits for the device only once."""
        first = min(FIRST, training.iterations)
        if training.loss is not None and len(self.losses) == training.iteration - 1 < first:
            self.losses.append(training.loss)
            if training.iteration == first:
                self.weights = weights_checksum(training.model)
        if training.completed:
            self.right = training.completed["test"].right

    @property
    def state(self) -> dict[str, Any]:
        """The evidence as tensors and text, on the CPU."""
        # `torch.stack` needs one device, and losses from before a resume are on the CPU.
        losses = torch.stack([loss.cpu() for loss in self.losses]) if self.losses else torch.zeros(0)
        return {"losses": losses, "weights": self.weights, "right": self.right}

    def facts(self) -> dict[str, Any]:
        """Return, for result.json, `beginning` (losses in nats, null if not finite) and `test_right` (`packed`).

        An entry is left out until training has come so far.
        """
        facts: dict[str, Any] = {}
        if self.weights:
            losses = [float(f"{loss:.9g}") if isfinite(loss) else None for loss in self.state["losses"].tolist()]
            facts["beginning"] = {"losses": losses, "weights": self.weights}
        if self.right is not None:
            facts["test_right"] = packed(self.right.numpy())
        return facts


def weights_checksum(model: torch.nn.Module) -> str:
    """Return sixteen hexadecimal digits (SHA-256) of all parameters in the order of their names."""
    checksum = hashlib.sha256()
    for name, weights in sorted(model.named_parameters()):
        checksum.update(name.encode())
        checksum.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()[:16]


def state_checksum(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) over the name, type, shape and bytes of each tensor, in the order of their names."""
    checksum = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        checksum.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        checksum.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()
