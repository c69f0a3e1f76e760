"""Measure deepnets on this machine: `python scripts/bench.py training|data|startup --root DIR`.

Every figure is a ratio of two things measured in turns in one process run, given as median and range over the repeats.
DIR holds CIFAR-10 in any form `dataset=cifar10` reads.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from deepnets.assembly import prepare
from deepnets.command import run_command
from deepnets.config import CONF, REPOSITORY, Config, register, typed
from deepnets.fit import fit
from deepnets.hardware import choose_precision, describe, find_device
from deepnets.run import build_model

Measurement = dict[str, list[float]]
SETTLE_SECONDS = 1.0  # a loader's workers go on filling their queue after its turn


def configuration(*overrides: str) -> Config:
    """The composed configuration of scripts/train.py with these overrides."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("train", list(overrides)))


class PlainImages(Dataset):
    """CIFAR-10 as the usual script has it: an array in memory, each image through PIL and torchvision's transforms."""

    def __init__(self, images: Tensor, labels: Tensor, mean: list[float], std: list[float]) -> None:
        from torchvision import transforms

        self.images, self.labels = images.numpy(), labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def plain_loader(config: Config, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches from torchvision's loader with as many worker processes."""
    training = prepare(config, torch.device("cpu"), torch.float32)
    split = training.batches.split
    images = split.images.float().div(255)
    mean, std = images.mean((0, 1, 2)).tolist(), images.std((0, 1, 2)).tolist()
    data = PlainImages(split.images, split.labels, mean, std)
    loader = DataLoader(data, config.batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def plain_training(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[None]:
    """The usual loop: float32, NCHW, one loss read an iteration left out."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    model.to(device).train()
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
        yield


def rate(batches: Iterator, batch_size: int, iterations: int, device: torch.device) -> float:
    """Images a second over that many iterations."""
    started = time.perf_counter()
    for _ in range(iterations):
        next(batches)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return iterations * batch_size / (time.perf_counter() - started)


def in_turns(candidates: dict[str, Callable[[], float]], repeats: int) -> Measurement:
    """Each candidate once to warm up, then `repeats` times in turns."""
    for measure in candidates.values():
        measure()
    results: Measurement = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, measure in candidates.items():
            time.sleep(SETTLE_SECONDS)
            results[name].append(measure())
    return results


def bench_training(root: str, repeats: int, iterations: int) -> Measurement:
    """Images/s of the training part of an epoch of ResNet-20, against the same network in a plain script."""
    config = configuration("model=resnet20", "dataset=cifar10", f"dataset.root={root}")
    device = find_device("auto")
    training = prepare(config, device, choose_precision(config.precision, device))
    ours = fit(training)
    overrides = ["model=resnet20", "dataset=cifar10", f"dataset.root={root}"]
    candidates = {"deepnets": lambda: rate(ours, config.batch_size, iterations, device)}
    for workers in (0, 2):
        plain = plain_training(build_model(overrides), plain_loader(config, workers), device)
        candidates[f"plain script, {workers} workers"] = lambda plain=plain: rate(
            plain, config.batch_size, iterations, device
        )
    return in_turns(candidates, repeats)


def bench_data(root: str, repeats: int, iterations: int) -> Measurement:
    """Images/s of the data pipeline alone: shuffle, crop, flip, normalise."""
    config = configuration("model=resnet20", "dataset=cifar10", f"dataset.root={root}")
    device = find_device("auto")
    batches = prepare(config, device, torch.float32).batches

    def endless() -> Iterator:
        epoch = 0
        while True:
            yield from batches.epoch(epoch)
            epoch += 1

    ours = endless()
    candidates = {"deepnets": lambda: rate(ours, config.batch_size, iterations, device)}
    for workers in (0, 2):
        plain = plain_loader(config, workers)
        candidates[f"torchvision, {workers} workers"] = lambda plain=plain: rate(
            plain, config.batch_size, iterations, torch.device("cpu")
        )
    return in_turns(candidates, repeats)


def bench_startup(root: str, repeats: int, iterations: int) -> Measurement:
    """Seconds from the command to the first optimiser step being on disk, and of --help, beside an empty Python."""

    def first_step() -> float:
        with tempfile.TemporaryDirectory() as outputs:
            overrides = ["model=resnet20", "dataset=cifar10", f"dataset.root={root}", f"output_root={outputs}"]
            command = [sys.executable, str(REPOSITORY / "scripts/train.py"), *overrides, "checkpoint_seconds=0"]
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not list(Path(outputs).glob("runs/*/*/checkpoint.pt")):
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} before its first step")
                time.sleep(0.01)
            seconds = time.perf_counter() - started
            process.kill()
            process.wait()
            return seconds

    def seconds_of(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started

    return in_turns(
        {
            "first optimiser step": first_step,
            "--help": lambda: seconds_of(str(REPOSITORY / "scripts/train.py"), "--help"),
            "import torch": lambda: seconds_of("-c", "import torch"),
            "empty Python": lambda: seconds_of("-c", "pass"),
        },
        repeats,
    )


BENCHES = {"training": bench_training, "data": bench_data, "startup": bench_startup}


def report(results: Measurement, unit: str) -> dict[str, dict[str, float]]:
    """Print the table; returns medians, ranges and the first candidate's ratio to each."""
    first = next(iter(results))
    table = Table("", f"median {unit}", "range", f"{first} is ... times this", box=None)
    summary = {}
    for name, values in results.items():
        ratio = statistics.median(a / b for a, b in zip(results[first], values, strict=True))
        summary[name] = {"median": statistics.median(values), "low": min(values), "high": max(values), "ratio": ratio}
        low, middle, high = (f"{summary[name][key]:,.4g}" for key in ("low", "median", "high"))
        table.add_row(name, middle, f"{low} to {high}", f"{ratio:.2f}")
    Console(width=110).print(table)
    return summary


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=BENCHES)
    parser.add_argument("--root", required=True, help="folder with CIFAR-10")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=40, help="iterations a repeat")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    results = BENCHES[arguments.what](arguments.root, arguments.repeats, arguments.iterations)
    print(f"{describe(find_device('auto'))}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    summary = report(results, "seconds" if arguments.what == "startup" else "images/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_command(main)
