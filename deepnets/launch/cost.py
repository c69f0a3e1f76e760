"""The cost of training a network: parameters and multiply-adds are counted, time and memory measured on this device."""

import json
import math
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from deepnets.config.build import build
from deepnets.config.schema import Config
from deepnets.config.trust import trusting
from deepnets.data.dataset import Dataset
from deepnets.data.source import DataFiles, Source, Split
from deepnets.errors import UserError
from deepnets.runs.record import threads_of
from deepnets.training.assembly import prepare
from deepnets.training.checks import try_out
from deepnets.training.fit import Training, evaluate, fit
from deepnets.training.hardware import choose_precision, describe, find_device, wait
from deepnets.training.metrics import Sums

TIMED_SECONDS, TIMED_STEPS = 0.4, 3  # after a first step, which is slower; both must be reached
NOISE = f"{__name__}.noise"
CPU_MACS = 8e9  # of a timed forward pass on a CPU, where from a few images on, time is proportional to their number


@dataclass(frozen=True)
class Size:
    """The size of a network: its parameters, and `macs` for one image.

    `macs` are the multiply-adds of convolutions and linear layers if every branch is taken. `architecture` is torch's
    description of the modules without decimals: gates that differ in their bias take the same time.
    """

    parameters: int
    macs: int
    architecture: str


@dataclass(frozen=True)
class Pace:
    """Seconds per image in training and in evaluation, at a device's share of the batch, and bytes of memory.

    `memory` is the weights, the optimiser's state and what a step takes in addition, in proportion to its images.
    """

    training: float
    evaluation: float
    memory: int


def size_of(config: Config, dataset: Dataset) -> Size:
    """The size of the run's network, which is built without memory for its weights.

    Raises:
        UserError: the network is illegal.
    """
    return _size(json.dumps(config.model), dataset.shape, dataset.classes)


@cache
def _size(key: str, shape: tuple[int, int, int], classes: int) -> Size:
    with torch.device("meta"):
        model = build("model", json.loads(key), shape=shape, classes=classes)
    with FlopCounterMode(display=False) as counter:
        try_out(model, shape)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(parameters, counter.get_total_flops() // 2, re.sub(r"-?\d+\.\d+(e-?\d+)?", "", str(model)))


def pace_of(config: Config, dataset: Dataset, size: Size, cached: dict[str, Pace]) -> Pace:
    """The pace of real training steps on noise of the data set's shape; it is kept in `cached` and taken from there.

    Raises:
        UserError: the network does not fit into the memory of the GPU.
    """
    precision, threads = config.precision.value, threads_of(config)
    network = [size.architecture, config.model.get("survival"), dataset.shape, _share(config), precision, threads]
    key = json.dumps([*network, config.device, config.memory, config.step, config.optimizer["_target_"]])
    if key not in cached:
        torch.set_num_threads(threads)
        cached[key] = _measure_pace(config, dataset, size)
    return cached[key]


def _share(config: Config) -> int:
    """The images of a batch that each device takes."""
    return math.ceil(config.batch_size / config.devices)


def _measure_pace(config: Config, dataset: Dataset, size: Size) -> Pace:
    device = find_device(config.device)
    share = images = _share(config)
    if device.type == "cpu":
        images = min(images, max(16, int(CPU_MACS / max(size.macs, 1))))
    noise = replace(
        config,
        dataset=_noise(dataset, images),
        batch_size=images,
        evaluation_batch_size=images,
        epochs=1,
        iterations=None,
    )
    try:
        with trusting([NOISE]):
            training = prepare(noise, device, choose_precision(config.precision, device))
        batches = training.evaluated.pop("test")
        training.iterations = 10**9  # the timing ends it
        steps = fit(training)

        def train() -> None:
            done = training.iteration
            while training.iteration == done:  # the end of an epoch yields too
                next(steps)

        def test() -> None:
            for _ in evaluate(training.model, batches, Sums(device), training.precision):
                pass

        # The first iteration makes the optimiser's state, compiles and captures; later ones replay without allocating.
        memory: float = _held(training) + _peak(train, device)
        if "graphed" in training.step:  # the short last batch is executed beside the graphs' own pool
            graphs, training.forward = training.forward, training.replica
            memory += _peak(train, device)
            training.forward = graphs
        else:
            memory = _held(training) + _peak(train, device) * share / images
        return Pace(_seconds(train, device) / images, _seconds(test, device) / images, round(memory))
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"batch_size={config.batch_size}: does not fit into the memory of {describe(device)}; choose a smaller one"
        ) from error


def _held(training: Training) -> int:
    """The bytes of the weights, the batch statistics and the optimiser's state."""
    state = (value for values in training.optimizer.state.values() for value in values.values())
    tensors = [*training.model.state_dict().values(), *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(tensor.nbytes for tensor in tensors)


def _peak(act: Callable[[], None], device: torch.device) -> int:
    """The bytes that calling `act` takes at most, beyond those in use before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        act()
        return torch.cuda.max_memory_allocated(device) - before
    with _PeakMemory() as peak:
        act()
    return peak.bytes


def _seconds(act: Callable[[], None], device: torch.device) -> float:
    """The seconds of one `act`: the mean over a short while."""
    act()
    wait(device)
    started, count = time.perf_counter(), 0
    while count < TIMED_STEPS or time.perf_counter() - started < TIMED_SECONDS:
        act()
        wait(device)
        count += 1
    return (time.perf_counter() - started) / count


def noise(root: Path, *, shape: list[int], classes: int, train: int, test: int) -> Source:
    """Random images of a shape (C, H, W), square or not, as many of each class; ignores `root`."""
    channels, height, width = shape

    def split(count: int) -> Split:
        images = torch.randint(256, (count, height, width, channels), dtype=torch.uint8)
        return Split(images, torch.arange(count) % classes)

    def find() -> DataFiles:
        return DataFiles((train, test), lambda: (split(train), split(test)))

    return Source("noise", (channels, height, width), tuple(map(str, range(classes))), find)


def _noise(dataset: Dataset, images: int) -> dict:
    """The node of a data set like `dataset`, with four batches of noise, so that the timing needs no files."""
    source = {"shape": list(dataset.shape), "classes": dataset.classes, "train": 4 * images, "test": images}
    return {
        "_target_": "deepnets.data.dataset.Dataset",
        "source": {"_target_": NOISE, "_partial_": True, **source},
        "root": ".",
        "validation": 0,
        "normalization": dataset.normalization,
        "pad": dataset.pad,
        "flip": dataset.flip,
    }


class _PeakMemory(TorchDispatchMode):
    """A context: `bytes` is the most memory that tensors made inside it have held at once.

    It counts the storages that an operation returns and was not given. It does not see what an operation takes for
    itself meanwhile, nor what an allocator keeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._held = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if id(storage) not in given | self._alive:
                self._add(storage)
        return result

    def _add(self, storage: UntypedStorage) -> None:
        self._alive.add(id(storage))
        self._held += storage.nbytes()
        self.bytes = max(self.bytes, self._held)
        weakref.finalize(storage, self._drop, id(storage), storage.nbytes())

    def _drop(self, number: int, size: int) -> None:
        self._alive.remove(number)
        self._held -= size


def _storages(tree: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
