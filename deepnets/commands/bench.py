"""Measure deepnets on this machine.

One command measures all candidates of a bench. Its table has the median and range, over the repeats, of their values
and of the ratios between the first candidate and each. WHAT --help lists a bench's options. Most benches take
`--root DIR`, a folder with CIFAR-10 (stacked: MNIST) in any form that `dataset=` reads, or (imagenet) a tree of
photographs; the others need no data.
"""

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from deepnets.bench import analyses, data, ddp, evaluation, memory, overhead, stacked, training
from deepnets.bench.comparison import Comparison
from deepnets.command import Parser, count
from deepnets.extra import bench_gpu
from deepnets.system.files import check_writable
from deepnets.system.printing import as_text
from deepnets.training.hardware import describe, describe_processor, find_device


class Bench(NamedTuple):
    """A bench: a function that adds its options, and one that measures, whose docstring up to Raises is the help."""

    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], list[Comparison]]

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.measure) or "").partition("\n\nRaises:")[0]


BENCHES = {
    "training": Bench(training.add_options, training.measure),
    "evaluation": Bench(evaluation.add_options, evaluation.measure),
    "checkpoint": Bench(overhead.add_checkpoint_options, overhead.measure_checkpoint),
    "ddp": Bench(ddp.add_options, ddp.measure),
    "memory": Bench(memory.add_options, memory.measure),
    "data": Bench(data.add_data_options, data.measure_data),
    "imagenet": Bench(data.add_imagenet_options, data.measure_imagenet),
    "startup": Bench(overhead.add_startup_options, overhead.measure_startup),
    "waiting": Bench(overhead.add_waiting_options, overhead.measure_waiting),
    "rows": Bench(overhead.add_rows_options, overhead.measure_rows),
    "logging": Bench(overhead.add_logging_options, overhead.measure_logging),
    "grid": Bench(overhead.add_grid_options, overhead.measure_grid),
    "sweep": Bench(overhead.add_sweep_options, overhead.measure_sweep),
    "stacked": Bench(stacked.add_stacked_options, stacked.measure_stacked),
    "seeds": Bench(stacked.add_seeds_options, stacked.measure_seeds),
    "lesion": Bench(analyses.add_lesion_options, analyses.measure_lesion),
    "analyses": Bench(analyses.add_analyses_options, analyses.measure_analyses),
    "gpu": Bench(bench_gpu.add_options, bench_gpu.measure),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench that `argv` (None: the command line) names, and print its ratios. Returns 0."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    benches = parser.add_subparsers(metavar="WHAT", required=True)
    for name, bench in BENCHES.items():
        subparser = benches.add_parser(
            name,
            help=bench.description.partition("\n")[0],
            description=bench.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(measure=bench.measure)
        bench.add_options(subparser)
        subparser.add_argument("--repeats", type=count, default=5, help="measurements of each candidate (default: 5)")
        subparser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args(argv)
    if arguments.json:
        check_writable(arguments.json.parent)
    comparisons = arguments.measure(arguments)
    devices = [override for override in getattr(arguments, "overrides", []) if override.startswith("device=")]
    device = devices[-1].removeprefix("device=") if devices else "auto"
    machine = {
        "device": describe(find_device(device)),
        "processor": describe_processor(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    console = Console(highlight=False, width=120)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items() if value))
    for comparison in comparisons:
        console.print(comparison.table())
        for note in comparison.notes:
            console.print(as_text(note))
    if arguments.json and comparisons:  # a bench with many parts returns none and writes the file itself
        tables = {comparison.title: comparison.as_json() for comparison in comparisons}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({**machine, "tables": tables}, indent=2) + "\n")
    return 0
