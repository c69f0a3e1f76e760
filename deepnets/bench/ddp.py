"""Images/s of several processes against one, and how long a step waits for gradients once its backward pass is over.

All in the same processes, in turns. One process trains while the others wait. Several divide a batch of the run's size
among them (strong scaling) or each take one of that size (weak). A step waits for as long as it takes more than the
same step under no_sync(), which leaves out the gradients' all-reduce; what the all-reduce takes alone beyond that is
hidden behind the backward pass.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deepnets.bench.figures import Figures
from deepnets.bench.options import count
from deepnets.bench.subject import add_subject, chosen, subject_of, words_of
from deepnets.bench.training import endless
from deepnets.bench.turns import Candidates, Measurement, in_turns, seconds_of
from deepnets.distributed.spawn import end_with_parent, start
from deepnets.distributed.world import ALONE, World, joined, world_from_env
from deepnets.errors import UserError
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training
from deepnets.training.hardware import find_device


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20", dataset="synthetic")
    parser.add_argument("--processes", type=count, default=2, help="of which one or all train (default: 2)")
    parser.add_argument("--threads", type=count, default=1, help="of each process (default: 1)")
    parser.add_argument("--iterations", type=count, default=10, help="iterations a repeat (default: 10)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Start the processes, which measure.

    Raises:
        UserError: fewer than two, or a batch that cannot be divided among them.
    """
    processes, batch = arguments.processes, chosen(arguments).config.batch_size
    if not 2 <= processes <= batch:
        raise UserError(f"--processes {processes}: give 2 or more, among which a batch of {batch} can be divided")
    given = words_of(arguments), arguments.threads, arguments.iterations, arguments.repeats
    seconds: Measurement = start(processes, arguments.threads, measured, *given)[0]
    batches = {"alone": batch, "alone, all threads": batch, "strong": batch, "weak": batch * processes}
    names = {
        "alone": f"1 process, {arguments.threads} threads",
        "alone, all threads": f"1 process, {arguments.threads * processes} threads",
        "strong": f"{processes} processes share a batch of {batch}",
        "weak": f"{processes} processes, a batch of {batch} each",
    }
    rates = {names[key]: [size / value for value in seconds[key]] for key, size in batches.items()}
    each = {name: [value / processes for value in rates[name]] for name in (names["strong"], names["weak"])}
    title = f"{arguments.model} in {processes} processes"
    return [
        Figures(f"{title}, all together", "images/s", rates),
        Figures(f"{title}, each", "images/s", {names["alone"]: rates[names["alone"]], **each}),
        *(_step(f"a step of {names[key]}", seconds, key) for key in ("strong", "weak")),
    ]


def _step(title: str, seconds: Measurement, key: str) -> Figures:
    step, without, alone = seconds[key], seconds[f"{key}, no_sync"], seconds["all-reduce"]
    waiting = [100 * (a - b) / a for a, b in zip(step, without, strict=True)]
    reducing = [100 * b / a for a, b in zip(step, alone, strict=True)]
    values = {"step": step, "the same under no_sync()": without, "all-reduce of the gradients alone": alone}
    notes = [
        f"waits for gradients after the backward pass: {_told(waiting)} of the step",
        f"the all-reduce alone: {_told(reducing)} of the step; what is not waited for runs beside the backward pass",
    ]
    return Figures(title, "seconds", values, notes=notes)


def _told(percent: Sequence[float]) -> str:
    return f"{statistics.median(percent):.1f} % ({min(percent):.1f} to {max(percent):.1f})"


def measured(words: Sequence[str], threads: int, iterations: int, repeats: int) -> Measurement:
    """What each process does; seconds an iteration takes the slowest of those that train."""
    end_with_parent()
    world = world_from_env()
    device = find_device(subject_of(words).config.device)
    if device.type == "cuda":
        device = find_device(f"cuda:{world.local_rank}")
    with joined(world, device):
        return in_turns(_candidates(words, world, device, threads, iterations), repeats)


def _candidates(words: Sequence[str], world: World, device: torch.device, threads: int, iterations: int) -> Candidates:
    subject = subject_of(words)
    batch = subject.config.batch_size

    def training(size: int, among: World) -> Training:
        return prepare(subject_of([*words, f"batch_size={size}"]).config, device, subject.precision, among)

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

    return {
        "alone": lambda: one_process(threads),
        "alone, all threads": lambda: one_process(threads * world.size),
        "strong": lambda: pace(steps[id(strong)]),
        "strong, no_sync": lambda: without_gradients(strong),
        "weak": lambda: pace(steps[id(weak)]),
        "weak, no_sync": lambda: without_gradients(weak),
        "all-reduce": lambda: pace(_reductions(gradients)),
    }


def _reductions(gradients: torch.Tensor) -> Iterator[None]:
    while True:
        dist.all_reduce(gradients)
        yield
