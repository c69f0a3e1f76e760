"""Iterations by `step` and memory layout, and whether any waits for the device: what a part of `bench.py gpu` runs."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from deepnets.bench import floor
from deepnets.bench.figures import Candidates, in_turns, seconds_of
from deepnets.bench.parts import Found
from deepnets.bench.subject import Subject, subject_of
from deepnets.bench.training import endless
from deepnets.command import run_command
from deepnets.config.schema import StepKind
from deepnets.training.fit import Training, fit

LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}


def throughput(ways: Sequence[str], repeats: int, iterations: int, words: Sequence[str]) -> Found:
    """Images/s of training in each way, as in "graphed NCHW", and of the eager arithmetic alone, all in turns.

    A way that fails is absent, with the reason.
    """
    subject, candidates, absent = subject_of(words), Candidates(), {}

    def pace(steps: Iterator) -> float:
        return iterations * subject.config.batch_size / seconds_of(steps, iterations, subject.device)

    for way in ways:
        step, layout = way.split()
        try:
            own = replace(subject, config=replace(subject.config, step=StepKind(step)))
            steps = endless(_laid_out(own, layout))
            next(steps)  # compiles, or captures
        except Exception as error:  # whatever CUDA, a compiler or a graph raises
            absent[way] = str(error).partition("\n")[0]
        else:
            candidates[way] = partial(pace, steps)
    candidates["floor"] = partial(pace, floor.arithmetic(subject.training()))
    return {"images/s": in_turns(candidates, repeats), "absent": absent}


def _laid_out(subject: Subject, layout: str) -> Training:
    training = subject.training()
    training.model.to(memory_format=LAYOUTS[layout])
    passed = training.forward
    training.forward = lambda images: passed(images.contiguous(memory_format=LAYOUTS[layout]))
    return training


def waits(words: Sequence[str]) -> Found:
    """An error where an iteration or an evaluated batch waits for the device; only an epoch's end may."""
    subject = subject_of(words)
    training = subject.training()
    states = fit(training)
    while not next(states).completed:  # code is compiled and graphs are captured
        pass
    yields = len(training.batches) + sum(map(len, training.evaluated.values()))
    if subject.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    for _ in range(yields):
        next(states)
    if subject.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    return {"waits": 0, "yields": yields}


def main() -> int:
    """Print what the function that the command line names has found."""
    what, *words = sys.argv[1:]
    if what == "throughput":
        ways, repeats, iterations, *overrides = words
        found = throughput(ways.split(","), int(repeats), int(iterations), overrides)
    else:
        found = waits(words)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_command(main)
