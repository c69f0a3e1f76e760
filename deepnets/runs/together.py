"""Execute several run folders at once, as one batched network."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from deepnets.distributed.signals import RESUME, Interrupted, Interruption
from deepnets.distributed.world import ALONE
from deepnets.errors import UserError, of_system
from deepnets.runs.execution import Execution, train
from deepnets.runs.folder import RunFolder
from deepnets.runs.session import session
from deepnets.system.printing import print_error
from deepnets.training.stack import Stack, fit_together

Ending = dict[str, Any] | Exception


def run_together(folders: Sequence[RunFolder], trusted: Sequence[str] = ()) -> dict[RunFolder, Ending]:
    """Train the folders of a group of `grouping.groups_of`, and return the result of each, or what it failed by.

    A run that fails or diverges disturbs no other, to the bit: it is computed further, unseen. Where the group forms
    again after an interruption, it goes on bit by bit; in another group, or alone, a run goes on but for rounding.
    One that has meanwhile been trained elsewhere, and so stands at another iteration, is left out.

    Raises:
        Interrupted: a signal came; the state of each is saved.
    """
    endings: dict[RunFolder, Ending] = {}
    going: list[Execution] = []

    def fail(execution: Execution, error: Exception) -> None:
        endings[execution.folder] = _ended_by(error, execution.folder, execution.held)

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
            print_error(f"\nStopped by {stop}; {len(unfinished())} runs trained at once are saved. {RESUME}.")
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
        config = replace(folder.config, trusted_targets=list(trusted))
        opened = of_run.enter_context(session(folder, config))
        if result := folder.completed:
            of_run.close()
            return result
        assert opened
        name = f"{folder.path.parent.name}/{folder.path.name}"
        return Execution(folder, config, ALONE, opened, of_run, name)
    except Exception as error:
        return _ended_by(error, folder, of_run)


def _ended_by(error: Exception, folder: RunFolder, held: ExitStack) -> Exception:
    """The folder's session ended by the error, which it notes; and the error as it is to be shown."""
    with suppress(Exception):  # the error itself, or that where writing has failed so does closing
        held.__exit__(type(error), error, error.__traceback__)
    return UserError(f"{folder}: {refused}") if (refused := of_system(error)) else error


def _in_step(executions: list[Execution]) -> list[Execution]:
    """Those that stand where the first one does; the others are let go."""

    def position(execution: Execution) -> tuple:
        training = execution.training
        return training.iteration, training.batch, execution.frozen["threads"], training.precision

    for execution in executions:
        if position(execution) != position(executions[0]):
            execution.held.close()
    return [execution for execution in executions if position(execution) == position(executions[0])]
