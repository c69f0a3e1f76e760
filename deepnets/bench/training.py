"""Images/s of the training part of an epoch, against its own arithmetic alone and against other ways to train.

deepnets (fit) makes batches and sums; with its log it is what scripts/train.py does. The floor does the same forward,
backward and optimiser steps on one batch that stays where it is. The plain script is the usual one for CIFAR. timm and
Lightning train the same network on the same batches and augmentation where they are installed; --peer FILE adds
another (its interface is Task in deepnets/bench/task.py).

All share the process, so on a CPU the peers too gain from freed memory being kept (`keep_freed_memory`), which they
would not do of themselves.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnets.bench import floor
from deepnets.bench.figures import SETTLE_SECONDS, Candidates, Figures, in_turns, seconds_of
from deepnets.bench.peers import plain
from deepnets.bench.subject import Subject, add_subject, chosen
from deepnets.bench.task import Task, arithmetic, bundled, given, task_of
from deepnets.command import count, some_of, whole
from deepnets.data.batches import TrainingBatches
from deepnets.run import build_model
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import Log
from deepnets.training.assembly import dataset_of
from deepnets.training.fit import Training, fit

PEERS = ("plain", "timm", "lightning")
ENDLESS = 10**9  # iterations: the bench ends it


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")
    parser.add_argument("--iterations", type=count, default=40, help="iterations a repeat (default: 40)")
    peers = ",".join(PEERS)
    parser.add_argument("--peers", type=some_of([*PEERS, "none"]), default=peers, help=f"some of {peers}, or none")
    parser.add_argument("--peer", type=Path, action="append", default=[], metavar="FILE", help="another peer")
    parser.add_argument("--workers", type=whole, default=2, help="processes of the peers' loaders (default: 2)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train by turns."""
    subject, iterations = chosen(arguments), arguments.iterations
    images = iterations * subject.config.batch_size

    def rate(seconds: Callable[[int], float]) -> float:
        return images / seconds(iterations)

    with ExitStack() as held:
        candidates = _own(subject, iterations, held)
        peers, absent = _peers(arguments, subject)
        candidates |= {name: partial(rate, seconds) for name, seconds in peers.items()}
        best, notes = floor.at_best(subject)
        values = in_turns(candidates | best, arguments.repeats, SETTLE_SECONDS if peers and arguments.workers else 0)
    notes = [f"where no arithmetic is named: {arithmetic(subject.precision, torch.channels_last)}", *notes]
    title = f"training {arguments.model}, batches of {subject.config.batch_size}"
    return [Figures(title, "images/s", values, absent, notes)]


def endless(training: Training) -> Iterator[Training]:
    """An optimiser step of `fit` at a time, epoch after epoch, without the evaluations between them."""
    training.evaluated.clear()
    training.iterations, done = ENDLESS, training.iteration
    for state in fit(training):
        if state.iteration > done:
            done = state.iteration
            yield state


def _own(subject: Subject, iterations: int, held: ExitStack) -> Candidates:
    images = iterations * subject.config.batch_size
    bare, logged = endless(subject.training()), _logged(subject, held)
    least = floor.arithmetic(subject.training())

    def rate(steps: Iterator) -> float:
        return images / seconds_of(steps, iterations, subject.device)

    trained = {"deepnets": bare, "deepnets with its log": logged, "floor": least}
    return {name: partial(rate, steps) for name, steps in trained.items()}


def _logged(subject: Subject, held: ExitStack) -> Iterator[Training]:
    training, folder = subject.training(), RunFolder(held.enter_context(tempfile.TemporaryDirectory()))
    log = held.enter_context(Log(folder, training, subject.config, [], [], 0.0))
    for state in endless(training):
        log.iteration(state)
        yield state


def _peers(arguments: argparse.Namespace, subject: Subject) -> tuple[dict[str, Callable[[int], float]], dict[str, str]]:
    """What `prepare` of each peer returns, by the peer's name; and why the others are absent."""
    dataset, batches = dataset_of(subject.config), subject.training().batches
    assert isinstance(batches, TrainingBatches), "dataset= names images that lie on the device"
    task = task_of(subject, batches.split, dataset.pad, dataset.flip, arguments.workers)

    def another(**changes: Any) -> Task:
        return replace(task, model=build_model(list(subject.overrides)), **changes)

    peers, absent = {}, {}
    if "plain" in arguments.peers:
        as_usual = another(precision=torch.float32, layout=torch.contiguous_format)
        for one in (as_usual, another()):
            for workers in dict.fromkeys((0, arguments.workers)):
                name = f"plain script, {arithmetic(one.precision, one.layout)}, {workers} workers"
                peers[name] = plain.prepare(replace(one, model=another().model, workers=workers))
    for name in ("timm", "lightning"):
        if name in arguments.peers:
            try:
                peers[f"{name}, {arguments.workers} workers"] = bundled(name).prepare(another())
            except ModuleNotFoundError as missing:
                absent[name] = str(missing)
    return peers | {path.stem: given(path).prepare(another()) for path in arguments.peer}, absent
