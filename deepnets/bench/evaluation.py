"""`bench.py evaluation` measures the speed of the evaluation at the end of an epoch."""

import argparse
import time
from dataclasses import replace
from functools import partial

import torch

from deepnets.bench.comparison import SETTLE_SECONDS, Candidates, Comparison, add_run_options, chosen_run, in_turns
from deepnets.bench.peers import Task, arithmetic_name, plain_loader, plain_normalization, task_of
from deepnets.command import count, counts, whole
from deepnets.data.batches import EvaluationBatches
from deepnets.data.normalization import Normalization
from deepnets.data.source import Split
from deepnets.run import build_model
from deepnets.training.assembly import dataset_of, splits_of
from deepnets.training.fit import Sums, Training, evaluate

SIZES = "100,250,1000,2500,5000"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py evaluation`."""
    add_run_options(parser, "resnet20")
    parser.add_argument(
        "--sizes", type=counts, default=SIZES, help=f"batch sizes, besides evaluation_batch_size (default: {SIZES})"
    )
    parser.add_argument("--images", type=count, help="images of the test set (default: all)")
    parser.add_argument("--workers", type=whole, default=2, help="processes of the plain loop's loader (default: 2)")


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Measure how fast the test set is evaluated after an epoch, with each batch size and by the usual plain loop."""
    run = chosen_run(arguments)
    splits = splits_of(dataset_of(run.config), run.device)
    images = min(arguments.images or len(splits.test), len(splits.test))
    test = splits.test.select(torch.arange(images, device=run.device))
    training, default = run.training(), run.config.evaluation_batch_size

    def in_batches_of(size: int) -> float:
        return images / _seconds(training, test, splits.normalization, size)

    sizes = dict.fromkeys((default, *arguments.sizes))
    candidates: Candidates = {f"batches of {size}": partial(in_batches_of, size) for size in sizes}
    task = replace(task_of(run, test, 0, False, arguments.workers), batch_size=default)
    as_usual = replace(
        task, model=build_model(list(run.overrides)), precision=torch.float32, layout=torch.contiguous_format
    )

    def plainly(loop: _PlainLoop) -> float:
        return images / loop.seconds()

    for loop in (_PlainLoop(as_usual), _PlainLoop(task)):
        name = f"plain loop, batches of {default}, {arithmetic_name(loop.task.precision, loop.task.layout)}"
        candidates[name] = partial(plainly, loop)
    title = f"evaluation of {arguments.model}, {images} images"
    values = in_turns(candidates, arguments.repeats, SETTLE_SECONDS if arguments.workers else 0)
    return [Comparison(title, "images/s", values)]


def _seconds(training: Training, test: Split, normalization: Normalization, size: int) -> float:
    """Evaluate a split as `fit` does at the end of an epoch; return the seconds."""
    started, sums = time.perf_counter(), Sums(training.device)
    batches = EvaluationBatches(test, normalization, batch_size=size)
    for _ in evaluate(training.model, batches, sums, training.precision):
        pass
    sums.mean()
    return time.perf_counter() - started


class _PlainLoop:
    """Reads batches from torch's DataLoader and counts the correct predictions of each, as the usual script does."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = task.model.to(task.device).to(memory_format=task.layout).eval()
        self.loader = plain_loader(task, plain_normalization(task), trains=False)

    def seconds(self) -> float:
        """Make one pass over the test set; return the seconds."""
        device, right, started = self.task.device, 0, time.perf_counter()
        enabled = self.task.precision == torch.bfloat16
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            for images, labels in self.loader:
                logits = self.model(images.to(device, memory_format=self.task.layout))
                right += (logits.argmax(1) == labels.to(device)).sum().item()
        return time.perf_counter() - started
