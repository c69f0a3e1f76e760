"""`bench.py training` compares training with its bare arithmetic and with other ways to train the same network."""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import conv2d, cross_entropy, linear

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
from deepnets.bench.peers import Task, arithmetic_name, peer_in, prepare_lightning, prepare_plain, prepare_timm, task_of
from deepnets.command import count, some_of, whole
from deepnets.config.schema import Precision
from deepnets.data.batches import TrainingBatches
from deepnets.run import build_model
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import Log
from deepnets.system.settings import Memory
from deepnets.training.assembly import dataset_of
from deepnets.training.fit import Training, fit
from deepnets.training.hardware import choose_precision, wait

PEERS = ("plain", "compiled", "timm", "lightning")
ENDLESS = 10**9  # iterations, more than any bench takes
TRIED = 4  # timed iterations of each form of the plain script, after as many to warm up
# The size of the tensor to copy: far larger than any cache.
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
    """Measure images/s of the training part of an epoch, against its bare arithmetic and against other ways to train.

    deepnets (fit) also makes the batches and computes metrics; with its log it does the same as scripts/train.py. The
    floor does the same forward, backward and optimiser steps on one batch that stays on the device. The plain script is
    the usual one for CIFAR. Its arithmetics, memory layouts and ways to feed it are tried beforehand, and the fastest
    form is compared too, as it is and compiled. If timm and Lightning are installed, they train the same network on the
    same batches and augmentation; --peer FILE adds another peer (its interface is Task in deepnets/bench/peers.py). Two
    bounds follow the peers: the network's convolutions alone, and the bytes that an iteration must move.

    All candidates share one process, so on a CPU the peers also profit from deepnets' call of `keep_freed_memory`.
    """
    run, iterations = chosen_run(arguments), arguments.iterations
    images = iterations * run.config.batch_size

    def rate(seconds: Callable[[int], float]) -> float:
        return images / seconds(iterations)

    with ExitStack() as open_logs:
        candidates = _deepnets(run, iterations, open_logs)
        peers, absent, tried = _peers(arguments, run)
        candidates |= {name: partial(rate, seconds) for name, seconds in peers.items()}
        best, notes = _bounds(run)
        values = in_turns(candidates | best, arguments.repeats, SETTLE_SECONDS if peers and arguments.workers else 0)
    notes = [f"where no arithmetic is named: {arithmetic_name(run.precision, torch.channels_last)}", *notes, *tried]
    title = f"training {arguments.model}, batches of {run.config.batch_size}"
    return [Comparison(title, "images/s", values, absent, notes)]


def endless(training: Training) -> Iterator[Training]:
    """Yield after each optimiser step of `fit`, epoch after epoch, without the evaluations between them."""
    training.evaluated.clear()
    training.iterations, done = ENDLESS, training.iteration
    for state in fit(training):
        if state.iteration > done:
            done = state.iteration
            yield state


def floor_steps(training: Training) -> Iterator[None]:
    """Take endless optimiser steps on one batch on the device, without data pipeline, metrics, schedule or log."""
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
    """Count the bytes that one iteration must move: 2 S + 24 P.

    S is all that autograd keeps of a batch with memory=full: the forward pass writes it, the backward pass reads it. P
    is the number of parameters, 4 bytes each: gradients are written and read, weights and momentum read and written.
    Gradients of activations and second reads are left out, because a perfect fusion of layers could avoid them.
    """
    training = replace(run, config=replace(run.config, memory=Memory.full)).training()
    images, _ = next(iter(training.batches.epoch(0)))
    group = min(len(images) // 2, run.config.model.get("batchnorm_images") or 2)
    one, two = (kept_bytes(training, images[: n * group]) for n in (1, 2))
    per_image = (two - one) / group  # without bytes that do not grow with the batch (bfloat16 weights)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    return round(2 * per_image * run.config.batch_size + 24 * parameters)


def kept_bytes(training: Training, images: Tensor) -> int:
    """Count the bytes that autograd keeps from a forward pass for the backward pass, without parameters."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in training.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training.model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = _forward(training, images)  # holds the graph, so that no memory is reused before all is counted
    del logits
    return sum(kept.values())


def _deepnets(run: BenchRun, iterations: int, open_logs: ExitStack) -> Candidates:
    """Prepare training by `fit` without and with its log, and the floor."""
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


def _peers(
    arguments: argparse.Namespace, run: BenchRun
) -> tuple[dict[str, Callable[[int], float]], dict[str, str], list[str]]:
    """Prepare the peers; return them by name, a reason for each absent one, and notes on the plain script's forms."""
    dataset, batches = dataset_of(run.config), run.training().batches
    assert isinstance(batches, TrainingBatches), "dataset= names images that lie on the device"
    task = task_of(run, batches.split, dataset.pad, dataset.flip, arguments.workers)

    def another(**changes: Any) -> Task:
        return replace(task, model=build_model(list(run.overrides)), **changes)

    peers: dict[str, Callable[[int], float]] = {}
    absent: dict[str, str] = {}
    tried: list[str] = []
    if "plain" in arguments.peers:
        usual = {"precision": torch.float32, "layout": torch.contiguous_format}
        for workers in dict.fromkeys((0, arguments.workers)):
            name = f"plain script, float32 NCHW, {workers} workers"
            peers[name] = prepare_plain(another(**usual, workers=workers))
        with Console(stderr=True).status("trying forms of the plain script", refresh_per_second=1):
            best, absent, tried = _best_plain(another, run, is_compiled="compiled" in arguments.peers)
        peers |= best
    for name, prepare in (("timm", prepare_timm), ("lightning", prepare_lightning)):
        if name in arguments.peers:
            try:
                peers[f"{name}, {arguments.workers} workers"] = prepare(another())
            except ModuleNotFoundError as missing:
                absent[name] = str(missing)
    return peers | {path.stem: peer_in(path).prepare(another()) for path in arguments.peer}, absent, tried


def _best_plain(
    another: Callable[..., Task], run: BenchRun, *, is_compiled: bool
) -> tuple[dict[str, Callable[[int], float]], dict[str, str], list[str]]:
    """Try all forms of the plain script; return the fastest one, as it is and compiled.

    Also return the reason if it cannot be compiled, and a note with the speeds of all forms.
    """
    speeds: dict[tuple[torch.dtype, torch.memory_format, int | None], float] = {}
    workers = another().workers
    for precision in dict.fromkeys((torch.float32, choose_precision(Precision.auto, run.device))):
        for layout in (torch.contiguous_format, torch.channels_last):
            for feed in dict.fromkeys((0, workers, None)):
                changes: dict[str, Any] = {"precision": precision, "layout": layout, "workers": feed or 0}
                train = prepare_plain(another(**changes), as_tensor=feed is None)
                train(TRIED)
                speeds[precision, layout, feed] = TRIED * run.config.batch_size / train(TRIED)
    fastest = max(speeds, key=speeds.__getitem__)
    names = {form: f"{arithmetic_name(*form[:2])}, {_fed(form[2])}" for form in speeds}
    chosen: dict[str, Any] = dict(zip(("precision", "layout", "workers"), (*fastest[:2], fastest[2] or 0), strict=True))
    name = f"best plain script: {names[fastest]}"
    peers = {name: prepare_plain(another(**chosen), as_tensor=fastest[2] is None)}
    absent = {}
    if is_compiled:
        compiled = prepare_plain(another(**chosen), as_tensor=fastest[2] is None, compiled=True)
        try:
            compiled(1)
            peers[f"{name}, compiled"] = compiled
        except RuntimeError as error:  # no compiler on this machine
            absent[f"{name}, compiled"] = str(error).strip().splitlines()[0]
    tried = "; ".join(f"{names[form]} {speed:,.0f}" for form, speed in speeds.items())
    return peers, absent, [f"forms of the plain script, tried once for {TRIED} iterations, images/s: {tried}"]


def _fed(workers: int | None) -> str:
    return "data as one tensor" if workers is None else f"{workers} workers"


def _bounds(run: BenchRun) -> tuple[Candidates, list[str]]:
    """Prepare two bounds on images/s, from the device's present speed: for convolutions alone, and for moving bytes."""
    layers, moved, batch = _layers(run), bytes_of(run), run.config.batch_size
    candidates: Candidates = {
        "convolutions alone": lambda: batch / sum(_seconds_of_layer(layer, run) * layers[layer] for layer in layers),
        "byte floor": lambda: _copy_rate(run.device) / moved * batch,
    }
    notes = [
        f"convolutions alone: the {layers.total()} convolutions and linear layers, forward and backward, each in the "
        "faster memory layout",
        f"byte floor: an iteration moves {moved / 1e6:,.1f} MB (2 S + 24 P: it writes and reads activations for the "
        "backward pass, weights, gradients and momentum) at the rate of a large copy, which caches may exceed",
    ]
    return candidates, notes


class _Layer(NamedTuple):
    """The settings on which the time of a convolution or linear layer depends, such as the shape of its input."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    groups: int
    is_first: bool  # its input needs no gradient


def _layers(run: BenchRun) -> Counter[_Layer]:
    """Count the network's convolutions and linear layers on a batch, by their settings."""
    training, layers = run.training(), Counter[_Layer]()
    images, _ = next(iter(training.batches.epoch(0)))

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        how = (module.stride, module.padding, module.groups) if isinstance(module, nn.Conv2d) else ((), (), 1)
        weight = module.get_parameter("weight")
        layers[_Layer(tuple(inputs[0].shape), tuple(weight.shape), *how, not layers)] += 1

    for module in training.model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        _forward(training, images)
    return layers


def _seconds_of_layer(layer: _Layer, run: BenchRun) -> float:
    """Measure the seconds of a layer's forward and backward pass in its faster memory layout."""
    is_convolution = len(layer.weight) == 4
    layouts = (torch.contiguous_format, torch.channels_last) if is_convolution else (torch.contiguous_format,)
    return min(_seconds_in(layer, layout, run) for layout in layouts)


def _seconds_in(layer: _Layer, layout: torch.memory_format, run: BenchRun) -> float:
    def made(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=run.device, dtype=run.precision).to(memory_format=layout)

    x, weight = made(layer.input).requires_grad_(not layer.is_first), made(layer.weight).requires_grad_()

    def output() -> Tensor:
        if len(layer.weight) == 2:
            return linear(x, weight)
        return conv2d(x, weight, stride=layer.stride, padding=layer.padding, groups=layer.groups)

    gradient = torch.ones_like(output())
    needed = [weight] if layer.is_first else [x, weight]
    return _seconds(lambda: torch.autograd.grad(output(), needed, gradient), run.device)


def _copy_rate(device: torch.device) -> float:
    """Measure the bytes/s of a large copy; bytes read and bytes written both count."""
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """Call `act` once to warm up, then four times; return the mean seconds of the four calls."""
    act()
    wait(device)
    started = time.perf_counter()
    for _ in range(4):
        act()
    wait(device)
    return (time.perf_counter() - started) / 4


def _forward(training: Training, images: Tensor) -> Tensor:
    """Compute the logits in the run's arithmetic."""
    enabled = training.precision == torch.bfloat16
    with torch.autocast(training.device.type, torch.bfloat16, enabled=enabled):
        return training.model(images)
