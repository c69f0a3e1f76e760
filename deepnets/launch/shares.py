"""The devices of this machine, each of which several runs may share."""

import os
from collections import Counter
from collections.abc import Collection, Sequence

import torch

from deepnets.training.hardware import find_device


class Shares:
    """What is free of each device, of which `per_device` runs take a share at once; all share the CPU's threads."""

    def __init__(self, devices: Collection[str | None], per_device: int) -> None:
        self._free = Counter(dict.fromkeys(devices, per_device))
        self._threads = max(1, torch.get_num_threads() // self._free.total())

    def take(self, wanted: int) -> list[str | None]:
        """A share of each of so many devices, of those with most left; empty where there are not so many."""
        taken = [device for device, shares in self._free.most_common() if shares][:wanted]
        if len(taken) < wanted:
            return []
        self._free.subtract(taken)
        return taken

    def release(self, taken: Sequence[str | None]) -> None:
        self._free.update(taken)

    def environment(self, taken: Sequence[str | None]) -> dict[str, str]:
        """The environment of a run that has taken these devices."""
        threads = str(self._threads * len(taken))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads}
        if gpus := gpus_of(taken):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return environment


def gpus_of(devices: Sequence[str | None]) -> list[str]:
    """Those that CUDA_VISIBLE_DEVICES is to name."""
    return sorted(device for device in devices if device is not None)


def devices_of(name: str) -> list[str | None]:
    """What CUDA_VISIBLE_DEVICES is to be for each device; None leaves it as it is: for the CPU, or a GPU by name."""
    if find_device(name).type == "cpu" or ":" in name:
        return [None]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = torch.cuda.device_count()  # CUDA ends at the first name that is of no GPU
    return [*shown.split(",")[:there]] if shown else [str(index) for index in range(there)]
