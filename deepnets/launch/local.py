"""The launcher `local`: executes runs in this process, one after the other or several at once, as one batched network.

The runs share the imported modules and the data in memory.
"""

import json
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from deepnets.config.identity import PLAIN_LOSS, flat, identity
from deepnets.config.schema import Config, StepKind
from deepnets.data.loading import check_decoder
from deepnets.distributed.signals import Interrupted, Interruption, how_to_resume
from deepnets.distributed.world import ALONE
from deepnets.errors import UserError, system_message
from deepnets.launch.grid import Retry, Tally, failed_before
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import malformed
from deepnets.runs.code import code_to_execute
from deepnets.runs.contents import Result
from deepnets.runs.execute import run
from deepnets.runs.folder import Locked, RunFolder, lines_by_reason
from deepnets.runs.record import describe_result
from deepnets.runs.resume import Execution, session, train
from deepnets.runs.status import read_state
from deepnets.system.printing import print_error, print_line
from deepnets.system.settings import Memory, Size
from deepnets.training import stack
from deepnets.training.assembly import dataset_of
from deepnets.training.hardware import find_device, with_counted_devices
from deepnets.training.size import meta_network
from deepnets.training.step import check_device

Ending = Result | Exception
OPTIMIZERS = ("deepnets.optimizer.sgd", "deepnets.optimizer.scalar_sgd", "deepnets.optimizer.caffe_sgd")
# Settings that may differ in a group: each run has its own start, order of images, rates and schedule.
MAY_DIFFER = (
    "seed",
    "setting",
    "schedule",
    "optimizer.lr",
    "optimizer.momentum",
    "optimizer.nesterov",
    "optimizer.weight_decay",
)
# May differ too if the class in the node is deepnets' own, where only the initial weights depend on it.
OF_INITIAL_WEIGHTS = {"model": "model.initialization", "model.shortcut": "model.shortcut.bias"}
MUST_AGREE = ("device", "threads")  # settings outside the identity that must be equal too
LONELY = "no other row that is left has its network, settings of your own classes, data, budget and iteration"


@dataclass(frozen=True)
class Local:
    """Trains the runs in order, up to `stacked` at once if their networks allow it.

    A run that fails does not stop the others unless `fail_fast` is set.
    """

    in_process: ClassVar[bool] = True

    stacked: Size
    retry: Retry | None

    def check(self, config: Config) -> None:
        """Check that the device of a run can execute its steps and, if the run asks for it, decode its images.

        Raises:
            UserError: the device cannot.
        """
        check_device(config.step, device := find_device(config.device))
        check_decoder(config.dataset.get("decoder", "cpu"), device)

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Accept any number of runs."""

    def queued(self, folders: Sequence[RunFolder]) -> None:
        """Return None: there is no queue."""

    def describe(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Say nothing: the runs are trained one after the other."""
        return []

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Train the runs that are not complete; returns 1 if one failed, else 0.

        Raises:
            Interrupted: a signal came; the runs that are training are saved, and the others do not start.
        """
        folders = list(runs)
        config = runs[folders[0]]
        tally = Tally(folders, before=failed_before(folders, self.retry))
        left = [folder for folder in folders if not folder.is_complete and folder not in tally.before]
        groups, alone = groups_of(left, self.stacked)
        if left and len(left) == len(alone):
            print_line(
                "\n".join([f"launcher.stacked={self.stacked}: every run is trained alone", *lines_by_reason(alone)])
            )
        tally.begin()
        waiting = deque(groups)
        while waiting and not (tally.failed and config.fail_fast):
            group = waiting.popleft()
            if len(group) > 1:
                print_line("\n".join([f"{len(group)} runs at once", *map(tally.heading, group)]))
                endings = run_together(group)
                tally.end(len(endings))
                waiting.extendleft([folder] for folder in reversed(group) if folder not in endings)
                _note(endings, tally)
            else:
                print_line(tally.heading(group[0]))
                _note({group[0]: _alone(group[0], config, len(folders) == 1)}, tally)
                tally.end()
        return tally.print()


def groups_of(folders: Sequence[RunFolder], most: int) -> tuple[list[list[RunFolder]], dict[RunFolder, str]]:
    """Make groups of up to `most` folders to train at once, in the order of their first folders.

    If `most` is more than 1, also return the reason for each folder that is alone in its group.
    """
    by_key: dict[Any, list[RunFolder]] = {}
    alone: dict[RunFolder, str] = {}
    for number, folder in enumerate(folders):
        key: Any = number
        if most > 1:
            config = folder.config
            if reason := obstacle(config):
                alone[folder] = reason
            else:
                key = (_shared_settings(config), _position(folder))
        by_key.setdefault(key, []).append(folder)
    groups = [same[first : first + most] for same in by_key.values() for first in range(0, len(same), most)]
    for group in groups:
        if len(group) == 1 and most > 1:
            alone.setdefault(group[0], LONELY)
    places = {folder: place for place, folder in enumerate(folders)}
    return sorted(groups, key=lambda group: places[group[0]]), alone


def obstacle(config: Config) -> str | None:
    """Return why the run cannot be trained at once with similar runs; None if it can."""
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

    def built(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return meta_network(config, dataset)

    network = built(0)
    if stack.own_modules(network) and stack.plain_values(network) != stack.plain_values(built(1)):
        return "numbers that your own classes draw, and keep neither in parameters nor in buffers, differ by seed"
    return stack.obstacle(network, dataset.shape)


def run_together(folders: Sequence[RunFolder]) -> dict[RunFolder, Ending]:
    """Train the folders of a group of `groups_of`, and return each run's result, or the error that made it fail.

    A run that fails or diverges does not change a bit of the others: it is still computed, but not recorded. The same
    group resumes with the same bits; alone or in another group, a run resumes with differences of rounding. A run is
    left out if another process has meanwhile trained it to another iteration.

    Raises:
        Interrupted: a signal came; each run is saved.
    """
    endings: dict[RunFolder, Ending] = {}
    going: list[Execution] = []

    def fail(execution: Execution, error: Exception) -> None:
        endings[execution.folder] = _close_with(error, execution.folder, execution.held)

    def unfinished() -> list[Execution]:
        return [each for each in going if each.result is None and each.folder not in endings]

    with ExitStack() as held:
        interruption = held.enter_context(Interruption(at_once=True))
        try:
            for folder in folders:
                opened = _open(folder, held)
                if isinstance(opened, Execution):
                    going.append(opened)
                else:
                    endings[folder] = opened
            going = _in_step(going)
            if going:
                network = stack.Stack([execution.training for execution in going])
                train(going, stack.fit_together(network), interruption, fail)
        except Interrupted as stop:
            print_error(f"\nStopped by {stop}; {len(unfinished())} runs trained at once are saved. {how_to_resume()}.")
            raise
        except Exception as error:  # the batched network failed, and with it every run
            for execution in unfinished():
                fail(execution, error)
        endings |= {execution.folder: execution.result for execution in going if execution.result}
        if interruption.received:  # these runs ended before the signal, but it stops the next ones
            raise Interrupted(interruption.received)
    return endings


def _alone(folder: RunFolder, config: Config, is_only: bool) -> Ending:
    """Execute a run and return its result or error. If it is the only run, an error other than `Locked` is raised."""
    try:
        return run(folder)
    except Exception as error:
        if is_only and not isinstance(error, Locked):
            raise
        return error


def _note(endings: Mapping[RunFolder, Ending], tally: Tally) -> None:
    """Print how runs ended, and count those that failed."""
    for folder, ending in endings.items():
        if isinstance(ending, Locked):
            tally.skip(folder, ending)
        elif isinstance(ending, Exception):
            details = "".join(traceback.format_exception(ending))
            if isinstance(ending, UserError):
                print_error(f"error: {ending}")
            elif details in tally.shown:
                print_error(f"{folder}: the same error, at the same place")
            else:
                print_error(details)
                tally.shown.add(details)
            tally.failed[folder] = read_state(folder).reason or f"{type(ending).__name__}: {ending}"
        else:
            print_line(f"{folder}: {describe_result(ending)}")


def _open(folder: RunFolder, held: ExitStack) -> Execution | Ending:
    """Lock and read the folder; returns its execution, or its result if complete, or the error if it cannot train."""
    held_by_run = held.enter_context(ExitStack())
    try:
        config = folder.config
        code = code_to_execute(folder, config)
        opened = held_by_run.enter_context(session(folder, config))
        if result := folder.completed:
            held_by_run.close()
            return result
        assert opened
        name = f"{folder.path.parent.name}/{folder.path.name}"
        return Execution(folder, config, ALONE, opened, held_by_run, code, name)
    except Exception as error:
        return _close_with(error, folder, held_by_run)


def _close_with(error: Exception, folder: RunFolder, held: ExitStack) -> Exception:
    """Close the folder's session with the error, which the session records; returns the error to show."""
    with suppress(Exception):  # the session raises this error again, or another one if it cannot record it
        held.__exit__(type(error), error, error.__traceback__)
    return UserError(f"{folder}: {refused}") if (refused := system_message(error)) else error


def _in_step(executions: list[Execution]) -> list[Execution]:
    """Return the executions with the same iteration, threads and precision as the first one, and close the others."""

    def position(execution: Execution) -> tuple:
        training = execution.training
        return training.iteration, training.batch, execution.frozen["threads"], training.precision

    for execution in executions:
        if position(execution) != position(executions[0]):
            execution.held.close()
    return [execution for execution in executions if position(execution) == position(executions[0])]


def _shared_settings(config: Config) -> str:
    """Return as text the settings that must be equal in all runs of a group."""
    values = flat(identity(config)) | {key: getattr(config, key) for key in MUST_AGREE}
    values["dataset.root"] = config.dataset.get("root")
    free = [f"{key}." for key in MAY_DIFFER]
    for node, key in OF_INITIAL_WEIGHTS.items():
        free += [f"{key}."] * str(values.get(f"{node}._target_", "")).startswith("deepnets.")
    return json.dumps(
        {key: value for key, value in values.items() if not f"{key}.".startswith(tuple(free))}, sort_keys=True
    )


def _position(folder: RunFolder) -> tuple | None:
    """Return iteration, batch, threads and precision of the last intact checkpoint; None if there is none."""
    saved, _ = checkpoint.load(folder.path, malformed)
    if saved is None:
        return None
    frozen = saved["frozen"]
    return saved["training"]["iteration"], saved["training"]["batch"], frozen["threads"], frozen["precision"]
