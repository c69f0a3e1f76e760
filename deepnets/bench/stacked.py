"""`bench.py stacked` and `seeds` train runs on one device: as one batched network, in processes, or one by one.

`stacked` measures in float32 and in the precision that training uses here, `seeds` in float32 and in bfloat16.
"""

import argparse
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from deepnets.bench.comparison import (
    Comparison,
    add_overrides,
    add_run_options,
    chosen_run,
    compose_run,
    in_turns,
    overrides_of,
    precision_name,
    results_of,
    seconds_of,
)
from deepnets.command import count, counts
from deepnets.config.schema import Precision
from deepnets.errors import UserError
from deepnets.system import usable_cores
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from deepnets.training.stack import Stack, fit_together

# No trial of this search diverges. All trials have the same activation, because a stack needs that.
SEARCH = ["sweep=srivastava2015_fig1_highway", "model.layer=[linear,relu]", "optimizer.lr=0.01"]
# ResNet-110 of sweep=he2016_table1 scale=deep, on images that need no download
NARROW = [
    *("model=resnet110", "model.widths=[4,8,16]", "model.batchnorm_images=64"),
    *("dataset=synthetic", "dataset.source.size=16", "dataset.source.test=100", "device=cpu"),
]
STACKED = 3  # seeds in one network
SECONDS = 600.0  # limit for one command


def add_stacked_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py stacked`."""
    add_run_options(parser, "highway_fc50", dataset="mnist")
    parser.add_argument("--rows", type=counts, default="10,32", help="numbers of rows at once (default: 10,32)")
    parser.add_argument("--iterations", type=count, default=40, help="iterations of all rows together (default: 40)")


def measure_stacked(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the images/s that runs of a random search reach together, as one batched network and one by one.

    Trials per minute have the same ratios as images/s. Everything is measured in the precision that training uses here,
    and in float32.
    """
    arguments.overrides = [*SEARCH, *arguments.overrides]
    run, overrides = chosen_run(arguments), overrides_of(arguments)
    precisions = dict.fromkeys((run.precision, torch.float32))
    return [_stacked_in(precision, run.device, overrides, arguments) for precision in precisions]


def add_seeds_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py seeds`."""
    parser.add_argument("--iterations", type=count, default=30, help="iterations of each run (default: 30)")
    add_overrides(parser)


def measure_seeds(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure the images/s that runs of a narrow, deep network reach together, sharing the CPU's cores in several ways.

    The ways are one run on each core by launcher=pool (also with torch's own batch normalisation), one run on all
    cores, and three seeds as one batched network by launcher.stacked. Each is measured in both precisions, and each
    turn is a command of its own.
    """
    return [_seeds_in(precision, arguments) for precision in (Precision.fp32, Precision.bf16)]


def _stacked_in(
    precision: torch.dtype, device: torch.device, overrides: list[str], arguments: argparse.Namespace
) -> Comparison:
    def steps(rows: int) -> Iterator:
        configs = [compose_run([*overrides, f"setting={row}", f"seed={row}"]).config for row in range(rows)]
        trainings = [prepare(config, device, precision) for config in configs]
        return fit(trainings[0]) if rows == 1 else fit_together(Stack(trainings))

    def speed(batches: Iterator, rows: int, images: int) -> float:
        iterations = max(1, arguments.iterations // rows)
        return iterations * rows * images / seconds_of(batches, iterations, device)

    images = compose_run([*overrides, "setting=0"]).config.batch_size
    candidates = {
        "one by one" if rows == 1 else f"{rows} at once": partial(speed, steps(rows), rows, images)
        for rows in dict.fromkeys((*arguments.rows, 1))
    }
    title = f"rows of {arguments.model}, {precision_name(precision)}"
    return Comparison(title, "images/s", in_turns(candidates, arguments.repeats))


def _seeds_in(precision: Precision, arguments: argparse.Namespace) -> Comparison:
    cores = usable_cores()
    size = f"dataset.source.train={arguments.iterations * 128}"
    overrides = [*NARROW, size, "epochs=1", f"precision={precision}", *arguments.overrides]
    pool = ["launcher=pool", f"launcher.runs_per_device={cores}"]
    ways = {
        f"{cores} runs, a thread each": (cores, pool),
        f"one run, {cores} threads": (1, []),
        f"{STACKED} runs stacked, {cores} threads": (STACKED, [f"launcher.stacked={STACKED}"]),
        f"{cores} runs, a thread each, batchnorm_kernel=torch": (cores, [*pool, "batchnorm_kernel=torch"]),
    }
    candidates = {name: partial(_speed_of, [*overrides, *more], seeds) for name, (seeds, more) in ways.items()}
    title = f"runs of ResNet-110 of width 4, 8, 16, {precision}"
    return Comparison(title, "images/s", in_turns(candidates, arguments.repeats))


def _speed_of(overrides: Sequence[str], seeds: int) -> float:
    """Train all runs at the same time; return the sum of their images/s."""
    command = " ".join(overrides)
    try:
        results = results_of(["-m", *overrides, f"seed=range({seeds})"], ["images_per_second"], SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"{command} takes more than {SECONDS:.0f} seconds; choose fewer --iterations") from None
    if "absent" in results:
        raise UserError(f"{command}: {results['absent']}")
    return sum(results["images_per_second"])
