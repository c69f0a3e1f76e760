"""Images/s of the training part of an epoch, against its own arithmetic alone and against other ways to train.

deepnets (fit) makes batches and sums; with its log it is what scripts/train.py does. The floor does the same forward,
backward and optimiser steps on one batch that stays where it is. The plain script is the usual one for CIFAR. timm and
Lightning train the same network on the same batches and augmentation where they are installed; --peer FILE adds
another (its interface is Task in scripts/benches/task.py).
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from benches import floor
from benches.figures import Figures
from benches.subject import Subject, add_subject, chosen
from benches.task import Task, bundled, given, task_of
from benches.turns import SETTLE_SECONDS, Candidates, in_turns, seconds_of

from deepnets.assembly import dataset_of
from deepnets.errors import UserError
from deepnets.fit import Training, fit
from deepnets.folder import RunFolder
from deepnets.log import Log
from deepnets.run import build_model

PEERS = ("plain", "timm", "lightning")
ENDLESS = 10**9  # iterations: the bench ends it


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    add_subject(parser, "resnet20")
    parser.add_argument("--iterations", type=int, default=40, help="iterations a repeat (default: 40)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {','.join(PEERS)}, or none (default: all)")
    parser.add_argument("--peer", type=Path, action="append", default=[], metavar="FILE", help="another peer")
    parser.add_argument("--workers", type=int, default=2, help="processes of the peers' loaders (default: 2)")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Train by turns."""
    subject, iterations = chosen(arguments), arguments.iterations
    images = iterations * subject.config.batch_size
    with ExitStack() as held:
        candidates = _own(subject, iterations, held)
        tasks, absent = _peers(arguments, subject)
        for name, (prepare, task) in tasks.items():
            train = prepare(task)
            candidates[name] = lambda train=train: images / train(iterations)
        best, notes = floor.at_best(subject)
        values = in_turns(candidates | best, arguments.repeats, SETTLE_SECONDS if tasks and arguments.workers else 0)
    precision = _told(subject.precision)
    notes = [f"deepnets, its floor, timm and lightning train in {precision}, channels_last", *notes]
    return [
        Figures(
            f"training {arguments.model}, batches of {subject.config.batch_size}", "images/s", values, absent, notes
        )
    ]


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
    return {
        name: lambda steps=steps: images / seconds_of(steps, iterations, subject.device)
        for name, steps in {"deepnets": bare, "deepnets with its log": logged, "floor": least}.items()
    }


def _logged(subject: Subject, held: ExitStack) -> Iterator[Training]:
    training, folder = subject.training(), RunFolder(held.enter_context(tempfile.TemporaryDirectory()))
    log = held.enter_context(Log(folder, training, subject.config, [], [], 0.0))
    for state in endless(training):
        log.iteration(state)
        yield state


def _peers(
    arguments: argparse.Namespace, subject: Subject
) -> tuple[dict[str, tuple[Callable[[Task], Callable[[int], float]], Task]], dict[str, str]]:
    """By name what is to be trained by what; and why the others are absent."""
    names = [] if arguments.peers == "none" else arguments.peers.split(",")
    if unknown := sorted(set(names) - set(PEERS)):
        raise UserError(
            f"--peers {','.join(unknown)}: choose from {', '.join(PEERS)}, or none; --peer FILE adds others"
        )
    dataset, split = dataset_of(subject.config), subject.training().batches.split
    task = task_of(subject, split, dataset.pad, dataset.flip, arguments.workers)

    def another(**changes: object) -> Task:
        return replace(task, model=build_model(list(subject.overrides)), **changes)

    peers, absent = {}, {}
    for name in names:
        try:
            prepare = bundled(name).prepare
        except ModuleNotFoundError as missing:
            absent[name] = str(missing)
            continue
        if name == "plain":
            precisions = dict.fromkeys((torch.float32, subject.precision))
            for precision in precisions:
                layout = "NCHW" if precision == torch.float32 else "channels_last"
                for workers in dict.fromkeys((0, arguments.workers)):
                    title = f"plain script, {_told(precision)} {layout}, {workers} workers"
                    peers[title] = prepare, another(precision=precision, workers=workers)
        else:
            peers[f"{name}, {arguments.workers} workers"] = prepare, another()
    return peers | {path.stem: (given(path), another()) for path in arguments.peer}, absent


def _told(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")
