"""Trained weights as a file: safetensors beside the configuration, in deepnets' names or in torchvision's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from pydantic import BaseModel, Json, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from deepnets.config.identity import difference, identity
from deepnets.config.schema import Config
from deepnets.errors import UserError, first_line
from deepnets.models.resnet import ResNet
from deepnets.runs.execution import described
from deepnets.runs.folder import RunFolder
from deepnets.runs.saved import is_state, load
from deepnets.runs.torchvision import torchvision_names, torchvision_network
from deepnets.system.files import fresh, new_name, write_atomically
from deepnets.system.ranges import Size
from deepnets.training.assembly import model_of

FILE = "weights.safetensors"
TOLERANCE = 1e-4  # of the largest logit: two orders of operations differ by rounding


class _Metadata(BaseModel):
    """What `write_weights` notes in a file besides the weights."""

    run: Json[dict[str, Any]]
    shape: Json[tuple[Size, Size, Size]]
    classes: Size


@dataclass(frozen=True)
class Weights:
    """The weights of a network by name (parameters and buffers), its run's configuration, the shape of its images."""

    state: Mapping[str, Tensor]
    config: Config
    shape: tuple[int, int, int]
    classes: int

    def model(self) -> nn.Module:
        """The network, in evaluation mode on the CPU.

        Raises:
            UserError: the weights are of another network.
        """
        with torch.device("meta"):
            model = model_of(self.config, self.shape, self.classes)
        load_state(model, self.state)
        return model.eval()


def read_weights(folder: str | Path, trusted: Sequence[str] = ()) -> Weights:
    """The weights of a run's last checkpoint, or, where there is none, those in `weights.safetensors` of a record.

    Raises:
        UserError: the folder is no run folder, holds neither, or they are damaged or of another run.
    """
    run_folder = RunFolder(folder)
    config = replace(run_folder.config, trusted_targets=list(trusted))
    state, damaged = load(run_folder, config)
    if state is not None:
        return Weights(state["training"]["model"], config, tuple(state["frozen"]["shape"]), state["frozen"]["classes"])
    file = run_folder.path / FILE
    if damaged or not file.is_file():
        raise UserError("\n".join([f"{run_folder}: no checkpoint to load; train the run first", *described(damaged)]))
    state, about = _read_safetensors(file)
    try:
        made = _Metadata.model_validate(about)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(f"{file}: was not written by deepnets: in its metadata, {reason}") from error
    if differing := difference(made.run, config):
        raise UserError(f"{file}: weights of another run than its config.yaml: {', '.join(differing)} differ")
    return Weights(state, config, made.shape, made.classes)


def write_weights(weights: Weights, folder: Path) -> Path:
    """Write `weights.safetensors` into `folder`, and `config.yaml` where there is none; returns the file.

    Paths of this machine and trust are left out of both.

    Raises:
        UserError: they cannot be written, or the folder holds another run.
    """
    run = RunFolder(folder)
    about = {
        "format": "pt",
        "run": json.dumps(identity(weights.config)),
        "shape": json.dumps(weights.shape),
        "classes": str(weights.classes),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            data = weights.config.dataset | {"root": "data"}
            config = replace(weights.config, dataset=data, output_root="outputs", trusted_targets=[])
            write_atomically(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)))
        elif differing := difference(identity(weights.config), run.config):
            raise UserError(f"{run}: holds another run: {', '.join(differing)} differ; name another folder")
        return _write_safetensors(weights.state, folder / FILE, about)
    except OSError as error:
        raise UserError(f"{run}: cannot be written: {error}") from error


def write_for_torchvision(weights: Weights, file: Path) -> Path:
    """Write the weights by the names of torchvision's residual networks, which are timm's too; returns the file.

    Both networks are compared first, with torchvision's fresh weights in both.

    Raises:
        UserError: torchvision has no such network.
    """
    model = weights.model()
    state = {name: weights.state[own] for own, name in torchvision_names(weights.state).items()}
    try:
        if not isinstance(model, ResNet):
            raise ValueError(f"it is a {type(model).__name__}")
        with torch.random.fork_rng(devices=()), torch.inference_mode():
            torch.manual_seed(0)
            there = torchvision_network(model).eval()
            there.load_state_dict(state)
            there = torchvision_network(model).eval()
            load_state(model, there.state_dict())
            images = torch.randn(2, *weights.shape)
            expected, logits = there(images), model(images)
        if not torch.allclose(logits, expected, rtol=0, atol=TOLERANCE * expected.abs().max().item()):
            raise ValueError(
                "its logits differ. It strides in a bottleneck's 3x3 convolution (model.strided_kernel=1) and has "
                "no stochastic depth"
            )
    except (ValueError, RuntimeError) as error:  # the latter of names and shapes
        reason = " ".join(str(error).split())
        raise UserError(f"torchvision has no such network: {reason}") from error
    return _write_safetensors(state, file, {"format": "pt"})


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Let `model` take over the tensors of `state`, by its own names or by torchvision's.

    Counts of batches, which no network here reads, may be missing, as in torchvision's older files.

    Raises:
        UserError: a weight is missing, unknown, or of another shape.
    """
    own = model.state_dict()
    if not own.keys() & state.keys():
        state = {name: state[there] for name, there in torchvision_names(own).items() if there in state}
    counts = {name: tensor.new_zeros((), device="cpu") for name, tensor in own.items() if name.endswith("_tracked")}
    state = {**counts, **state}
    wrong = [f"{name} is missing" for name in own.keys() - state.keys()]
    wrong += [f"{name} is unknown" for name in state.keys() - own.keys()]
    wrong += [
        f"{name} is {list(state[name].shape)}, not {list(own[name].shape)}"
        for name in own.keys() & state.keys()
        if own[name].shape != state[name].shape
    ]
    wrong += [
        f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not real numbers in memory"
        for name, tensor in state.items()
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex() or tensor.is_quantized
    ]
    if wrong:
        raise UserError(f"the weights are of another network: {min(wrong)} ({len(wrong)} differences)")
    model.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in state.items()}, assign=True)


def read_state(file: Path) -> dict[str, Tensor]:
    """A state dictionary that `safetensors` or `torch.save` wrote, on the CPU; nothing in it is called.

    Raises:
        UserError: the file cannot be read as one.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file of weights")
    if file.suffix == ".safetensors":
        return _read_safetensors(file)[0]
    try:
        state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows as nearly any exception
        raise UserError(f"{file}: cannot be read as weights: {first_line(error)}") from error
    if not is_state(state):
        raise UserError(f"{file}: holds more than weights by name; save a network's state_dict()")
    return state


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: cannot be read as safetensors: {error}") from error


def _write_safetensors(state: Mapping[str, Tensor], file: Path, about: dict[str, str]) -> Path:
    """The file appears complete or not at all."""
    with fresh(file) as new:
        new.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, about))
    new_name(file).replace(file)
    return file
