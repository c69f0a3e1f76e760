"""Measure deepnets on this machine: `python scripts/bench.py training|data|startup|logging|grid|lesion --root DIR`.

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
from functools import partial
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from deepnets.analysis import lesion
from deepnets.analysis.settling import settle
from deepnets.analysis.walk import walk_of
from deepnets.assembly import dataset_of, prepare, splits_of
from deepnets.command import run_command
from deepnets.config import CONF, REPOSITORY, Config, register, typed
from deepnets.data.batches import EvaluationBatches
from deepnets.fit import fit
from deepnets.folder import RunFolder
from deepnets.hardware import choose_precision, describe, find_device
from deepnets.log import Log
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


def bench_logging(root: str, repeats: int, iterations: int) -> Measurement:
    """Seconds an epoch of training, and what the log of a gated ResNet-20 adds, in an execution of `repeats` epochs.

    The worst case: a short epoch of noise of CIFAR-10's shape (its own has 391 iterations), each observed, gates too.
    """
    size = [
        f"dataset.source.train={128 * iterations}",
        f"dataset.source.test={25 * iterations}",
        f"epochs={repeats + 1}",
    ]
    config = configuration("model=resnet20", "model/shortcut=exclusive_gating_b6", "dataset=synthetic", *size)
    device = find_device("auto")
    training = prepare(config, device, choose_precision(config.precision, device))
    results: Measurement = {"logging": [], "training": []}
    logged = 0.0
    with tempfile.TemporaryDirectory() as outputs, Log(RunFolder(outputs), training, config, [], [], 0.0) as log:
        begun = time.perf_counter()
        for state in fit(training):
            started = time.perf_counter()
            log.iteration(state)
            if state.completed:
                log.epoch(state)
            now = time.perf_counter()
            logged += now - started
            if state.completed:
                results["logging"].append(logged)
                results["training"].append(now - begun - logged)
                logged, begun = 0.0, now
    return {name: seconds[1:] for name, seconds in results.items()}  # the first epoch warms up


def bench_grid(root: str, repeats: int, iterations: int) -> Measurement:
    """Seconds a row of a grid of 200 tiny rows on digits takes beyond its training, start and composition included."""
    rows = 200
    results: Measurement = {"beyond training": [], "training": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as outputs:
            size = ["model.depth=8", "model.widths=[2,2,2]", "epochs=null", f"iterations={iterations}"]
            grid = ["-m", *size, f"seed=range({rows})", f"output_root={outputs}"]
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, str(REPOSITORY / "scripts/train.py"), *grid], check=True, stdout=subprocess.DEVNULL
            )
            seconds = time.perf_counter() - started
            folders = [RunFolder(path.parent) for path in Path(outputs).glob("runs/*/*/result.json")]
            training = sum(folder.result["seconds"] for folder in folders)
        results["beyond training"].append((seconds - training) / rows)
        results["training"].append(training / rows)
    return results


def bench_lesion(root: str, repeats: int, iterations: int) -> Measurement:
    """Images/s through pre-activation ResNet-110 with one unit deleted, over all 54 deletions.

    With shared beginnings by batches of 64, which fit the cache, against an evaluation for each by batches of 500 as in
    training; in the arithmetic of training's evaluation, and in float32. `iterations` images; raises RuntimeError where
    an error differs.
    """
    overrides = ["model=preact110", "dataset=cifar10", f"dataset.root={root}"]
    config, device = configuration(*overrides), find_device("auto")
    model = build_model(overrides).eval().to(device, memory_format=torch.channels_last)
    splits, walk = splits_of(dataset_of(config), device), walk_of(model)
    variants = [lesion.with_deleted(walk, [unit]) for unit in range(len(walk))]
    middle = variants[len(variants) // 2]
    whole = config.evaluation_batch_size

    def batches(images: int, size: int) -> EvaluationBatches:
        first = splits.test.select(torch.arange(images, device=device))
        return EvaluationBatches(first, splits.normalization, batch_size=size)

    settle(model, next(iter(batches(whole, whole)))[0])

    def speed(images: int, size: int, chosen: list[lesion.Variant], precision: torch.dtype) -> float:
        data, started = batches(images, size), time.perf_counter()
        lesion.scores(walk, data, chosen, precision)
        return images * len(chosen) / (time.perf_counter() - started)

    candidates = {}
    for precision in dict.fromkeys((choose_precision(config.precision, device), torch.float32)):
        alone = [
            lesion.scores(walk, batches(iterations, iterations), [variant], precision).error[0]
            for variant in variants[::9]
        ]
        if alone != lesion.scores(walk, batches(iterations, 16), variants, precision).error[::9].tolist():
            raise RuntimeError("shared beginnings score other than evaluations one by one")
        name = str(precision).removeprefix("torch.")
        candidates |= {
            f"shared beginnings, {name}": partial(speed, iterations, 64, variants, precision),
            f"one by one, {name}": partial(speed, whole, whole, [middle], precision),
        }
    return in_turns(candidates, repeats)


BENCHES = {
    "training": bench_training,
    "data": bench_data,
    "startup": bench_startup,
    "logging": bench_logging,
    "grid": bench_grid,
    "lesion": bench_lesion,
}
SECONDS = ("startup", "logging", "grid")  # what is measured in seconds; all else in images/s


def report(results: Measurement, unit: str) -> dict[str, dict[str, float]]:
    """Print the table; returns medians, ranges and the first candidate's ratio to each."""
    first = next(iter(results))
    table = Table("", f"median {unit}", "range", f"{first} is ... times this", box=None)
    summary = {}
    for name, values in results.items():
        ratio = statistics.median(a / b for a, b in zip(results[first], values, strict=True))
        summary[name] = {"median": statistics.median(values), "low": min(values), "high": max(values), "ratio": ratio}
        low, middle, high = (f"{summary[name][key]:,.4g}" for key in ("low", "median", "high"))
        table.add_row(name, middle, f"{low} to {high}", f"{ratio:.3g}")
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
    summary = report(results, "seconds" if arguments.what in SECONDS else "images/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_command(main)
