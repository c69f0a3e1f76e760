"""Candidates measured in turns within one process, so that what else the machine does meets all of them alike."""

import time
from collections.abc import Callable, Iterator, Mapping

import torch

Measurement = dict[str, list[float]]
SETTLE_SECONDS = 1.0  # a loader's workers go on filling their queue after its turn


def in_turns(
    candidates: Mapping[str, Callable[[], float]], repeats: int, settle_seconds: float = SETTLE_SECONDS
) -> Measurement:
    """What each candidate returns: called once to warm up, then `repeats` times in turns, by its name."""
    for measure in candidates.values():
        measure()
    results: Measurement = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, measure in candidates.items():
            time.sleep(settle_seconds)
            results[name].append(measure())
    return results


def rate(batches: Iterator, batch_size: int, iterations: int, device: torch.device) -> float:
    """Images a second over that many iterations."""
    started = time.perf_counter()
    for _ in range(iterations):
        next(batches)
    wait(device)
    return iterations * batch_size / (time.perf_counter() - started)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
