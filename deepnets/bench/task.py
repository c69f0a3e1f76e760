"""What a peer of deepnets is given to train, and the peers there are."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from deepnets.bench.subject import Subject
from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.run import build_model


@dataclass(frozen=True)
class Task:
    """The training of `model` by SGD with Nesterov momentum on images that are shifted, mirrored and normalised.

    A peer is a Python file with a function `prepare(task) -> Callable[[int], float]`: what it returns trains so many
    iterations of `batch_size` more each time it is called, and returns the seconds they took. All that a peer does once
    (starting workers, compiling) belongs before them. Its table row is the file's name.

    `model` is fresh, on the CPU, float32 and NCHW. `images` (N, H, W, C) uint8 and `labels` (N,) int64 are on the CPU;
    `mean` and `std` are their channels' on a scale of 0 to 1. `pad` pixels of zeros surround an image of which one of
    its size is cut; `flip` mirrors half of them. `precision` (bfloat16 means autocast) and `layout` are those that
    deepnets trains in.
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


def task_of(subject: Subject, split: Split, pad: int, flip: bool, workers: int) -> Task:
    """The subject's network on these images of 0..255."""
    images = split.images.cpu()
    scaled = images.float().div_(255)
    return Task(
        model=build_model(list(subject.overrides)),
        images=images,
        labels=split.labels.cpu(),
        mean=scaled.mean((0, 1, 2)).tolist(),
        std=scaled.std((0, 1, 2)).tolist(),
        pad=pad,
        flip=flip,
        batch_size=subject.config.batch_size,
        device=subject.device,
        precision=subject.precision,
        workers=workers,
    )


def bundled(name: str) -> ModuleType:
    """The peer of that name in benches/peers/; a ModuleNotFoundError where its library is not installed."""
    return importlib.import_module(f"deepnets.bench.peers.{name}")


def given(path: Path) -> ModuleType:
    """The peer in a file of the user's.

    Raises:
        UserError: there is no such file, or it is no peer.
    """
    if not path.is_file():
        raise UserError(f"--peer {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--peer {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "prepare", None)):
        raise UserError(f"--peer {path}: defines no prepare(task) -> Callable[[int], float] (deepnets/bench/task.py)")
    return module


def arithmetic(precision: torch.dtype, layout: torch.memory_format) -> str:
    """As in "bfloat16 channels_last"."""
    return f"{precision} {'channels_last' if layout == torch.channels_last else 'NCHW'}".removeprefix("torch.")
