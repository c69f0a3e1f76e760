"""Executes several run folders at once, as one batched network, and says which folders allow that."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch

from deepnets.config.identity import PLAIN_LOSS, flat, identity
from deepnets.config.schema import Config, StepKind
from deepnets.distributed.signals import RESUME, Interrupted, Interruption
from deepnets.distributed.world import ALONE
from deepnets.errors import UserError, system_message
from deepnets.models.settings import Memory
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import malformed
from deepnets.runs.code import code_to_execute
from deepnets.runs.contents import Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.resume import Execution, session, train
from deepnets.system.printing import print_error
from deepnets.training import stack
from deepnets.training.assembly import dataset_of, model_of
from deepnets.training.hardware import with_counted_devices

Ending = Result | Exception
OPTIMIZERS = ("deepnets.optimizer.sgd", "deepnets.optimizer.scalar_sgd", "deepnets.optimizer.caffe_sgd")
# Settings that may differ in a group: each row has its own start, order of images, rates and schedule.
OWN = (
    "seed",
    "setting",
    "schedule",
    "optimizer.lr",
    "optimizer.momentum",
    "optimizer.nesterov",
    "optimizer.weight_decay",
    "model.initialization",
    "model.shortcut.bias",
)
SHARED = ("device", "threads")  # settings of the execution that all rows of a group must share


def groups_of(folders: Sequence[RunFolder], most: int) -> tuple[list[list[RunFolder]], dict[RunFolder, str]]:
    """Return groups of up to `most` folders to train at once, in the order of their first; and why others are alone."""
    by_key: dict[Any, list[RunFolder]] = {}
    alone: dict[RunFolder, str] = {}
    for number, folder in enumerate(folders):
        key: Any = number
        if most > 1:
            config = folder.config
            if reason := obstacle(config):
                alone[folder] = reason
            else:
                key = (_shared(config), _position(folder))
        by_key.setdefault(key, []).append(folder)
    groups = [same[first : first + most] for same in by_key.values() for first in range(0, len(same), most)]
    for group in groups:
        if len(group) == 1 and most > 1:
            alone.setdefault(group[0], "no other row that is left has its network, data, budget and iteration")
    places = {folder: place for place, folder in enumerate(folders)}
    return sorted(groups, key=lambda group: places[group[0]]), alone


def obstacle(config: Config) -> str | None:
    """Return why the run cannot be trained at once with others of its kind; None if it can."""
    config = with_counted_devices(config)
    if config.devices > 1:
        return f"devices={config.devices}: only runs of one process can be stacked"
    if config.memory is not Memory.full:
        return f"memory={config.memory}: only runs with memory=full can be stacked"
    if config.step is not StepKind.eager:
        return f"step={config.step}: only runs with step=eager can be stacked"
    if config.optimizer["_target_"] not in OPTIMIZERS:
        return f"optimizer {config.optimizer['_target_']}: only SGD can be stacked"
    if config.loss != PLAIN_LOSS:
        return f"loss {config.loss['_target_']}: only runs of cross-entropy without smoothing can be stacked"
    if config.clip_gradient_norm is not None:
        return f"clip_gradient_norm={config.clip_gradient_norm}: only runs without it can be stacked"
    dataset = dataset_of(config)
    if dataset.is_streamed:
        return "images that are decoded while a network trains cannot be stacked"
    with torch.device("meta"):
        model = model_of(config, dataset.shape, dataset.classes)
    return stack.obstacle(model, dataset.shape)


def run_together(folders: Sequence[RunFolder]) -> dict[RunFolder, Ending]:
    """Train the folders of a group of `groups_of`, and return the result of each, or the error that made it fail.

    A run that fails or diverges does not change a bit of the others: it is still computed, but not recorded. If the
    same group resumes after an interruption, it goes on bit by bit; in another group, or alone, a run goes on up to
    rounding. A run that was trained elsewhere meanwhile, to another iteration, is left out.

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
                opened = _opened(folder, held)
                if isinstance(opened, Execution):
                    going.append(opened)
                else:
                    endings[folder] = opened
            going = _in_step(going)
            if going:
                network = stack.Stack([execution.training for execution in going])
                train(going, stack.fit_together(network), interruption, fail)
        except Interrupted as stop:
            print_error(f"\nStopped by {stop}; {len(unfinished())} runs trained at once are saved. {RESUME}.")
            raise
        except Exception as error:  # in the network that they share
            for execution in unfinished():
                fail(execution, error)
        endings |= {execution.folder: execution.result for execution in going if execution.result}
        if interruption.received:  # too late for these runs, but the signal stops the next
            raise Interrupted(interruption.received)
    return endings


def _opened(folder: RunFolder, held: ExitStack) -> Execution | Ending:
    """Lock and read the folder; returns its result if it has one by now, or the error if it cannot be trained."""
    of_run = held.enter_context(ExitStack())
    try:
        config = folder.config
        code = code_to_execute(folder, config)
        opened = of_run.enter_context(session(folder, config))
        if result := folder.completed:
            of_run.close()
            return result
        assert opened
        name = f"{folder.path.parent.name}/{folder.path.name}"
        return Execution(folder, config, ALONE, opened, of_run, code, name)
    except Exception as error:
        return _ended_by(error, folder, of_run)


def _ended_by(error: Exception, folder: RunFolder, held: ExitStack) -> Exception:
    """End the folder's session by the error, which it notes; returns the error to show."""
    with suppress(Exception):  # the error itself, or another one: if writing has failed, closing fails too
        held.__exit__(type(error), error, error.__traceback__)
    return UserError(f"{folder}: {refused}") if (refused := system_message(error)) else error


def _in_step(executions: list[Execution]) -> list[Execution]:
    """Return the executions that are as far as the first one; closes the others."""

    def position(execution: Execution) -> tuple:
        training = execution.training
        return training.iteration, training.batch, execution.frozen["threads"], training.precision

    for execution in executions:
        if position(execution) != position(executions[0]):
            execution.held.close()
    return [execution for execution in executions if position(execution) == position(executions[0])]


def _shared(config: Config) -> str:
    """Return, as text, the settings that must be equal in all rows of a group."""
    values = flat(identity(config)) | {key: getattr(config, key) for key in SHARED}
    values["dataset.root"] = config.dataset.get("root")
    kept = {key: value for key, value in values.items() if not any(f"{key}.".startswith(f"{free}.") for free in OWN)}
    return json.dumps(kept, sort_keys=True)


def _position(folder: RunFolder) -> tuple | None:
    """Return iteration and batch of the last intact checkpoint, its threads and its precision; None without one."""
    saved, _ = checkpoint.load(folder.path, malformed)
    if saved is None:
        return None
    frozen = saved["frozen"]
    return saved["training"]["iteration"], saved["training"]["batch"], frozen["threads"], frozen["precision"]
