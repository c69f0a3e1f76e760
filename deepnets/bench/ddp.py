"""`bench.py ddp` trains one network in several processes. Each of them executes this file's `main`."""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deepnets.bench.comparison import (
    Candidates,
    Comparison,
    Measurement,
    add_run_options,
    chosen_run,
    compose_run,
    in_turns,
    overrides_of,
    seconds_of,
    trust_words,
)
from deepnets.bench.training import endless
from deepnets.command import count, run_command
from deepnets.config.trust import trust
from deepnets.distributed.signals import Interrupted, Interruption
from deepnets.distributed.spawn import how_it_ended, processes
from deepnets.distributed.world import ALONE, World, joined, world_from_env
from deepnets.errors import UserError
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training
from deepnets.training.hardware import device_of_process

OWN = "strong, statistics of each process's part"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py ddp`."""
    add_run_options(parser, "resnet20", dataset="synthetic")
    parser.add_argument(
        "--processes", type=count, default=2, help="number of processes that are compared with one (default: 2)"
    )
    parser.add_argument("--threads", type=count, default=1, help="threads of each process (default: 1)")
    parser.add_argument("--iterations", type=count, default=10, help="iterations a repeat (default: 10)")


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure images/s of one process and several, and how long a step waits for gradients after its backward pass.

    The same processes measure all cases in turn. Either one process trains and the others wait, or all train: they
    divide a batch of the run's size (strong scaling), or each takes a batch of that size (weak scaling). no_sync()
    leaves out the all-reduce of the gradients, so a step's wait is its time minus its time under no_sync(); the rest of
    the all-reduce runs during the backward pass. The same step with batch statistics of each process's part alone shows
    what statistics over all processes cost.

    Raises:
        Interrupted: a signal came. UserError: there are fewer than two processes, they cannot divide the batch, or one
            has failed.
    """
    count, batch = arguments.processes, chosen_run(arguments).config.batch_size
    if not 2 <= count <= batch:
        raise UserError(f"--processes {count}: must be 2 or more, and no more than the {batch} images of a batch")
    with TemporaryDirectory() as place:
        file = Path(place, "seconds.json")
        main_arguments = [file, arguments.iterations, arguments.repeats, *trust_words(), *overrides_of(arguments)]
        command = [sys.executable, "-m", __name__, *map(str, main_arguments)]
        with processes(command, count, arguments.threads) as group:
            failure = group.first_failure()
        if stop := group.stopped_by(failure):
            raise Interrupted(stop)
        if failure:
            raise UserError(f"process {failure[0]} of {count} {how_it_ended(failure[1])}")
        seconds: Measurement = json.loads(file.read_text())
    batches = {"alone": batch, "alone, all threads": batch, "strong": batch, "weak": batch * count}
    names = {
        "alone": f"1 process, {arguments.threads} threads",
        "alone, all threads": f"1 process, {arguments.threads * count} threads",
        "strong": f"{count} processes share a batch of {batch}",
        "weak": f"{count} processes, a batch of {batch} each",
    }
    rates = {names[key]: [size / value for value in seconds[key]] for key, size in batches.items()}
    each = {name: [value / count for value in rates[name]] for name in (names["strong"], names["weak"])}
    title = f"{arguments.model} in {count} processes"
    return [
        Comparison(f"{title}, all together", "images/s", rates),
        Comparison(f"{title}, each", "images/s", {names["alone"]: rates[names["alone"]], **each}),
        *([_statistics(seconds)] if OWN in seconds else []),
        *(_step(f"a step of {names[key]}", seconds, key) for key in ("strong", "weak")),
    ]


def _step(title: str, seconds: Measurement, key: str) -> Comparison:
    step, without, alone = seconds[key], seconds[f"{key}, no_sync"], seconds["all-reduce"]
    waiting = [100 * (a - b) / a for a, b in zip(step, without, strict=True)]
    reducing = [100 * b / a for a, b in zip(step, alone, strict=True)]
    values = {"step": step, "the same under no_sync()": without, "all-reduce of the gradients alone": alone}
    notes = [
        f"after the backward pass, a step waits for gradients for {_spread(waiting)} of its time",
        f"the all-reduce alone takes {_spread(reducing)} of a step's time; all but the wait runs in the backward pass",
    ]
    return Comparison(title, "seconds", values, notes=notes)


def _statistics(seconds: Measurement) -> Comparison:
    share = [100 * (1 - part / whole) for whole, part in zip(seconds["strong"], seconds[OWN], strict=True)]
    values = {"of the whole batch": seconds["strong"], "of each process's part": seconds[OWN]}
    notes = [f"statistics over all processes: {_spread(share)} of the step"]
    return Comparison("a step with batch statistics", "seconds", values, notes=notes)


def _spread(percent: Sequence[float]) -> str:
    return f"{statistics.median(percent):.1f} % ({min(percent):.1f} to {max(percent):.1f})"


def main() -> int:
    """Train in this process; the first process also writes the results. Returns 0.

    The results are, for each case, the seconds that the slowest process takes for an iteration.
    """
    file, iterations, repeats, *words = sys.argv[1:]
    overrides = [word for word in words if not word.startswith("--trust=")]
    trust(word.removeprefix("--trust=") for word in words if word not in overrides)
    world = world_from_env()
    with Interruption(at_once=True):
        device = device_of_process(compose_run(overrides).config.device, world.local_rank)
        with joined(world, device):
            seconds = in_turns(
                _candidates(overrides, world, device, torch.get_num_threads(), int(iterations)), int(repeats)
            )
            gc.collect()  # a network whose reducer outlives the process group may abort the process at its end
    if world.is_first:
        Path(file).write_text(json.dumps(seconds))
    return 0


def _candidates(
    overrides: Sequence[str], world: World, device: torch.device, threads: int, iterations: int
) -> Candidates:
    run = compose_run(overrides)
    batch = run.config.batch_size

    def training(size: int, among: World) -> Training:
        config = compose_run([*overrides, f"batch_size={size}"]).config
        return prepare(config, device, run.precision, among)

    alone, strong, weak = training(batch, ALONE), training(batch, world), training(batch * world.size, world)
    gradients = torch.zeros(sum(parameter.numel() for parameter in alone.model.parameters()), device=device)
    steps = {id(one): endless(one) for one in (alone, strong, weak)}

    def pace(batches: Iterator) -> float:
        world.barrier()
        return world.all_reduce_max([seconds_of(batches, iterations, device) / iterations])[0]

    def one_process(count: int) -> float:
        torch.set_num_threads(count)
        taken = pace(steps[id(alone)] if world.is_first else iter(range(iterations)))
        torch.set_num_threads(threads)
        return taken

    def without_gradients(one: Training) -> float:
        assert isinstance(one.replica, DistributedDataParallel)
        with one.replica.no_sync():
            return pace(steps[id(one)])

    candidates = {
        "alone": lambda: one_process(threads),
        "alone, all threads": lambda: one_process(threads * world.size),
        "strong": lambda: pace(steps[id(strong)]),
        "strong, no_sync": lambda: without_gradients(strong),
        "weak": lambda: pace(steps[id(weak)]),
        "weak, no_sync": lambda: without_gradients(weak),
        "all-reduce": lambda: pace(_reductions(gradients)),
    }
    if run.config.model.get("batchnorm_images", 0) is None:
        parts = compose_run([*overrides, f"model.batchnorm_images={batch // world.size}"]).config
        by_part = endless(prepare(parts, device, run.precision, world))
        candidates[OWN] = lambda: pace(by_part)
    return candidates


def _reductions(gradients: torch.Tensor) -> Iterator[None]:
    while True:
        dist.all_reduce(gradients)
        yield


if __name__ == "__main__":
    run_command(main)
