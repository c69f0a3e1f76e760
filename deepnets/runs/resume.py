"""Begins or resumes a run: a process holds its folder, trains from the last checkpoint, and records how it ends."""

import math
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import filelock
import torch
from torch import Tensor

from deepnets.config.identity import identity
from deepnets.config.schema import Config, Selection
from deepnets.distributed.signals import Interrupted, Interruption
from deepnets.distributed.world import ALONE, Decisions, World, joined, lost_another, slurm_task
from deepnets.errors import UserError
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import described, load_checked, resume
from deepnets.runs.code import changed_files
from deepnets.runs.contents import DIVERGED, FAILED, FINISHED, Code, FinalStatus, Progress, Result
from deepnets.runs.folder import BESIDE, Locked, RunFolder, note_code
from deepnets.runs.initial_weights import start_from_weights
from deepnets.runs.log import Log
from deepnets.runs.owner import Owner, TakenOver
from deepnets.runs.record import (
    Evidence,
    changes_since,
    check_arithmetic,
    data_of,
    differing,
    environment_of,
    input_of,
    protocol_of_training,
    result_of,
    state_checksum,
    with_processes,
)
from deepnets.runs.status import Heartbeat
from deepnets.runs.weights import KEPT, Weights, kept_iterations, write_weights
from deepnets.system.files import opened_to_append, own_cache
from deepnets.system.printing import print_error, print_line
from deepnets.training.assembly import dataset_of, prepare, splits_of
from deepnets.training.checks import check_batches
from deepnets.training.fit import Training
from deepnets.training.hardware import device_of_process, find_device, scarce_cores

STARTING_SECONDS = 2.0  # much longer than a parent process holds the folder's lock to write into it
LOST_SECONDS = 2.0  # the parent of several processes checks every 0.1 s which of them ended
FINITE_CHECK_ITERATIONS = 50
SILENT_SECONDS = 30.0  # after this time a process prints that it waits until another one has read its data


class AnotherFailed(Exception):
    """Another process of the run failed before this one, and its reason is recorded."""


@dataclass(frozen=True)
class Session:
    """The device, owner and heartbeat of a process that trains a run; only the first process has a heartbeat."""

    device: torch.device
    heartbeat: Heartbeat | None
    owner: Owner


@contextmanager
def session(folder: RunFolder, config: Config, world: World = ALONE) -> Iterator[Session | None]:
    """Hold the folder while this process of `world` trains its run; yields None if the run is already complete.

    An exception in the context is recorded as the run's failure; a signal is not a failure.

    Raises:
        Locked: another process executes the folder.
        TakenOver: another machine now executes the folder, because this machine was silent for too long.
        AnotherFailed: another process of `world` failed first.
    """
    with ExitStack() as held:
        # A single process holds the folder before anything can fail: only the holder records a failure in it.
        owner = held.enter_context(folder.hold(STARTING_SECONDS, to_train=True)) if world.size == 1 else None
        try:
            device = find_device(config.device)
            if world.size > 1:
                device = device_of_process(config.device, world.local_rank)
            held.enter_context(joined(world, device))
            if world.size > 1:
                owner = _hold_in_first(folder, world, held)
            heartbeat = held.enter_context(Heartbeat(folder)) if owner and world.is_first else None
            yield Session(device, heartbeat, owner) if owner else None
        except (Locked, TakenOver, AnotherFailed):
            raise
        except Exception as error:
            is_lost = world.size > 1 and lost_another(error)
            if is_lost:
                time.sleep(LOST_SECONDS)  # let the other process, or the parent, record its failure first
            reason = f"{type(error).__name__}: {error}"
            if world.size > 1:
                reason += f" (process {world.rank} of {world.size})"
            is_user_error = isinstance(error, UserError)
            details = f"{error}\n" if is_user_error else "".join(traceback.format_exception(error))
            is_first = note_failure(folder, reason, details)
            if is_lost or not is_first:
                raise AnotherFailed from error
            raise


class Execution:
    """Trains the run in a folder from its last checkpoint to its end, as one process of `world`.

    Only the first process reads and writes the folder; `held` keeps it locked until `result` is written. If several
    runs train at once, `name` precedes this run's lines on the console.

    Raises:
        UserError: the checkpoint, the data or the arithmetic are not the run's, or `start_from_weights` raises it.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        world: World,
        session: Session,
        held: ExitStack,
        code: Code | None,
        name: str | None = None,
    ) -> None:
        self.folder, self.config, self.heartbeat, self.held, self.name = folder, config, session.heartbeat, held, name
        self.owner = session.owner
        device = session.device
        saved, damaged = world.broadcast_value(_loaded(folder, config) if world.is_first else ({}, {}))
        with _reading():
            splits_of(dataset_of(config), device)
        check_batches(config, dataset_of(config))
        self.input = input_of(config, device)
        self.frozen = saved["frozen"] if saved else world.broadcast_value(environment_of(config, device))
        if saved and (difference := differing(self.frozen["data"], data_of(config, device))):
            where = f"{folder}: began on other data than those in {config.dataset.get('root')}: {difference}"
            raise UserError(f"{where}. Restore the data, or add {BESIDE} or, to train anew, overwrite=true")
        self.frozen = with_processes(self.frozen, world.size, saved["training"]["iteration"] if saved else 0, config)
        changed = self._continue_code(code, saved["training"]["iteration"] if saved else 0)
        check_arithmetic(folder, self.frozen["precision"], config, device)
        torch.set_num_threads(self.frozen["threads"])
        self.training = prepare(config, device, getattr(torch, self.frozen["precision"]), world)
        self.remarks, self.history, self.seconds = described(damaged), [], 0.0
        self.own_seconds: float | None = saved.get("own_seconds") if saved else None  # earlier versions noted none
        self.observed: list[dict[str, Any]] = []
        self.evidence = Evidence(saved["evidence"] if saved else None)
        if not saved and (start := start_from_weights(self.training.model, config, dataset_of(config).classes)):
            self.remarks.append(start)
        if saved:
            self.remarks.append(resume(folder, saved, self.training))
            self.history, self.observed, self.seconds = saved["history"], saved["observed"], saved["seconds"]
        self.remarks += changes_since(folder, config, self.frozen, device)
        self.remarks += [f"your code has changed since the run began: {', '.join(changed)}"] * bool(changed)
        self.remarks += filter(None, [scarce_cores(device)])
        self.logging = held.enter_context(ExitStack())
        self.log: Log | None = None
        self.saved: Mapping[str, Tensor] = {}
        kept = kept_iterations(config.keep_checkpoints, self.training.iterations) if config.keep_checkpoints else []
        self.to_keep = {iteration for iteration in kept if iteration > self.training.iteration}
        # With selection=best_validation: the weights of the epoch with the lowest validation error so far.
        self.selected: dict[str, Tensor] = saved.get("selected", {}) if saved else {}
        errors = [(row["validation_error"], row["iteration"]) for row in self.history if "validation_error" in row]
        self.lowest: tuple[float, int] = min(errors, default=(math.inf, 0))  # the error and its iteration
        self.result: Result | None = None

    def _continue_code(self, code: Code | None, iteration: int) -> list[str]:
        """Note that the run executes `code` from `iteration` on; returns the files that have changed."""
        before = {key: Code.model_validate(value) for key, value in self.frozen.get("code", {}).items()}
        last = list(before.values())[-1] if before else None
        if not code or (last and last.hash == code.hash):
            return []
        self.frozen = {**self.frozen, "code": self.frozen.get("code", {}) | {str(iteration): code.model_dump()}}
        if self.heartbeat:  # the first process
            note_code(self.folder.path, code)
        return changed_files(self.folder, last, code) if last else []

    def begin(self, together: int = 1) -> None:
        """Open the log, and let the heartbeat report progress; so many runs train at once."""
        if not self.heartbeat:  # not the first process
            return
        times = self.seconds, self.name, self.own_seconds, together
        log = Log(self.folder, self.training, self.config, self.history, self.observed, *times)
        self.log = self.logging.enter_context(log)
        log.protocol(protocol_of_training(self.config, self.training))
        for remark in self.remarks:
            log.remark(remark)
        self.heartbeat.follow(lambda: _progress(self.training, log))

    def note(self) -> bool:
        """Record the last iteration or epoch; returns False if the training has diverged, which ends it."""
        if self.log:
            self.log.iteration(self.training)
            self.evidence.note(self.training)
        if _is_non_finite(self.training):
            self._end(DIVERGED)
            return False
        if self.training.iteration in self.to_keep:
            self.to_keep.remove(self.training.iteration)
            self._keep_weights(self.training.iteration, self.training.state_dict()["model"])
        if self.config.selection == Selection.best_validation and self.training.completed:
            self._select()
        if self.log and self.training.completed:
            self.log.epoch(self.training)
        return True

    def _select(self) -> None:
        """Hold the weights of the epoch that has just ended if its validation error is the lowest so far."""
        if (error := self.training.completed["validation"].error) < self.lowest[0]:
            self.lowest = error, self.training.iteration
            weights = self.training.state_dict()["model"]
            self.selected = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}

    def _keep_weights(self, iteration: int, state: Mapping[str, Tensor]) -> None:
        """Write the weights of an iteration into a separate file."""
        if self.log:
            self.owner.check()
            shape, classes = self.frozen["shape"], self.frozen["classes"]
            weights = Weights(state, self.config, tuple(shape), classes, iteration, self.input)
            write_weights(weights, self.folder.path, KEPT.format(iteration))

    def save(self) -> None:
        """Write a checkpoint; every process must call this."""
        state: dict[str, Any] = {
            "training": self.training.state_dict(),
            "history": self.history,
            "observed": self.observed,
        }
        if self.log:
            self.owner.check()
            self.log.flush()
            state |= {"run": identity(self.config), "frozen": self.frozen, **self.log.times()}
            state |= {"evidence": self.evidence.state, "input": self.input.model_dump(exclude_unset=True)}
            state |= {"selected": self.selected} if self.selected else {}
            checkpoint.save(self.folder.path, state)
        self.saved = state["training"]["model"]

    def finish(self) -> None:
        """Save the run, whose budget is used up, and write its result; every process must call this."""
        self.save()
        if self.selected:
            self._keep_weights(self.lowest[1], self.selected)
        self._end(FINISHED)

    def _end(self, status: FinalStatus) -> None:
        if self.log:
            self.log.end(finished=status == FINISHED)
            facts = {"claims": self.folder.origin.claims, "input": self.input.without_image, **self.evidence.facts()}
            if status == FINISHED:  # no checkpoint holds the final weights of a run that diverged
                facts["weights_sha256"] = state_checksum(self.saved)
            times = self.log.times()
            self.result = result_of(self.config, self.training, self.history, times, status, self.frozen, facts)
            self.logging.close()
            self.result.write(self.folder.path)
        written = self.result and self.result.model_dump(mode="json", exclude_unset=True)
        if result := self.training.world.broadcast_value(written):
            self.result = Result.model_validate(result)
        self.held.close()


def train(
    executions: Sequence[Execution],
    steps: Iterator[Any],
    interruption: Interruption,
    failed: Callable[[Execution, Exception], None] | None = None,
) -> None:
    """Train all executions to their end; `steps` is `fit` of a single training, or `fit_together` of several.

    If an execution raises an error, this calls `failed` with both, and the others go on. Without `failed`, it raises
    the error.

    Raises:
        Interrupted: a signal came to one of the processes; the runs are saved.
    """
    going = list(executions)

    def each(do: Callable[[Execution], bool | None]) -> None:
        for execution in list(going):
            try:
                goes_on = do(execution)
            except Exception as error:
                if failed is None:
                    raise
                failed(execution, error)
                goes_on = False
            if goes_on is False:
                going.remove(execution)
        for log in filter(None, (execution.log for execution in going)):
            log.share(len(going))

    training = executions[0].training
    world = training.world
    decide = Decisions(world, interruption, executions[0].config.checkpoint_seconds)
    interruption.at_once = False  # from here on there is something to save
    each(lambda execution: execution.begin(len(going)))
    for _ in steps:
        each(Execution.note)
        if not going:
            return
        stop, due = decide(trains=training.model.training)
        if stop or due:
            each(Execution.save)
            decide.saved_at = time.monotonic()
        if stop:
            world.barrier()  # wait until the first process has saved: when one ends, the others may be killed
            raise Interrupted(stop)
    each(Execution.finish)


def note_failure(folder: RunFolder, reason: str, details: str) -> bool:
    """Write the reason into result.json and the details into log.txt; returns False if the run already has a result.

    If several processes fail, only the first reason is written: the other processes fail because the first is gone.
    """
    try:
        (folder.path / Result.FILE).open("x").close()
        with opened_to_append(folder.path / "log.txt") as file:
            file.write(details.encode())
        result = Result(status=FAILED, reason=reason)
        if task := slurm_task():
            result = result.model_copy(update={"job": task})
        result.write(folder.path)
    except FileExistsError:
        return False
    except OSError as unwritable:  # a full disk may be the failure itself, so the user should still see `details`
        print_error(f"{folder}: the failure could not be noted there ({unwritable})")
    return True


def _hold_in_first(folder: RunFolder, world: World, held: ExitStack) -> Owner | None:
    """Let the first process hold the folder; returns the owner in every process, None if nothing is left to train."""
    owner, lines = None, None
    if world.is_first:
        try:
            owner = held.enter_context(folder.hold(STARTING_SECONDS, to_train=True))
        except Locked as error:
            lines = list(map(str, error.args[1:]))
    number, lines = world.broadcast_value((owner.number if owner else None, lines))
    if lines is not None:
        raise Locked(folder, *lines)
    return None if number is None else owner or Owner(folder.path, number)


def _loaded(folder: RunFolder, config: Config) -> tuple[dict[str, Any] | None, dict[str, str]]:
    saved, damaged = load_checked(folder, config)
    for name in damaged:  # otherwise the next `save` would move a damaged file over the intact one
        (folder.path / name).rename(folder.path / f"{name}.damaged")
    return saved, damaged


@contextmanager
def _reading() -> Iterator[None]:
    """Hold a lock while data are read, so that one process of this machine downloads and decodes them for the others.

    A process may wait for the lock for any time. If the processes of a run waited for each other by gloo instead, they
    would fail at its time limit.

    Raises:
        UserError: `own_cache` raises it.
    """
    path = own_cache() / f"reading.{socket.gethostname()}.lock"  # machines may share the cache
    lock = filelock.FileLock(path)
    try:
        lock.acquire(SILENT_SECONDS)
    except filelock.Timeout:
        print_line(f"waiting until another process of yours has read its data; it holds {path}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_non_finite(state: Training) -> bool:
    """Return whether a loss is not finite; it is checked at fixed iterations, so that reruns end at the same one."""
    if state.completed:
        return not all(math.isfinite(mean.loss) for mean in state.completed.values())
    if state.iteration % FINITE_CHECK_ITERATIONS:
        return False
    return not state.world.all_reduce_sum(state.sums.values[0]).isfinite().item()


def _progress(training: Training, log: Log) -> Progress:
    """Return the run's progress, with the pace of this epoch or, before it has one, of the previous epoch."""
    last = log.history[-1] if log.history else {}
    return Progress(
        epoch=training.epoch,
        epochs=training.epochs,
        iteration=training.iteration,
        iterations=training.iterations,
        test_error=last.get("test_error"),
        images_per_second=round(log.clock.images_per_second() or last.get("images_per_second", 0.0), 1),
        seconds_left=round(log.time_left(training), 1),
        seconds_idle=round(log.seconds_idle, 1),
    )
