"""`bench.py memory` measures in fresh processes how much memory recomputation saves, and how much time it costs."""

import argparse
import multiprocessing
import resource
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from deepnets.bench.comparison import (
    Comparison,
    Measurement,
    add_run_options,
    chosen_run,
    compose_run,
    overrides_of,
    seconds_of,
)
from deepnets.bench.training import endless
from deepnets.command import count, some_of
from deepnets.config.trust import trust, trusted
from deepnets.errors import UserError
from deepnets.system.settings import Memory
from deepnets.training.hardware import wait

MODES = list(Memory)
PROCESS = Path("/proc/self")
MIB = 2**20


class DoesNotFit(Exception):
    """Raised if an iteration needs more memory than is free."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py memory`."""
    add_run_options(parser, "resnet110", dataset="synthetic")
    modes = ",".join(MODES)
    parser.add_argument("--modes", type=some_of(MODES), default=modes, help=f"modes, with commas (default: {modes})")
    parser.add_argument("--iterations", type=count, default=3, help="timed iterations, after a first one (default: 3)")


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure an iteration's memory and time with recomputation and with memory=full, which stores all activations.

    Memory is the peak in MiB minus the memory that the process held before its first iteration, such as weights and
    data. So it counts activations, gradients, momentum and, on a CPU, code that is loaded on first use and gaps in the
    heap. Each measurement has its own process. The deepest network takes about 11 GB with memory=full:

        python scripts/bench.py memory --model preact1001 --iterations 1 --repeats 1
    """
    overrides, run = overrides_of(arguments), chosen_run(arguments)
    if run.device.type == "cpu" and not PROCESS.is_dir():
        raise UserError("memory on the CPU is read from /proc, which only Linux has")
    mebibytes: Measurement = {}
    seconds: Measurement = {}
    absent: dict[str, str] = {}
    for _ in range(arguments.repeats):
        for mode in arguments.modes:
            if mode in absent:
                continue
            try:
                peak, pace = _in_a_process([*overrides, f"memory={mode}"], arguments.iterations)
            except DoesNotFit as reason:
                absent[mode] = str(reason)
                mebibytes.pop(mode, None), seconds.pop(mode, None)
                continue
            mebibytes.setdefault(mode, []).append(peak / MIB)
            seconds.setdefault(mode, []).append(pace)
    title = f"of {arguments.model}, batches of {run.config.batch_size}"
    return [
        Comparison(f"memory {title}", "MiB", mebibytes, absent),
        Comparison(f"iteration {title}", "seconds", seconds, absent),
    ]


def _in_a_process(overrides: Sequence[str], iterations: int) -> tuple[float, float]:
    """Call `_trained` in a fresh process; raises `DoesNotFit` if the system kills it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(_trained, overrides, iterations, torch.get_num_threads(), trusted()).result()
        except BrokenProcessPool:
            raise DoesNotFit("its process was killed, probably for lack of memory") from None


def _trained(
    overrides: Sequence[str], iterations: int, threads: int, own_classes: Sequence[str]
) -> tuple[float, float]:
    """Train 1 + `iterations` iterations; return the most bytes held beyond those at the start, and the seconds of one.

    Raises:
        DoesNotFit: there is not enough memory.
    """
    torch.set_num_threads(threads)
    trust(own_classes)
    run = compose_run(overrides)
    steps = endless(run.training())
    base = _begin(run.device)
    try:
        next(steps)
        wait(run.device)
        pace = seconds_of(steps, iterations, run.device) / iterations
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError; the CPU's is a plain one
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error):
            raise DoesNotFit("it needs more memory than is free") from None
        raise
    return _peak(run.device) - base, pace


def _begin(device: torch.device) -> float:
    """Start to record the peak, and return the bytes held now; on a CPU, limit the process to memory that is free."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    free = _kib(Path("/proc/meminfo"), "MemAvailable")
    limit = 1024 * (_kib(PROCESS / "status", "VmData") + free)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    (PROCESS / "clear_refs").write_text("5")  # VmHWM starts anew; ru_maxrss would keep the parent's peak
    return 1024 * _kib(PROCESS / "status", "VmRSS")


def _peak(device: torch.device) -> float:
    """Return the most bytes held since `_begin`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * _kib(PROCESS / "status", "VmHWM")


def _kib(file: Path, name: str) -> int:
    """Read the number after a name in a file of /proc."""
    (line,) = (line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
