"""The training of a run folder by one process, alone or among others: from its last checkpoint to its end."""

import math
import time
from contextlib import nullcontext
from typing import Any

import torch

from deepnets import checkpoint
from deepnets.assembly import dataset_of, prepare, splits_of
from deepnets.config import Config
from deepnets.errors import UserError
from deepnets.fit import Training, fit
from deepnets.folder import RunFolder
from deepnets.interruption import Interrupted, Interruption
from deepnets.log import Log
from deepnets.record import changes_since, data_of, differing, environment_of, protocol_of, result_of
from deepnets.status import Heartbeat, Progress
from deepnets.world import World

FINITE_CHECK_ITERATIONS = 50
DECISION_SECONDS = 0.5  # between two questions to all processes, where there are several
LONGEST_INTERVAL = 100  # yields between two, however short they are


def train(
    folder: RunFolder,
    config: Config,
    world: World,
    device: torch.device,
    interruption: Interruption,
    heartbeat: Heartbeat | None,
) -> dict[str, Any] | None:
    """Train to the end; what result.json is to hold, in the first process. That one alone reads and writes the folder.

    Raises:
        Interrupted: a signal came, to whichever process; the state is saved.
        UserError: it cannot go on.
    """
    saved, damaged = world.shared(_loaded(folder) if world.is_first else ({}, {}))
    _read_in_turn(config, world, device)
    frozen = saved["frozen"] if saved else world.shared(environment_of(config, device))
    if saved and (data := data_of(config, device)) != frozen["data"]:
        where = config.dataset.get("root")
        raise UserError(f"{folder}: began on other data than those in {where}: {differing(frozen['data'], data)}")
    torch.set_num_threads(frozen["threads"])
    training = prepare(config, device, getattr(torch, frozen["precision"]), world)
    remarks, history, seconds = [protocol_of(config, training), *told(damaged)], [], 0.0
    observed: list[dict[str, Any]] = []
    if saved:
        training.load_state_dict(saved["training"])
        history, observed, seconds = saved["history"], saved.get("observed", []), saved["seconds"]
        remarks.append(f"continuing at iteration {training.iteration} of {training.iterations}")
    remarks += changes_since(folder, config, frozen, device)

    def save() -> None:
        state = {"training": training.state_dict(), "history": history, "observed": observed, "frozen": frozen}
        if log:
            log.flush()
            checkpoint.save(folder.path, {**state, "seconds": log.seconds})

    diverged = False
    decide = _Decisions(world, interruption, config.checkpoint_seconds)
    interruption.at_once = False  # from here on there is something to save
    with Log(folder, training, config, history, observed, seconds) if world.is_first else nullcontext() as log:
        if log:
            for remark in remarks:
                log.remark(remark)
            heartbeat.follow(
                lambda: _progress(training, history, log.clock.images_per_second(), log.time_left(training))
            )
        for state in fit(training):
            if log:
                log.iteration(state)
            if diverged := _is_non_finite(state):
                break
            if log and state.completed:
                log.epoch(state)
            stop, due = decide()
            if stop or due:
                save()
                decide.saved_at = time.monotonic()
            if stop:
                world.wait()  # for the first to have saved: the end of one process can be the end of all
                raise Interrupted(stop)
        if not diverged:
            save()
        if log:
            log.end(finished=not diverged)
            return result_of(config, training, history, log.seconds, "diverged" if diverged else "finished", frozen)
    return None


def told(damaged: dict[str, str]) -> list[str]:
    """A line about each file that `checkpoint.load` found damaged."""
    return [f"{name} is damaged and was not used ({damage})" for name, damage in damaged.items()]


class _Decisions:
    """Which signal to stop on, if any, and whether to save: the same in all processes at the same yield.

    Several ask each other every so many yields, a number that follows from the pace of the slowest.
    """

    def __init__(self, world: World, interruption: Interruption, checkpoint_seconds: float) -> None:
        self.world, self.interruption, self.checkpoint_seconds = world, interruption, checkpoint_seconds
        self.saved_at = self.asked_at = time.monotonic()
        self.interval = self.left = 1

    def __call__(self) -> tuple[int | None, bool]:
        self.left -= 1
        if self.left:
            return None, False
        now = time.monotonic()
        due, pace = now - self.saved_at >= self.checkpoint_seconds, (now - self.asked_at) / self.interval
        stop, due, pace = self.world.largest([self.interruption.received or 0, due, pace])
        if self.world.size > 1:
            self.interval = max(1, min(int(DECISION_SECONDS / pace), LONGEST_INTERVAL))
        self.left, self.asked_at = self.interval, now
        return int(stop) or None, bool(due)


def _loaded(folder: RunFolder) -> tuple[dict[str, Any] | None, dict[str, str]]:
    saved, damaged = checkpoint.load(folder.path)
    for name in damaged:  # or the next checkpoint would push it over the intact one
        (folder.path / name).unlink()
    return saved, damaged


def _read_in_turn(config: Config, world: World, device: torch.device) -> None:
    """The first process of each machine downloads and decodes; the others find it done."""
    if world.local_rank:
        world.wait()
    splits_of(dataset_of(config), device)
    if not world.local_rank:
        world.wait()


def _is_non_finite(state: Training) -> bool:
    """Whether a loss is; the device is asked at fixed iterations, so that a diverged run ends at the same one again."""
    if state.completed:
        return not all(math.isfinite(mean.loss) for mean in state.completed.values())
    if state.iteration % FINITE_CHECK_ITERATIONS:
        return False
    return not state.world.sum(state.sums.values[0]).isfinite().item()


def _progress(
    training: Training, history: list[dict[str, Any]], images_per_second: float, seconds_left: float
) -> Progress:
    """Of a run whose completed epochs are in `history`; the pace is the last epoch's until this one has one."""
    last = history[-1] if history else {}
    return Progress(
        epoch=training.epoch,
        epochs=training.epochs,
        iteration=training.iteration,
        iterations=training.iterations,
        test_error=last.get("test_error"),
        images_per_second=round(images_per_second or last.get("images_per_second", 0.0), 1),
        seconds_left=round(seconds_left, 1),
    )
