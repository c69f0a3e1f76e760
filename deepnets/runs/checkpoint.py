"""Saves checkpoints that survive kills, full disks and damage; a run resumes only from a checkpoint of its own."""

import errno
import math
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import Len, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor
from torch.utils._pytree import tree_map_only

from deepnets.config.identity import difference
from deepnets.config.schema import Config
from deepnets.data.dataset import memory_size
from deepnets.errors import UserError, brief, first_line, system_message
from deepnets.runs.contents import Code
from deepnets.runs.folder import CHECKPOINTS, RunFolder
from deepnets.system.files import flush_folder, fresh, new_name, opened
from deepnets.system.settings import Size
from deepnets.training.fit import Training

LAST, PREVIOUS = CHECKPOINTS
# Torch's optimisers load these settings without a check. The learning rate is not here: the schedule sets it.
OF_OPTIMIZER = (
    "initial_lr",
    "momentum",
    "dampening",
    "nesterov",
    "betas",
    "eps",
    "weight_decay",
    "amsgrad",
    "maximize",
)
MOST = 8  # a message names at most this many differing settings
MOST_ENTRIES = 1_000_000  # tensors in a file; a net of 1001 layers and its momenta have ten thousand
LONGEST_PICKLE = 100_000_000  # bytes of everything but the tensors; a thousand epochs take 100,000
MOST_VALUES, DEEPEST = 10_000_000, 30
COSTLY = re.compile(rb"\n(bytearray|encode)\n")  # torch calls these two, with which few bytes fill memory or time

NEEDED = {"epoch", "iteration", "learning_rate", "train_error", "test_error", "images_per_second"}


class _Part(BaseModel):
    """A part of a checkpoint's state, with the entries that a resumed run reads."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)


class _Observation(_Part):
    epoch: int
    gradients: list[float]
    gates: list[float]


class _Evidence(_Part):
    losses: Tensor
    weights: str | None
    right: Tensor | None

    @model_validator(mode="after")
    def _is_a_list_of_numbers(self) -> Self:
        if self.losses.ndim != 1 or not self.losses.is_floating_point():
            raise ValueError("losses are not a list of numbers")
        if self.right is not None and (self.right.ndim != 1 or self.right.dtype != torch.bool):
            raise ValueError("right does not say of each test image whether it is right")
        return self


class _Frozen(_Part):
    data: dict[str, Any]
    shape: Annotated[list[Size], Len(3, 3)]
    classes: Size
    threads: Size
    precision: str
    step: str
    device: str
    torch: str
    processes: Annotated[dict[str, int], MinLen(1)]
    code: dict[str, Code] = {}


class _Training(_Part):
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    iteration: int
    epoch: int
    batch: int
    images: int
    sums: Tensor
    random: Tensor


class _State(_Part):
    run: dict[str, Any]
    history: list[dict[str, float]]
    observed: list[_Observation]
    evidence: _Evidence
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    own_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    frozen: _Frozen
    training: _Training
    selected: dict[str, Tensor] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.selected and self.selected.keys() != self.training.model.keys():
            raise ValueError("selected and training.model are of different networks")
        right, images = self.evidence.right, self.frozen.data.get("test")
        if right is not None and len(right) != images:
            raise ValueError(f"evidence.right is of {len(right)} test images, frozen.data.test is {images}")
        for number, row in enumerate(self.history, 1):
            if lacking := NEEDED - row.keys() or row.keys() - self.history[-1].keys():
                raise ValueError(
                    f"epoch {number} of the history does not have the columns of metrics.csv: {min(lacking)}"
                )
        return self


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` as the last checkpoint; the last one so far becomes the previous one.

    The file appears complete or not at all. Its zip container holds a checksum of every tensor. If a tensor is a view
    of a larger one, only the view is written.

    Raises:
        UserError: the file cannot be written, e.g. on a full disk; the earlier checkpoints stay intact.
    """
    try:
        with fresh(folder / LAST) as file:
            torch.save(tree_map_only(Tensor, _own, state), file)
    except (OSError, RuntimeError) as error:  # torch reports a failed write of its archive as RuntimeError
        reason = error if isinstance(error, OSError) else f"is the disk full? {first_line(error)}"
        raise UserError(f"{folder / LAST}: cannot be written ({reason}); what was there before is intact") from error
    if os.path.lexists(folder / LAST):
        (folder / LAST).replace(folder / PREVIOUS)
    new_name(folder / LAST).replace(folder / LAST)
    flush_folder(folder)


def load(
    folder: Path, malformed: Callable[[Any], str | None] = lambda state: None
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the newest intact checkpoint (tensors on the CPU) or None, and the damage of each damaged file by name.

    `malformed` checks a state that could be read; it returns the state's damage, or None.

    Raises:
        OSError: a file exists but cannot be read, so nobody knows whether it is damaged.
    """
    damaged: dict[str, str] = {}
    for name in (LAST, PREVIOUS):
        if not os.path.lexists(folder / name):
            continue
        state, damage = _read(folder / name)
        if damage is None and (damage := _unfit(state) or malformed(state)) is None:
            return state, damaged
        damaged[name] = damage
    return None, damaged


def _read(file: Path) -> tuple[Any, str | None]:
    """Return the state in a checkpoint's file and None, or None and the damage of the file."""
    if damage := damage_of(file):
        return None, damage
    try:
        return torch.load(file, map_location="cpu", weights_only=True), None
    except Exception as error:  # torch executes the pickle of a stranger step by step, and any step may fail
        if system_message(error):
            raise
        return None, f"{type(error).__name__}: {first_line(error)}"


def _own(tensor: Tensor) -> Tensor:
    """Copy a tensor if it is a view of a larger one, which torch.save would write instead."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def damage_of(file: Path) -> str | None:
    """Return the damage of a checkpoint's file, zip container, checksums or data types; None if it is intact."""
    try:
        opened(file).close()
    except ValueError as error:  # a link, a folder, a pipe
        return str(error)
    try:
        with zipfile.ZipFile(file) as archive:
            if unusual := _unusual(archive, file.stat().st_size):
                return unusual
            broken = archive.testzip()
        # torch's own reader is stricter about headers.
        if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(file):
            return f"it names {foreign[0]}, which is no data of a run"
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes the two readers raise nearly any error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a damaged length leads to EINVAL
            raise
        return f"{type(error).__name__}: {first_line(error)}"
    return None if broken is None else f"the checksum of {broken} differs"


def _unusual(archive: zipfile.ZipFile, size: int) -> str | None:
    """Return why torch cannot have written this archive of `size` bytes, or None; no tensor is read."""
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        return f"it has {len(entries):,} entries, a checkpoint has at most {MOST_ENTRIES:,}"
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return "it is compressed, which no checkpoint is"
    if sum(entry.file_size for entry in entries) > size:
        return "its entries take more than the file"
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    if any(entry.file_size > LONGEST_PICKLE for entry in pickles):
        return f"its data.pkl takes more than {LONGEST_PICKLE:,} bytes"
    if costly := next(filter(None, (COSTLY.search(archive.read(entry)) for entry in pickles)), None):
        return f"it names {costly[1].decode()}, which is no data of a run"
    return None if size <= memory_size() else "it is larger than the memory of this machine"


def _unfit(state: Any) -> str | None:
    """Return why no run can have saved a state, or None; values that contain each other never end."""
    values, walked, size = [(state, 0)], 0, 0
    while values:
        value, depth = values.pop()
        walked += 1
        if walked > MOST_VALUES or depth > DEEPEST:
            return f"its state has more than {MOST_VALUES:,} values, or lies deeper than {DEEPEST}"
        if isinstance(value, dict):
            values += [(each, depth + 1) for each in value.values()]
        elif isinstance(value, list | tuple | set):
            values += [(each, depth + 1) for each in value]
        elif isinstance(value, Tensor):
            if not _is_in_memory(value):
                return "it has a tensor that is not stored number by number"
            size += value.nbytes
            if size > memory_size():
                return "its tensors are larger than the memory of this machine"
    return None


def _is_in_memory(tensor: Tensor) -> bool:
    """Return whether the tensor's storage has each of its numbers; a view may repeat one number a million times."""
    is_unusual = tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested
    return not is_unusual and tensor.nbytes <= tensor.untyped_storage().nbytes()


def load_checked(folder: RunFolder, config: Config) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the newest intact checkpoint of this run or None, and the damage of each damaged file by name.

    Raises:
        UserError: the checkpoint is of another run; the message gives the settings that differ.
    """
    state, damaged = load(folder.path, malformed)
    if state and (differing := difference(state["run"], config)):
        lines = [f"  {key}: {brief(saved)} there, {brief(value)} here" for key, (saved, value) in differing.items()]
        lines = [*lines[:MOST], *([f"  and {len(lines) - MOST} more"] if len(lines) > MOST else [])]
        raise UserError(
            "\n".join([f"{folder}: the checkpoint in it is of another run:", *lines])
            + "\nRestore this run's own, or start again with overwrite=true."
        )
    return state, damaged


def described(damaged: dict[str, str]) -> list[str]:
    """Return a line about each file that `load` found damaged."""
    return [f"{name} is damaged and was not used ({damage})" for name, damage in damaged.items()]


def malformed(state: Any) -> str | None:
    """Return which entry of a checkpoint is missing or has a wrong type or size; None if there is none."""
    try:
        _State.model_validate(state)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return None


def is_state(value: Any) -> bool:
    """Return whether the value maps names to tensors, as a network's `state_dict` does."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())


def resume(folder: RunFolder, state: dict[str, Any], training: Training) -> str:
    """Bring `training` to the iteration of the checkpoint `state`; returns a line that says so.

    Raises:
        UserError: the checkpoint is of another network or optimiser, or its iteration does not fit this run's budget.
    """
    saved = state["training"]
    per_epoch, whole = len(training.batches), training.iterations
    iteration, epoch, batch = saved["iteration"], saved["epoch"], saved["batch"]
    is_in_epoch = 0 <= batch <= per_epoch and iteration == epoch * per_epoch + batch
    is_at_end = batch == 0 and iteration == whole and epoch == math.ceil(whole / per_epoch)
    if not (0 <= iteration <= whole and (is_in_epoch or is_at_end) and len(state["history"]) == epoch):
        raise UserError(
            f"{folder}: the checkpoint in it is of another run: it stands at iteration {iteration}, batch {batch} of "
            f"epoch {epoch + 1}, with {len(state['history'])} epochs of metrics; this run has {whole} iterations, "
            f"{per_epoch} an epoch. Restore this run's own, or start again with overwrite=true"
        )
    try:
        _check_alike(saved, training)
        training.load_state_dict(saved)
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder}: the checkpoint in it is of another network or optimiser: {reason}") from error
    return f"resuming at iteration {iteration} of {whole}"


def _check_alike(saved: dict[str, Any], training: Training) -> None:
    """Raise ValueError if dtypes, optimiser settings or shapes differ from the run's; torch would load them anyway."""
    for name, weight in training.model.state_dict().items():
        stored = saved["model"].get(name, weight)
        if stored.dtype != weight.dtype:
            raise ValueError(f"{name} is of {stored.dtype} there, of {weight.dtype} here")
    schedule, expected = saved["schedule"], {"base_lrs": training.schedule.base_lrs, "last_epoch": saved["iteration"]}
    for name, value in expected.items():
        if schedule[name] != value:
            raise ValueError(f"{name} of the schedule is {brief(schedule[name])} there, {value} here")
    for name in schedule:  # torch would set each as an attribute
        if name == "optimizer" or callable(getattr(training.schedule, name, None)):
            raise ValueError(f"the schedule has a value in place of its {name}")
    groups = training.optimizer.param_groups
    for stored, group in zip(saved["optimizer"]["param_groups"], groups, strict=True):
        for name in OF_OPTIMIZER:
            if name in stored and name in group and bool(stored[name] != group[name]):
                raise ValueError(f"{name} is {stored[name]} there, {group[name]} here")
    weights = [weight for group in groups for weight in group["params"]]
    for number, values in saved["optimizer"]["state"].items():
        for name, value in values.items():
            if not isinstance(value, Tensor | int | float | None):
                raise ValueError(f"{name} of a weight is {brief(value)}")
            if isinstance(value, Tensor) and value.ndim and value.shape != weights[number].shape:
                raise ValueError(f"{name} of a weight of {list(weights[number].shape)} is of {list(value.shape)}")
