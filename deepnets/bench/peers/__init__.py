"""Other ways to train the same network, to compare with: the task that each peer is given, and how a peer is found."""

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

    A peer is a Python file with a function `prepare(task) -> Callable[[int], float]`. The function that it returns
    trains so many iterations of `batch_size` more each time it is called, and returns the seconds that they took. What
    a peer does once (starting workers, compiling) belongs before them. Its row of the table has the file's name.

    `model` is fresh, on the CPU, float32 and NCHW. `images` (N, H, W, C) uint8 and `labels` (N,) int64 are on the CPU;
    `mean` and `std` are those of the channels, on a scale of 0 to 1. An image is surrounded by `pad` pixels of zeros,
    and a crop of its size is taken; `flip` mirrors half of the images. deepnets trains in the same `precision` (for
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
    """The task to train the network of a run on these images of 0..255."""
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
    """The peer in the file of that name beside this one.

    Raises:
        ModuleNotFoundError: the library that it uses is not installed.
    """
    return importlib.import_module(f"{__name__}.{name}")


def peer_in(path: Path) -> ModuleType:
    """The peer in a file of the user's.

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
    """The name of an arithmetic, as in "bfloat16 channels_last"."""
    return f"{precision_name(precision)} {'channels_last' if layout == torch.channels_last else 'NCHW'}"
