"""Execute several run folders at once, as one batched network."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from deepnets.distributed.signals import Interrupted, Interruption
from deepnets.distributed.world import ALONE
from deepnets.errors import UserError
from deepnets.runs.execute import STARTING_SECONDS
from deepnets.runs.execution import Execution, train
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import note_failure
from deepnets.runs.status import Heartbeat
from deepnets.training.hardware import find_device
from deepnets.training.stack import Stack, fit_together

Ending = dict[str, Any] | Exception


def run_together(folders: Sequence[RunFolder], trusted: Sequence[str] = ()) -> dict[RunFolder, Ending]:
    """Train the folders of a group of `grouping.groups_of`, and return the result of each, or what it failed by.

    A row that fails or diverges disturbs no other, to the bit: it is computed further, unseen. Where the group forms
    again after an interruption, it goes on bit by bit; in another group, or alone, a row goes on but for rounding.
    One that has meanwhile been trained elsewhere, and so stands at another iteration, is left out.

    Raises:
        Interrupted: a signal came; the state of each is saved.
    """
    endings: dict[RunFolder, Ending] = {}
    going: list[Execution] = []

    def fail(execution: Execution, error: Exception) -> None:
        endings[execution.folder] = _noted(execution.folder, error)
        with suppress(OSError):  # where writing has failed so does closing
            execution.held.close()

    def unfinished() -> list[Execution]:
        return [each for each in going if each.result is None and each.folder not in endings]

    with ExitStack() as held:
        interruption = held.enter_context(Interruption(at_once=True))
        try:
            for folder in folders:
                opened = _opened(folder, trusted, held)
                if isinstance(opened, Execution):
                    going.append(opened)
                else:
                    endings[folder] = opened
            going = _in_step(going)
            if going:
                stack = Stack([execution.training for execution in going])
                train(going, fit_together(stack), interruption, fail)
        except Interrupted as stop:
            with suppress(BrokenPipeError):  # the reader of our output has left
                saved = f"{len(unfinished())} rows trained at once are saved"
                print(f"\nstopped by {stop}; {saved}. Continue with the same command", file=sys.stderr, flush=True)
            raise
        except Exception as error:  # of the network that they share
            for execution in unfinished():
                fail(execution, error)
        endings |= {execution.folder: execution.result for execution in going if execution.result}
        if interruption.received:  # too late for these, but what follows them must stop
            raise Interrupted(interruption.received)
    return endings


def _opened(folder: RunFolder, trusted: Sequence[str], held: ExitStack) -> Execution | Ending:
    """The folder locked and read; or its result, if it has one by now, or why it cannot be trained."""
    of_run = held.enter_context(ExitStack())
    try:
        of_run.enter_context(folder.lock(STARTING_SECONDS))
        if folder.is_complete:
            of_run.close()
            return folder.result
        (folder.path / "result.json").unlink(missing_ok=True)
        config = replace(folder.config, trusted_targets=list(trusted))
        heartbeat = of_run.enter_context(Heartbeat(folder))
        name = f"{folder.path.parent.name}/{folder.path.name}"
        return Execution(folder, config, ALONE, find_device(config.device), heartbeat, of_run, name)
    except Locked as error:
        return error
    except Exception as error:
        error = _noted(folder, error)
        of_run.close()
        return error


def _noted(folder: RunFolder, error: Exception) -> Exception:
    """The failure written down, and as it is to be shown."""
    note_failure(folder, error, ALONE)
    return UserError(f"{folder}: {error}") if isinstance(error, OSError) else error


def _in_step(executions: list[Execution]) -> list[Execution]:
    """Those that stand where the first one does; the others are let go."""

    def position(execution: Execution) -> tuple:
        training = execution.training
        return training.iteration, training.batch, execution.frozen["threads"], training.precision

    for execution in executions:
        if position(execution) != position(executions[0]):
            execution.held.close()
    return [execution for execution in executions if position(execution) == position(executions[0])]
