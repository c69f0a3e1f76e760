"""Candidates measured in turns within one process, so that what else the machine does meets all of them alike."""

import time
from collections.abc import Callable, Iterator, Mapping

import torch

from deepnets.training.hardware import wait

Candidates = dict[str, Callable[[], float]]
Measurement = dict[str, list[float]]
SETTLE_SECONDS = 1.0  # a loader's workers go on filling their queue after its turn


def in_turns(candidates: Mapping[str, Callable[[], float]], repeats: int, settle_seconds: float = 0.0) -> Measurement:
    """What each candidate returns: called once to warm up, then `repeats` times in turns, by its name.

    Every second round goes backwards, so that none always follows the same other. Where some have workers, each turn
    begins after SETTLE_SECONDS.
    """
    for measure in candidates.values():
        measure()
    results: Measurement = {name: [] for name in candidates}
    for repeat in range(repeats):
        names = list(candidates)
        for name in reversed(names) if repeat % 2 else names:
            time.sleep(settle_seconds)
            results[name].append(candidates[name]())
    return results


def seconds_of(steps: Iterator, iterations: int, device: torch.device) -> float:
    """That so many of the steps take."""
    started = time.perf_counter()
    for _ in range(iterations):
        next(steps)
    wait(device)
    return time.perf_counter() - started
