"""Peers train the same network in other ways; this file has the task that each peer gets, and imports peers."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from deepnets.bench.comparison import BenchRun, precision_name
from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.run import build_model


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


def bundled_peer(name: str) -> ModuleType:
    """Import the peer in the file `name`.py beside this one.

    Raises:
        ModuleNotFoundError: the library that it uses is not installed.
    """
    return importlib.import_module(f"{__name__}.{name}")


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
        raise UserError(
            f"--peer {path}: defines no prepare(task) -> Callable[[int], float] (deepnets/bench/peers/__init__.py)"
        )
    return module


def arithmetic_name(precision: torch.dtype, layout: torch.memory_format) -> str:
    """Return the name of an arithmetic, e.g. "bfloat16 channels_last"."""
    return f"{precision_name(precision)} {'channels_last' if layout == torch.channels_last else 'NCHW'}"
