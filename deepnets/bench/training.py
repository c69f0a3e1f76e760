"""`bench.py training`: images/s of training beside its floor and beside other ways to train the same network."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from deepnets.bench.comparison import (
    SETTLE_SECONDS,
    BenchRun,
    Candidates,
    Comparison,
    add_run_options,
    chosen_run,
    in_turns,
    seconds_of,
)
from deepnets.bench.peers import Task, arithmetic_name, bundled_peer, peer_in, plain, task_of
from deepnets.command import count, some_of, whole
from deepnets.data.batches import TrainingBatches
from deepnets.models.settings import Memory
from deepnets.run import build_model
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import Log
from deepnets.training.assembly import dataset_of
from deepnets.training.fit import Training, fit
from deepnets.training.hardware import wait
from deepnets.training.size import size_of

PEERS = ("plain", "timm", "lightning")
ENDLESS = 10**9  # iterations: the bench ends the training
# The size of the square matrices that are multiplied and of the tensor that is copied: far larger than any cache.
MATRIX = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench.py training`."""
    add_run_options(parser, "resnet20")
    parser.add_argument("--iterations", type=count, default=40, help="iterations a repeat (default: 40)")
    peers = ",".join(PEERS)
    parser.add_argument("--peers", type=some_of([*PEERS, "none"]), default=peers, help=f"some of {peers}, or none")
    parser.add_argument("--peer", type=Path, action="append", default=[], metavar="FILE", help="another peer")
    parser.add_argument("--workers", type=whole, default=2, help="processes of the peers' loaders (default: 2)")


def measure(arguments: argparse.Namespace) -> list[Comparison]:
    """Images/s of the training part of an epoch, against its own arithmetic alone and against other ways to train.

    deepnets (fit) makes batches and sums; with its log it is what scripts/train.py does. The floor does the same
    forward, backward and optimiser steps on one batch that stays where it is. The plain script is the usual one for
    CIFAR. timm and Lightning train the same network on the same batches and augmentation where they are installed;
    --peer FILE adds another (its interface is Task in deepnets/bench/peers/__init__.py).

    All share the process, so on a CPU the peers too gain from freed memory being kept (`keep_freed_memory`), which they
    would not do of themselves.
    """
    run, iterations = chosen_run(arguments), arguments.iterations
    images = iterations * run.config.batch_size

    def rate(seconds: Callable[[int], float]) -> float:
        return images / seconds(iterations)

    with ExitStack() as open_logs:
        candidates = _deepnets(run, iterations, open_logs)
        peers, absent = _peers(arguments, run)
        candidates |= {name: partial(rate, seconds) for name, seconds in peers.items()}
        best, notes = _at_best(run)
        values = in_turns(candidates | best, arguments.repeats, SETTLE_SECONDS if peers and arguments.workers else 0)
    notes = [f"where no arithmetic is named: {arithmetic_name(run.precision, torch.channels_last)}", *notes]
    title = f"training {arguments.model}, batches of {run.config.batch_size}"
    return [Comparison(title, "images/s", values, absent, notes)]


def endless(training: Training) -> Iterator[Training]:
    """The optimiser steps of `fit`, one at a time, epoch after epoch, without the evaluations between them."""
    training.evaluated.clear()
    training.iterations, done = ENDLESS, training.iteration
    for state in fit(training):
        if state.iteration > done:
            done = state.iteration
            yield state


def floor_steps(training: Training) -> Iterator[None]:
    """Endless optimiser steps on one batch that stays on the device: no data pipeline, no sums, no schedule, no log."""
    images, labels = next(iter(training.batches.epoch(0)))
    training.model.train()
    while True:
        logits = _forward(training, images)
        loss = cross_entropy(logits.float(), labels)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        yield


def bytes_of(run: BenchRun) -> int:
    """The bytes that one iteration must move: 2 S + 24 P.

    S is what autograd keeps of a batch with memory=full: the forward pass writes it and the backward pass reads it. P
    is the number of parameters, 4 bytes each: gradients are written and read, weights and momentum read and written.
    Gradients of activations and second reads are left out, because a perfect fusion of layers could avoid them.
    """
    training = replace(run, config=replace(run.config, memory=Memory.full)).training()
    images, _ = next(iter(training.batches.epoch(0)))
    group = min(len(images) // 2, run.config.model.get("batchnorm_images") or 2)
    one, two = (kept_bytes(training, images[: n * group]) for n in (1, 2))
    each = (two - one) / group  # what does not grow with the batch (bfloat16 copies of weights) drops out
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    return round(2 * each * run.config.batch_size + 24 * parameters)


def kept_bytes(training: Training, images: Tensor) -> int:
    """The bytes that autograd keeps of a forward pass for the backward pass; parameters do not count."""
    own = {parameter.untyped_storage().data_ptr() for parameter in training.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training.model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = _forward(training, images)  # alive until all is counted, or memory would be given out twice
    del logits
    return sum(kept.values())


def _deepnets(run: BenchRun, iterations: int, open_logs: ExitStack) -> Candidates:
    """Training by `fit` without and with its log, and the floor."""
    images = iterations * run.config.batch_size
    bare, logged, floor = endless(run.training()), _logged(run, open_logs), floor_steps(run.training())

    def rate(steps: Iterator) -> float:
        return images / seconds_of(steps, iterations, run.device)

    trained = {"deepnets": bare, "deepnets with its log": logged, "floor": floor}
    return {name: partial(rate, steps) for name, steps in trained.items()}


def _logged(run: BenchRun, open_logs: ExitStack) -> Iterator[Training]:
    training, folder = run.training(), RunFolder(open_logs.enter_context(tempfile.TemporaryDirectory()))
    log = open_logs.enter_context(Log(folder, training, run.config, [], [], 0.0))
    for state in endless(training):
        log.iteration(state)
        yield state


def _peers(arguments: argparse.Namespace, run: BenchRun) -> tuple[dict[str, Callable[[int], float]], dict[str, str]]:
    """Prepare the peers; returns each by its name, and for the others why they are absent."""
    dataset, batches = dataset_of(run.config), run.training().batches
    assert isinstance(batches, TrainingBatches), "dataset= names images that lie on the device"
    task = task_of(run, batches.split, dataset.pad, dataset.flip, arguments.workers)

    def another(**changes: Any) -> Task:
        return replace(task, model=build_model(list(run.overrides)), **changes)

    peers, absent = {}, {}
    if "plain" in arguments.peers:
        as_usual = another(precision=torch.float32, layout=torch.contiguous_format)
        for one in (as_usual, another()):
            for workers in dict.fromkeys((0, arguments.workers)):
                name = f"plain script, {arithmetic_name(one.precision, one.layout)}, {workers} workers"
                peers[name] = plain.prepare(replace(one, model=another().model, workers=workers))
    for name in ("timm", "lightning"):
        if name in arguments.peers:
            try:
                peers[f"{name}, {arguments.workers} workers"] = bundled_peer(name).prepare(another())
            except ModuleNotFoundError as missing:
                absent[name] = str(missing)
    return peers | {path.stem: peer_in(path).prepare(another()) for path in arguments.peer}, absent


def _at_best(run: BenchRun) -> tuple[Candidates, list[str]]:
    """Images/s if only multiply-adds counted, and if only bytes did, at the rates that this device reaches just now.

    A multiply-add of the forward pass is 6 FLOP of training: 2 each forward, backward to the inputs and to the weights.
    """
    flops, moved = 2 * 3 * size_of(run.config, dataset_of(run.config)).macs, bytes_of(run)
    batch = run.config.batch_size
    candidates: Candidates = {
        "FLOP floor": lambda: _matmul_rate(run.device, run.precision) / flops,
        "byte floor": lambda: _copy_rate(run.device) / moved * batch,
    }
    notes = [
        f"FLOP floor: {flops / 1e6:,.1f} MFLOP an image (6 a multiply-add) at the rate of a large matmul",
        f"byte floor: {moved / 1e6:,.1f} MB an iteration (2 S + 24 P: activations kept for the backward pass written "
        "and read; weights, gradients and momentum) at the rate of a large copy, which caches may exceed",
    ]
    return candidates, notes


def _matmul_rate(device: torch.device, precision: torch.dtype) -> float:
    """The FLOP/s of a large product of matrices."""
    n = MATRIX[device.type]
    a, b = (torch.randn(n, n, device=device).to(precision) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device)


def _copy_rate(device: torch.device) -> float:
    """The bytes/s of a large copy; bytes read and bytes written both count."""
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """The seconds of one `act`: the mean of several after a first."""
    act()
    wait(device)
    started = time.perf_counter()
    for _ in range(4):
        act()
    wait(device)
    return (time.perf_counter() - started) / 4


def _forward(training: Training, images: Tensor) -> Tensor:
    """The logits, computed in the run's arithmetic."""
    enabled = training.precision == torch.bfloat16
    with torch.autocast(training.device.type, torch.bfloat16, enabled=enabled):
        return training.model(images)
