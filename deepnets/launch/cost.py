"""Measures a network's training pace and memory once on each device and remembers them, or estimates the pace."""

import json
import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepnets.config.schema import Config
from deepnets.config.trust import trusting
from deepnets.data.dataset import Dataset
from deepnets.data.source import DataFiles, Source, Split
from deepnets.errors import UserError
from deepnets.runs.contents import FINISHED, Unreadable
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.record import threads_of
from deepnets.system.files import own_cache, read_object, write_atomically
from deepnets.training.assembly import prepare
from deepnets.training.fit import Sums, Training, evaluate, fit
from deepnets.training.hardware import choose_precision, describe, find_device, wait
from deepnets.training.size import NetworkSize

TIMED_SECONDS, TIMED_STEPS = 0.4, 3  # the least that is timed, after a first step, which is slower
REMEMBERED = "paces.json"  # in the user's cache
FARTHEST = 2.0  # the largest ratio of `grain` for which an estimate holds; layers' overheads spoil larger ones
CPU_GRAIN = 1e9  # on a CPU, a layer of more multiply-adds takes so long that its overhead does not matter
NOISE = f"{__name__}.noise"
CPU_MACS = 8e9  # on a CPU, time is proportional to the images: time a batch of about this many multiply-adds


@dataclass(frozen=True)
class Pace:
    """Seconds per image in training and in evaluation, for one device's share of the batch, and bytes of memory.

    `memory` counts the bytes of the weights, of the optimiser's state and of a step on the share. `spread` is half the
    range of the times of the training steps, divided by their mean. `macs` are the multiply-adds for one image, `grain`
    those of an average layer for the share. The finer the grain, the longer a multiply-add takes on average.
    """

    training: float
    evaluation: float
    memory: int
    spread: float = 0.0
    macs: int = 0
    grain: float = 0.0


PACES = TypeAdapter(dict[str, Pace])


class Paces:
    """Remembers the measured paces of networks in the user's cache, with the machine that each was measured on.

    With `measure`, it measures every network again. Otherwise it estimates the pace of a new network from the paces
    measured on this device and in this arithmetic. It measures a new network if none of the measured ones has between
    half and twice its grain.
    """

    def __init__(self, measure: bool) -> None:
        self.measure, self.measured, self.stored = measure, set[str](), _remembered()

    def of(self, config: Config, dataset: Dataset, size: NetworkSize) -> tuple[Pace, bool]:
        """Return the run's pace, and whether it was measured on exactly this network.

        Raises:
            UserError: the network does not fit into the memory of the GPU.
        """
        machine, network = _machine_of(config), _network_of(config, dataset, size)
        measured_here = {key: pace for key, pace in self.stored.items() if json.loads(key)[0] == machine}
        key = json.dumps([machine, network])
        others = measured_here.values()
        grain = _grain(config, size)
        near = [pace for pace in others if pace.grain and 1 / FARTHEST <= grain / pace.grain <= FARTHEST]
        if key not in self.measured and (self.measure or (key not in measured_here and not near)):
            torch.set_num_threads(threads_of(config))
            measured_here[key] = _measured_pace(config, dataset, size)
            self.measured.add(key)
            self.stored = {**self.stored, **_remembered(), key: measured_here[key]}  # other commands add some too
            text = json.dumps({key: asdict(pace) for key, pace in self.stored.items()})
            write_atomically(own_cache() / REMEMBERED, text, durable=False)
        if key in measured_here:
            return measured_here[key], True
        return _estimated([pace for pace in others if pace.grain], max(size.macs, 1), grain), False


def _grain(config: Config, size: NetworkSize) -> float:
    """Return the multiply-adds of an average layer for one device's share of a batch; no more than matter."""
    grain = max(size.macs, 1) * _share(config) / max(size.layers, 1)
    return min(grain, CPU_GRAIN) if find_device(config.device).type == "cpu" else grain


def _estimated(paces: list[Pace], macs: int, grain: float) -> Pace:
    """Estimate a pace by its grain, though the paces may have been measured under other loads.

    The time of a multiply-add is fitted so that it never rises with the grain. Between two grains it is interpolated on
    logarithmic axes; beyond the last it stays the same.
    """
    known, places, counts = np.unique([pace.grain for pace in paces], return_inverse=True, return_counts=True)

    def at(seconds: list[float]) -> float:
        times = np.log([each / pace.macs for each, pace in zip(seconds, paces, strict=True)])
        means = np.bincount(places, times) / counts
        fitted = (np.minimum.accumulate(means) + np.maximum.accumulate(means[::-1])[::-1]) / 2
        return macs * float(np.exp(np.interp(math.log(grain), np.log(known), fitted)))

    training, evaluation = at([pace.training for pace in paces]), at([pace.evaluation for pace in paces])
    return Pace(training, evaluation, memory=0, macs=macs, grain=grain)


def _remembered() -> dict[str, Pace]:
    try:
        return PACES.validate_python(read_object(own_cache() / REMEMBERED))
    except (ValueError, OSError):  # another version wrote it, or it is damaged
        return {}


def _machine_of(config: Config) -> list[Any]:
    """List the hardware and the settings on which the pace of any network depends."""
    device = find_device(config.device)
    precision = str(choose_precision(config.precision, device))
    return [describe(device), precision, threads_of(config), config.step.value, torch.__version__]


def _network_of(config: Config, dataset: Dataset, size: NetworkSize) -> list[Any]:
    survival, optimizer = config.model.get("survival"), config.optimizer["_target_"]
    return [size.architecture, survival, dataset.shape, _share(config), config.memory.value, optimizer]


def _share(config: Config) -> int:
    """Return how many images of a batch each device takes."""
    return math.ceil(config.batch_size / config.devices)


def seconds_of_seeds(folder: RunFolder, config: Config) -> float | None:
    """Return the device-seconds of an iteration, with evaluations, as the median of the row's runs that finished here.

    None if no run of the row has finished on this device, with as many processes and threads. Runs of a stack do not
    count: none of them took the time of a run that trains alone.
    """
    here, seconds = [FINISHED, describe(find_device(config.device)), threads_of(config)], []
    for run in run_folders(folder.path.parent):
        with suppress(Unreadable):  # nobody asked for this seed
            if not (result := run.result) or not result.seconds or not result.iterations:
                continue
            is_comparable = result.own_seconds is None and {*result.processes.values()} <= {config.devices}
            if [result.status, result.device, result.threads] == here and is_comparable:
                seconds.append(config.devices * result.seconds / result.iterations)
    return median(seconds) if seconds else None


def _measured_pace(config: Config, dataset: Dataset, size: NetworkSize) -> Pace:
    device = find_device(config.device)
    share = images = _share(config)
    if device.type == "cpu":
        images = min(images, max(16, int(CPU_MACS / max(size.macs, 1))))
    noise_config = replace(
        config,
        dataset={**_noise_node(dataset, images), "augmentation": config.dataset.get("augmentation", [])},
        batch_size=images,
        evaluation_batch_size=images,
        epochs=1,
        iterations=None,
    )
    try:
        with trusting([NOISE]):
            training = prepare(noise_config, device, choose_precision(config.precision, device))
        batches = training.evaluated.pop("test")
        training.iterations = 10**9  # the timing stops it
        steps = fit(training)

        def train() -> None:
            done = training.iteration
            while training.iteration == done:  # `fit` yields at the end of an epoch too
                next(steps)

        def test() -> None:
            for _ in evaluate(training.model, batches, Sums(device), training.precision):
                pass

        # The first iteration makes the optimiser's state, compiles and captures; later ones replay without allocating.
        if "graphed" in training.step:  # the short last batch runs outside the graphs, which keep their memory
            memory: float = _state_bytes(training) + _peak(train, device)
            graphs, training.forward = training.forward, training.replica
            memory += _peak(train, device)
            training.forward = graphs
            train()
        else:
            train()
            memory = _state_bytes(training) + _peak(train, device) * share / images
        training_seconds, spread = _seconds(train, device)  # before `test`, which leaves the model in evaluation mode
        test()
        test_seconds, _ = _seconds(test, device)
        seconds = training_seconds / images, test_seconds / images
        return Pace(*seconds, round(memory), round(spread, 3), max(size.macs, 1), _grain(config, size))
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"batch_size={config.batch_size}: does not fit into the memory of {describe(device)}; choose a smaller one"
        ) from error


def _state_bytes(training: Training) -> int:
    """Return the bytes of the weights, the batch statistics and the optimiser's state."""
    state = (value for values in training.optimizer.state.values() for value in values.values())
    tensors = [*training.model.state_dict().values(), *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(tensor.nbytes for tensor in tensors)


def _peak(act: Callable[[], None], device: torch.device) -> int:
    """Call `act` and return the most bytes that it used at once, not counting the bytes in use before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        act()
        return torch.cuda.max_memory_allocated(device) - before
    with _PeakMemory() as peak:
        act()
    return peak.bytes


def _seconds(act: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Call `act` several times; return its mean seconds, and half the range of its times divided by the mean."""
    wait(device)
    times: list[float] = []
    while len(times) < TIMED_STEPS or sum(times) < TIMED_SECONDS:
        started = time.perf_counter()
        act()
        wait(device)
        times.append(time.perf_counter() - started)
    mean = sum(times) / len(times)
    return mean, (max(times) - min(times)) / 2 / mean


def noise(root: Path, *, shape: list[int], classes: int, train: int, test: int) -> Source:
    """Return a source of random images of `shape` (C, H, W), spread evenly over the classes; `root` is not used."""
    channels, height, width = shape

    def split(count: int) -> Split:
        images = torch.randint(256, (count, height, width, channels), dtype=torch.uint8)
        return Split(images, torch.arange(count) % classes)

    def find() -> DataFiles:
        return DataFiles((train, test), lambda: (split(train), split(test)))

    return Source("noise", (channels, height, width), tuple(map(str, range(classes))), find)


def _noise_node(dataset: Dataset, images: int) -> dict:
    """Configure a data set of noise, with the shape of `dataset` and four training batches, so that no file is read."""
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


def makespan(runs: Sequence[tuple[float, int]], devices: int) -> float:
    """Return the seconds until the last of `runs` ends, if each starts, in this order, once its devices are free.

    A run is a pair: its seconds on one device, and the number of devices that share it.

    Raises:
        ValueError: a run needs more devices than there are.
    """
    free = [0.0] * devices
    for seconds, taken in runs:
        if taken > devices:
            raise ValueError(f"a run needs {taken} devices of {devices}")
        free.sort()
        free[:taken] = [free[taken - 1] + seconds / taken] * taken
    return max(free)


class _PeakMemory(TorchDispatchMode):
    """Counts the memory of the tensors that are made within its context: `bytes` is the most that they used at once.

    It counts a storage that an operation returns and did not receive. It counts neither the memory that an operation
    uses internally nor the memory that an allocator keeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._current = 0
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
        self._current += storage.nbytes()
        self.bytes = max(self.bytes, self._current)
        weakref.finalize(storage, self._drop, id(storage), storage.nbytes())

    def _drop(self, number: int, size: int) -> None:
        self._alive.remove(number)
        self._current -= size


def _storages(tree: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
