"""Execute one run folder, in this process or in several."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from deepnets.config.schema import Config
from deepnets.distributed.signals import Interrupted, Interruption
from deepnets.distributed.spawn import ProcessFailed, end_with_parent, start
from deepnets.distributed.world import World, joined, lost_another, world_from_env
from deepnets.errors import UserError
from deepnets.runs.execution import Execution, train
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import THREADS, note, note_failure
from deepnets.runs.status import Heartbeat
from deepnets.training.fit import fit
from deepnets.training.hardware import find_device

STARTING_SECONDS = 2.0  # a parent that writes the folder down anew holds its lock for much less
LOST_SECONDS = 2.0  # the agent of several processes looks every 0.1 s which of them ended


def run(folder: RunFolder, trusted: Sequence[str] = ()) -> dict[str, Any]:
    """Train the folder's run to its end, from its last checkpoint if it has one, and return its result.

    With devices=N this starts N processes, unless it is one of N already, as torchrun starts them.

    Raises:
        Interrupted: a signal came; the state is saved, or the run complete.
        Locked: another process is running the folder.
        UserError: it cannot go on; this and any other failure is also noted in result.json.
    """
    if folder.is_complete:
        return folder.result
    config, world = replace(folder.config, trusted_targets=list(trusted)), world_from_env()
    if world.size == 1 < config.devices:
        return _run_in_processes(folder, config)
    if world.size != config.devices:
        raise UserError(
            f"{folder}: devices={config.devices}, but {world.size} processes were started: start {config.devices}, "
            "or one that starts the others itself"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ and world.size > 1:
        end_with_parent()
    among_others = world.size > 1
    interruption = Interruption(at_once=not among_others, among_others=among_others)
    with ExitStack() as held:
        try:
            held.enter_context(interruption)
            result = _take_part(folder, config, world, interruption, held)
            if interruption.received and not among_others:  # too late for this run, but what follows it must stop
                raise Interrupted(interruption.received)
            return result
        except Interrupted as stop:
            if world.is_first:
                command = ["python", "-m", "deepnets.run", str(folder), *(f"--trust={target}" for target in trusted)]
                with suppress(BrokenPipeError):  # the reader of our output has left
                    print(f"\nstopped by {stop}; {folder} is saved. Continue with the same command", file=sys.stderr)
                    print(f"or with: {shlex.join(command)}", file=sys.stderr, flush=True)
            raise
        except Locked:
            raise
        except Exception as error:
            note_failure(folder, error, world)
            if among_others and lost_another(error):
                time.sleep(LOST_SECONDS)  # so that whoever watches sees first which process it was
            if interruption.received and not among_others:  # the row failed as it saved; what follows it must stop
                print(f"{folder}: {error}", file=sys.stderr)
                raise Interrupted(interruption.received) from error
            if isinstance(error, OSError):
                raise UserError(f"{folder}: {error}") from error
            raise


def _take_part(
    folder: RunFolder, config: Config, world: World, interruption: Interruption, held: ExitStack
) -> dict[str, Any]:
    """What one process does of the run, the first one holding its lock; the result, in all of them."""
    if world.size == 1:  # before anything that may fail: only who holds the folder notes a failure in it
        held.enter_context(folder.lock(STARTING_SECONDS))
    device = find_device(config.device)
    if world.size > 1 and device.type == "cuda":
        device = find_device(f"cuda:{world.local_rank}")
    held.enter_context(joined(world, device))
    of_run = held.enter_context(ExitStack())
    locked, heartbeat = None, None
    if world.size > 1 and world.is_first:
        try:
            of_run.enter_context(folder.lock(STARTING_SECONDS))
        except Locked as error:
            locked = error
    if locked := world.broadcast_object(locked):
        raise locked
    if world.broadcast_object(folder.is_complete):  # by another process, a moment ago
        return world.broadcast_object(folder.result)
    if world.is_first:
        (folder.path / "result.json").unlink(missing_ok=True)
        heartbeat = of_run.enter_context(Heartbeat(folder))
    execution = Execution(folder, config, world, device, heartbeat, of_run)
    train([execution], fit(execution.training), interruption)
    return world.broadcast_object(execution.result)


def _run_in_processes(folder: RunFolder, config: Config) -> dict[str, Any]:
    with folder.lock(STARTING_SECONDS):
        if folder.is_complete:  # by another process, a moment ago
            return folder.result
        (folder.path / "result.json").unlink(missing_ok=True)  # an old failure is not why it may fail now
    threads = max(1, (config.threads or THREADS) // config.devices)
    try:
        ends = start(config.devices, threads, _end_of_part, str(folder.path), config.trusted_targets)
    except ProcessFailed as failed:
        if folder.is_complete:  # one died after all was written down
            return folder.result
        if failed.was_killed:  # it could not note that, and the others noted only that they lost one
            with suppress(Locked), folder.lock():
                note(folder, str(failed), f"{failed}\n")
        kind, _, message = failed.reason.partition(": ")
        if kind == UserError.__name__:
            raise UserError(message) from None
        raise
    if isinstance(ends[0], BaseException):
        raise ends[0]
    return ends[0]


def _end_of_part(path: str, trusted: Sequence[str]) -> dict[str, Any] | Interrupted | Locked:
    """`run` in one of several processes; an end that is no failure is handed back, for what is raised is one."""
    try:
        return run(RunFolder(path), trusted)
    except (Interrupted, Locked) as end:
        return end
