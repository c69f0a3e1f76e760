"""Measure deepnets on this machine.

Every figure is a ratio of things measured in turn in one run, given as median and range over the repeats.
WHAT --help lists its options. Most take `--root DIR`, a folder with CIFAR-10 (for stacked:
MNIST) in any form that `dataset=cifar10` reads; the others make their images.
"""

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console

from deepnets.system.options import check_writable, count
from deepnets.system.printing import as_text
from deepnets.training.hardware import describe, find_device

BENCHES = {
    name: import_module(f"deepnets.bench.{name}")
    for name in (
        *(
            "training",
            "evaluation",
            "checkpoint",
            "ddp",
            "memory",
            "data",
            "imagenet",
            "startup",
            "rows",
            "logging",
            "grid",
        ),
        *("stacked", "seeds", "lesion", "analyses", "gpu"),
    )
}


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names, or `words`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    for name, bench in BENCHES.items():
        kind = kinds.add_parser(
            name,
            help=(bench.__doc__ or "").partition("\n")[0],
            description=bench.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        kind.set_defaults(measure=bench.measure)
        bench.add_options(kind)
        kind.add_argument("--repeats", type=count, default=5, help="how often each is measured (default: 5)")
        kind.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args(words)
    if arguments.json:
        check_writable(arguments.json.parent)
    figures = arguments.measure(arguments)
    chosen = [word for word in getattr(arguments, "overrides", []) if word.startswith("device=")]
    device = chosen[-1].removeprefix("device=") if chosen else "auto"
    machine = {
        "device": describe(find_device(device)),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    console = Console(highlight=False, width=120)
    console.print(f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    for one in figures:
        console.print(one.table())
        for note in one.notes:
            console.print(as_text(note))
    if arguments.json and figures:  # a bench of many parts writes them itself
        tables = {one.title: one.as_json() for one in figures}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({**machine, "tables": tables}, indent=2) + "\n")
    return 0
