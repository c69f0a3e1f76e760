"""Trained weights as a file: safetensors beside the configuration; they are read with torchvision's names too."""

import argparse
import csv
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from pydantic import BaseModel, Json, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.serialization import safe_globals

from deepnets.config.build import own_targets
from deepnets.config.identity import difference, identity
from deepnets.config.schema import Config, Selection
from deepnets.errors import UserError, first_line
from deepnets.runs.checkpoint import LAST, PREVIOUS, described, is_state, load_checked
from deepnets.runs.code import changed_files, code_to_execute, noted_code
from deepnets.runs.contents import FINISHED, Code, Input
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.record import state_checksum
from deepnets.system.files import LONGEST_METRICS, fresh, new_name, opened, read_text, write_atomically
from deepnets.system.printing import print_line
from deepnets.system.settings import Size
from deepnets.training.assembly import model_of

CHECKSUM = "weights_sha256"  # in the metadata of a file; safetensors itself would load flipped bits
KEPT = "weights.{}.safetensors"  # weights of one iteration
IN_CHECKPOINTS = ("state_dict", "model")  # where checkpoints of other programs hold the weights
WRAPPED = "module."  # precedes the names in a network that DataParallel or DistributedDataParallel wraps
CODE_WORDS = '--code {} (in Python, code="{}")'


class _Metadata(BaseModel):
    """The metadata that `write_weights` writes beside the weights."""

    run: Json[dict[str, Any]]
    shape: Json[tuple[Size, Size, Size]]
    classes: Size
    iteration: int | None = None  # earlier versions did not write this
    input: Json[Input] | None = None  # nor this
    code: Json[Code] | None = None  # nor this


@dataclass(frozen=True)
class Weights:
    """A network's weights by name (parameters and buffers), its run's configuration, and the shape of its images.

    `iteration` is the number of training steps behind them, `input` describes the network's input (both are None in
    files of earlier versions), and `code` is the version of the user's own code that trained them, if any.
    """

    state: Mapping[str, Tensor]
    config: Config
    shape: tuple[int, int, int]
    classes: int
    iteration: int | None = None
    input: Input | None = None
    code: Code | None = None

    def model(self) -> nn.Module:
        """Build the network, in evaluation mode on the CPU.

        Raises:
            UserError: the weights are of another network.
        """
        # The user's own class may hold tensors that are no weights, which a network on the meta device would not have.
        device = "cpu" if own_targets(self.config.model) else "meta"
        with torch.device(device), torch.random.fork_rng(devices=[]):
            model = model_of(self.config, self.shape, self.classes)
        load_state(model, self.state)
        return model.eval()


def read_weights(
    folder: str | Path, allow_previous: bool = False, iteration: int | None = None, builds: bool = True
) -> Weights:
    """Read a run's weights from its newest intact checkpoint or, if it has none at all, from `weights.safetensors`.

    This prints the weights' iteration. `allow_previous` accepts weights of an earlier iteration than the result's. With
    `iteration`, this instead reads the weights of this iteration that keep_checkpoints=N or selection=best_validation
    has kept. `builds` says that the caller builds the network, which executes the user's own code.

    Raises:
        OtherCode: `builds`, the user's own code has changed since the run began, and neither version was chosen.
        UserError: the folder is not a run folder, or its weights are missing, damaged, of another run, or of another
            iteration than asked for.
    """
    run_folder = RunFolder(folder)
    config = run_folder.config
    code, trained_by = code_to_execute(run_folder, config, CODE_WORDS) if builds else None, noted_code(run_folder)
    state, damaged = load_checked(run_folder, config) if iteration is None else (None, {})
    if iteration is not None:
        weights, name = _read_kept(run_folder, config, iteration), KEPT.format(iteration)
    elif state is not None:
        frozen, training = state["frozen"], state["training"]
        is_last = LAST not in damaged and (run_folder.path / LAST).exists()
        name = LAST if is_last else PREVIOUS
        weights = Weights(
            training["model"],
            config,
            tuple(frozen["shape"]),
            frozen["classes"],
            training["iteration"],
            _input_in(state, run_folder.path / name),
        )
    elif damaged or not os.path.lexists(run_folder.path / WEIGHTS):
        remedy = "train it again with overwrite=true" if run_folder.is_complete else "train the run first"
        raise UserError("\n".join([f"{run_folder}: no checkpoint to load; {remedy}", *described(damaged)]))
    else:
        weights, name = read_record(run_folder, config), WEIGHTS
    about = weights.input
    if about and (tuple(about.shape), len(about.classes)) != (weights.shape, weights.classes):
        raise UserError(f"{run_folder.path / name}: its input and weights are of different networks; restore the file")
    line = f"weights of iteration {iteration}"
    if iteration is None:
        line = _iteration_line(run_folder, weights, name, damaged, allow_previous)
    if (noted := weights.code) and not trained_by:  # an exported folder
        code, trained_by = code_to_execute(run_folder, config, CODE_WORDS, noted) if builds else None, noted
    changed = changed_files(run_folder, trained_by, code) if code and trained_by else []
    remarks = [f"your code has changed since the run began: {', '.join(changed)}"] * bool(changed)
    print_line("\n".join([f"{run_folder}: {line}", *remarks, *described(damaged)]))
    return replace(weights, code=trained_by)


def _input_in(state: Mapping[str, Any], file: Path) -> Input | None:
    """Return the network's input in `state`, the checkpoint in `file`; None if an earlier version wrote the file."""
    try:
        return Input.model_validate(state["input"]) if "input" in state else None
    except ValidationError as error:
        raise UserError(f"{file}: {_reason(error, 'input')}; restore the run's own file") from error


def _reason(error: ValidationError, *place: str) -> str:
    """Return a line about the first wrong entry: its name and pydantic's message."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, (*place, *first['loc'])))}: {first['msg']}"


def _iteration_line(
    folder: RunFolder, weights: Weights, name: str, damaged: dict[str, str], allow_previous: bool
) -> str:
    """Return a line about the iteration of the weights in `name`; raises UserError if they are not the result's."""
    result = folder.completed
    line = (
        "weights of an unknown iteration" if weights.iteration is None else f"weights of iteration {weights.iteration}"
    )
    if not result:
        return line if name == WEIGHTS else f"{line}; the run has not finished"
    last = result.iterations
    if result.status != FINISHED:
        return f"{line}; the run {result.status} at iteration {last}"
    if weights.iteration not in (None, last):
        if not allow_previous:
            why = f"{LAST} is damaged: {damaged[LAST]}" if LAST in damaged else f"{LAST} is missing"
            why = f" ({why})" if name == PREVIOUS else ""
            raise UserError(
                f"{folder}: the weights in {name} are of iteration {weights.iteration}, the result is of iteration "
                f"{last}{why}. Train the run again with overwrite=true, or take these weights with --allow-previous, "
                "in Python load_run(..., allow_previous=True)"
            )
        return f"{line}; the result is of iteration {last}"
    is_known = result.weights_sha256 is not None  # an earlier version did not write it
    if is_known and state_checksum(weights.state) != result.weights_sha256:
        raise UserError(
            f"{folder.path / name}: the weights in it are not those of the result: their checksum differs from "
            "weights_sha256 in result.json. Restore the run's own file, or train the run again with overwrite=true"
        )
    line = f"weights of iteration {last}, the last" if is_known else line
    if result.selected_epoch in (None, result.epochs):
        return line
    line += f"; the result is of epoch {result.selected_epoch}"
    if (selected := selected_iteration(folder)) not in kept_files(folder.path):
        return f"{line}, whose weights are not kept"
    return f"{line}, whose weights --iteration {selected} takes (in Python, iteration={selected})"


def selected_iteration(folder: RunFolder) -> int | None:
    """Return the iteration at which the epoch ended that selection=best_validation selected; None without one."""
    result, metrics = folder.completed, folder.path / "metrics.csv"
    if not result or result.selection != Selection.best_validation or not metrics.is_file():
        return None
    epochs = csv.DictReader(read_text(metrics, LONGEST_METRICS).splitlines())
    return next((int(each["iteration"]) for each in epochs if each["epoch"] == str(result.selected_epoch)), None)


def kept_iterations(count: int, iterations: int) -> list[int]:
    """Return `count` iterations, log-spaced from 1 to the last: the last if `count` is 1, all if there are fewer."""
    kept = [0]
    for exact in np.geomspace(1, iterations, count) if count > 1 else [iterations]:
        kept.append(min(max(round(exact), kept[-1] + 1), iterations))
    return sorted(set(kept[1:]))


def kept_files(folder: Path) -> dict[int, Path]:
    """Return the files in a run's folder that each hold the weights of one iteration, by iteration."""
    numbers = {file: file.name.split(".")[1] for file in folder.glob(KEPT.format("*"))}
    return dict(sorted((int(number), file) for file, number in numbers.items() if number.isdecimal()))


def _read_kept(folder: RunFolder, config: Config, iteration: int) -> Weights:
    """Read the kept weights of this iteration; raises UserError if they are missing or of another iteration."""
    file = folder.path / KEPT.format(iteration)
    if not os.path.lexists(file):
        if (folder.path / WEIGHTS).is_file() and (exported := read_record(folder, config)).iteration == iteration:
            return exported
        kept = ", ".join(map(str, kept_files(folder.path)))
        otherwise = "train it with keep_checkpoints=N, which keeps the weights of N iterations"
        remedy = f"choose from {kept}" if kept else otherwise
        raise UserError(f"{folder}: no weights of iteration {iteration} are kept; {remedy}")
    weights = read_record(folder, config, file.name)
    if weights.iteration != iteration:
        raise UserError(f"{file}: holds weights of iteration {weights.iteration}; restore the run's own file")
    return weights


def read_record(folder: RunFolder, config: Config, name: str = WEIGHTS) -> Weights:
    """Read the weights in the file `name`; raises UserError if they are not of a run with this configuration."""
    file = folder.path / name
    try:
        opened(file).close()
    except ValueError as error:
        raise UserError(f"{file}: cannot be read as weights: {error}") from error
    state, about = _read_safetensors(file)
    try:
        metadata = _Metadata.model_validate(about)
    except ValidationError as error:
        raise UserError(f"{file}: was not written by deepnets: in its metadata, {_reason(error)}") from error
    if differing := difference(metadata.run, config):
        raise UserError(f"{file}: weights of another run than its config.yaml: {', '.join(differing)} differ")
    return Weights(state, config, **{name: value for name, value in metadata if name != "run"})


def write_weights(weights: Weights, folder: Path, name: str = WEIGHTS) -> Path:
    """Write the weights as `name` into `folder`, and `config.yaml` if it is missing; returns the file of weights.

    Neither file has paths of this machine or says which code to trust.

    Raises:
        UserError: the files cannot be written, or the folder holds another run.
    """
    run = RunFolder(folder)
    about = {
        "format": "pt",
        "run": json.dumps(identity(weights.config)),
        "shape": json.dumps(weights.shape),
        "classes": str(weights.classes),
        CHECKSUM: state_checksum(weights.state),
        **({} if weights.iteration is None else {"iteration": str(weights.iteration)}),
        **({} if weights.input is None else {"input": weights.input.model_dump_json(exclude_unset=True)}),
        **({} if weights.code is None else {"code": weights.code.model_dump_json()}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            data = weights.config.dataset | {"root": "data"}
            start = weights.config.weights and Path(weights.config.weights).name
            config = replace(weights.config, dataset=data, output_root="outputs", weights=start)
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)))
        elif differing := difference(identity(weights.config), run.config):
            raise UserError(f"{run}: holds another run: {', '.join(differing)} differ; name another folder")
        return write_safetensors(weights.state, folder / name, about)
    except OSError as error:
        raise UserError(f"{run}: cannot be written: {error}") from error


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the tensors of `state` into `model`; they have the model's names or torchvision's.

    Batch normalisation's counts of batches may be missing, as in torchvision's older files: no network here reads them.

    Raises:
        UserError: a weight is missing, unknown, or of another shape.
    """
    model.load_state_dict(fitting(model, state), assign=True)


def by_own_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` with the names in `wanted`, a deepnets network's state, instead of torchvision's names.

    A prefix `module.` of all names is left out: a network in `DataParallel` or `DistributedDataParallel` has it.
    """
    if not wanted.keys() & state.keys() and all(name.startswith(WRAPPED) for name in state):
        state = {name.removeprefix(WRAPPED): tensor for name, tensor in state.items()}
    if wanted.keys() & state.keys():
        return dict(state)
    own = {renamed: name for name, renamed in torchvision_names(wanted).items()}
    return {own.get(name, name): tensor for name, tensor in state.items()}  # `fitting` refuses what is left over


def fitting(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `state` with the names and data types that the model's tensors have.

    Raises:
        UserError: a weight is missing, unknown, of another shape, or does not hold real numbers.
    """
    wanted = model.state_dict()
    state = by_own_names(state, wanted)
    counts = {name: tensor.new_zeros((), device="cpu") for name, tensor in wanted.items() if name.endswith("_tracked")}
    state = {**counts, **state}
    wrong = [f"{name} is missing" for name in wanted.keys() - state.keys()]
    wrong += [f"{name} is unknown" for name in state.keys() - wanted.keys()]
    wrong += [
        f"{name} has the shape {list(state[name].shape)} there, here {list(wanted[name].shape)}"
        for name in wanted.keys() & state.keys()
        if wanted[name].shape != state[name].shape
    ]
    wrong += [
        f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not real numbers in memory"
        for name, tensor in state.items()
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex() or tensor.is_quantized
    ]
    if wrong:
        raise UserError(f"the weights are of another network: {min(wrong)} (differences: {len(wrong)})")
    return {name: tensor.to(wanted[name].dtype) for name, tensor in state.items()}


def read_state(file: Path) -> dict[str, Tensor]:
    """Read a state dictionary that `safetensors` or `torch.save` wrote, onto the CPU, without executing code in it.

    It may be an entry of a checkpoint, as the training scripts of PyTorch's examples, timm (`state_dict`) and
    torchvision (`model`) write it.

    Raises:
        UserError: the file cannot be read as a state dictionary.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file of weights")
    if file.suffix == ".safetensors":
        return _read_safetensors(file)[0]
    try:
        with safe_globals([argparse.Namespace]):  # the arguments of the other program, which hold no code
            state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises nearly any error
        raise UserError(f"{file}: cannot be read as weights: {first_line(error)}") from error
    if isinstance(state, dict):
        entries = (state.get(key) for key in IN_CHECKPOINTS)
        state = next((entry for entry in entries if entry and is_state(entry)), state)
    if not is_state(state):
        raise UserError(f"{file}: holds more than weights by name; save a network's state_dict()")
    return state


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, framework="pt") as opened:
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: cannot be read as safetensors: {error}") from error
    if CHECKSUM in about and about[CHECKSUM] != state_checksum(state):
        raise UserError(f"{file}: is damaged: the weights in it do not have its checksum; restore the run's own file")
    return state, about


def write_safetensors(state: Mapping[str, Tensor], file: Path, about: dict[str, str]) -> Path:
    """Write the tensors; the file appears complete or not at all."""
    with fresh(file) as new:
        new.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, about))
    new_name(file).replace(file)
    return file


def torchvision_names(names: Iterable[str]) -> dict[str, str]:
    """Return torchvision's name of each weight, by the weight's name in a ResNet with the original ordering."""

    def renamed(name: str) -> str:
        name = re.sub(r"(?<=\d)\.bn\.", ".", name)  # ghost batch normalisation keeps torch's layer as `bn`
        name = re.sub(r"^stem\.([01])", lambda match: ("conv1", "bn1")[int(match[1])], name)
        name = re.sub(r"^head", "fc", name)
        name = re.sub(r"^stages\.(\d+)", lambda match: f"layer{int(match[1]) + 1}", name)
        name = name.replace("shortcut.resize", "downsample")
        layers = ("conv", "bn", "relu")  # of a branch, again and again
        return re.sub(r"branch\.(\d+)", lambda match: f"{layers[int(match[1]) % 3]}{int(match[1]) // 3 + 1}", name)

    return {name: renamed(name) for name in names}
