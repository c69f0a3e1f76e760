"""One life of a run: one process at a time holds its folder, its heart beats, and why it failed is noted there."""

import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from deepnets.config.schema import Config
from deepnets.distributed.world import ALONE, World, joined, lost_another, slurm_task
from deepnets.errors import UserError
from deepnets.runs.folder import FAILED, Locked, RunFolder
from deepnets.runs.owner import Owner, TakenOver
from deepnets.runs.status import Heartbeat
from deepnets.system.files import opened_to_append
from deepnets.system.printing import print_error
from deepnets.training.hardware import device_of_process, find_device

STARTING_SECONDS = 2.0  # a parent that writes the folder down anew holds its lock for much less
LOST_SECONDS = 2.0  # whoever watches several processes looks every 0.1 s which of them ended


class AnotherFailed(Exception):
    """Another process of the run failed before this one, and has said why."""


@dataclass(frozen=True)
class Session:
    """What a process trains a run with; the first process alone has a heartbeat."""

    device: torch.device
    heartbeat: Heartbeat | None
    owner: Owner


@contextmanager
def session(folder: RunFolder, config: Config, world: World = ALONE) -> Iterator[Session | None]:
    """Hold the folder while its run is trained, as one process of `world`; None where the run is complete by now.

    What is raised meanwhile is the run's failure, and noted; a signal is none.

    Raises:
        Locked: another process is running the folder.
        TakenOver: another machine is by now, as this one seemed to be gone.
        AnotherFailed: another process of `world` failed first.
    """
    with ExitStack() as held:
        # Alone, before anything that may fail: only who holds the folder notes a failure in it.
        owner = held.enter_context(folder.training(STARTING_SECONDS)) if world.size == 1 else None
        try:
            device = find_device(config.device)
            if world.size > 1:
                device = device_of_process(config.device, world.local_rank)
            held.enter_context(joined(world, device))
            if world.size > 1:
                owner = _claimed_by_first(folder, world, held)
            heartbeat = held.enter_context(Heartbeat(folder)) if owner and world.is_first else None
            yield Session(device, heartbeat, owner) if owner else None
        except (Locked, TakenOver, AnotherFailed):
            raise
        except Exception as error:
            is_lost = world.size > 1 and lost_another(error)
            if is_lost:
                time.sleep(LOST_SECONDS)  # so that the other one, or whoever watches, notes first what it was
            reason = f"{type(error).__name__}: {error}"
            if world.size > 1:
                reason += f" (process {world.rank} of {world.size})"
            is_users = isinstance(error, UserError)
            details = f"{error}\n" if is_users else "".join(traceback.format_exception(error))
            is_first = note_failure(folder, reason, details)
            if is_lost or not is_first:
                raise AnotherFailed from error
            raise


def _claimed_by_first(folder: RunFolder, world: World, held: ExitStack) -> Owner | None:
    """The owner, in every process; None where nothing is left to train."""
    owner, lines = None, None
    if world.is_first:
        try:
            owner = held.enter_context(folder.training(STARTING_SECONDS))
        except Locked as error:
            lines = list(map(str, error.args[1:]))
    number, lines = world.broadcast_value((owner.number if owner else None, lines))
    if lines is not None:
        raise Locked(folder, *lines)
    return None if number is None else owner or Owner(folder.path, number)


def note_failure(folder: RunFolder, reason: str, details: str) -> bool:
    """Write the reason into result.json and the details into log.txt, unless the run has a result; whether it had none.

    Of several processes the first that fails has the word: the others fail because it is gone.
    """
    try:
        (folder.path / "result.json").open("x").close()
        with opened_to_append(folder.path / "log.txt") as file:
            file.write(details.encode())
        job = {"job": task} if (task := slurm_task()) else {}
        folder.write_json("result.json", {"status": FAILED, "reason": reason, **job})
    except FileExistsError:
        return False
    except OSError as unwritable:  # the disk that is full may be what failed: the first error is the one to show
        print_error(f"{folder}: the failure could not be noted there ({unwritable})")
    return True
