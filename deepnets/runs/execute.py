"""Executes a run folder, in this process or in several, or inspects the files of a finished run."""

import csv
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from deepnets.config.identity import difference, identity_hash
from deepnets.config.schema import Config
from deepnets.config.trust import chosen_code, trusted
from deepnets.distributed.signals import SIGNALS, Interrupted, Interruption, how_to_resume
from deepnets.distributed.spawn import how_it_ended, processes
from deepnets.distributed.world import world_from_env
from deepnets.errors import UserError, system_message
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import LAST, malformed
from deepnets.runs.code import code_to_execute, store
from deepnets.runs.contents import FINISHED, Code, Origin, Result
from deepnets.runs.folder import Locked, RunFolder, note_code
from deepnets.runs.log import as_csv
from deepnets.runs.record import THREADS
from deepnets.runs.resume import STARTING_SECONDS, Execution, note_failure, session, train
from deepnets.runs.status import UNREADABLE, in_a_line
from deepnets.system.files import LONGEST_METRICS, read_text, write_atomically
from deepnets.system.printing import print_error
from deepnets.training.checks import check_processes
from deepnets.training.fit import fit
from deepnets.training.hardware import with_counted_devices

COMMAND = [sys.executable, "-m", "deepnets.run"]
METRICS = "metrics.csv"
LOCKED = 75  # exit code of `python -m deepnets.run FOLDER` if another process executes the folder


def arguments_of(folder: RunFolder) -> list[str]:
    """Return the arguments of `COMMAND` for another process to start or continue the run, with this process's trust.

    It executes the copy of the code that the folder notes, even if the files change meanwhile.
    """
    code = folder.origin.code
    return [str(folder), *_trust(), *([f"--code={code.hash}"] if code else [])]


def _trust() -> list[str]:
    return [f"--trust={name}" for name in trusted()]


def _choice() -> list[str]:
    return [f"--code={chosen}"] if (chosen := chosen_code()) else []


def run(folder: RunFolder) -> Result:
    """Train the folder's run to its end, from its last checkpoint if it has one, and return its result.

    With devices=N this starts N processes. But if torchrun or SLURM has started this process as one of several, the run
    uses these, and ignores `devices`.

    Raises:
        Interrupted: a signal came; the state is saved, or the run is complete.
        Locked: another process executes the folder.
        AnotherFailed: this is one of several processes, and another one failed first.
        OtherCode: the run began with another version of the user's own code.
        UserError: the run cannot go on; this and any other failure is also noted in result.json.
    """
    config, world = folder.config, world_from_env()
    if result := Result.of_ended(folder.path, identity_hash(config)):
        return result
    code = code_to_execute(folder, config)
    config = with_counted_devices(config) if world.size == 1 else replace(config, devices=world.size)
    if world.size < config.devices:
        return _run_in_processes(folder, config, code)
    is_alone = world.size == 1
    interruption = Interruption(at_once=is_alone, has_parent=not is_alone)
    with ExitStack() as held:
        try:
            held.enter_context(interruption)
            with ExitStack() as held_by_run:
                if opened := held_by_run.enter_context(session(folder, config, world)):
                    execution = Execution(folder, config, world, opened, held_by_run, code)
                    train([execution], fit(execution.training), interruption)
                result = execution.result if opened else folder.completed
            if interruption.received and is_alone:  # too late for this run, but the signal stops the next
                raise Interrupted(interruption.received)
            assert result
            return result
        except Interrupted as stop:
            if world.is_first:
                again = shlex.join(["python", *COMMAND[1:], str(folder), *_trust(), *_choice()])
                said, how = f"\nStopped by {stop}; {folder} is", how_to_resume()
                if folder.is_complete:
                    print_error(f"{said} finished. {how}.")
                elif sys.argv[0].endswith("run.py"):  # typed, or started by a command
                    print_error(f"{said} saved. To resume it, type\n{again}")
                else:
                    print_error(f"{said} saved. {how}, or\n{again}")
            raise
        except Exception as error:
            if interruption.received and is_alone:  # saving failed, but the signal stops the next run
                print_error(f"{folder}: {error}")
                raise Interrupted(interruption.received) from error
            if refused := system_message(error):
                raise UserError(f"{folder}: {refused}") from error
            raise


def _run_in_processes(folder: RunFolder, config: Config, code: Code | None) -> Result:
    with folder.hold(STARTING_SECONDS):
        if not folder.discard_failure() and (result := folder.completed):  # another process has just trained it
            return result
        try:
            check_processes(config)
        except UserError as error:
            note_failure(folder, f"{type(error).__name__}: {error}", f"{error}\n")
            raise
        if code:
            store(folder, config, code)
            note_code(folder.path, code)
    threads = max(1, (config.threads or THREADS) // config.devices)
    command = [*COMMAND, *arguments_of(folder), "--quiet"]
    with processes(command, config.devices, threads) as group:
        failure = group.first_failure()
        if failure and failure[1] != LOCKED and failure[1] - 128 not in SIGNALS:
            rank, exit_code = failure
            ending = f"process {rank} of {config.devices}: {how_it_ended(exit_code)}"
            note_failure(folder, ending, f"{ending}\n")  # if the process did not do so itself
    reason = folder.result.reason if folder.result else None
    if stop := group.stopped_by(failure):
        if reason:  # saving failed, but the signal stops the next run
            print_error(f"{folder}: {reason}")
        raise Interrupted(stop)
    if result := folder.completed:  # even if a process died after the result was written
        return result
    if not reason:
        raise Locked(folder)
    raise UserError(reason.removeprefix(f"{UserError.__name__}: "))


def inspect(folder: RunFolder) -> Iterator[str]:
    """Yield a line about each missing or damaged file of a finished run; restores metrics.csv from a checkpoint.

    A record has no checkpoint, so no line says that its checkpoint is missing.
    """
    result = folder.completed
    if not result or result.status != FINISHED:
        return
    if problem := _checkpoint_problem(folder):
        yield f"{folder}: finished, but {LAST} {problem}; overwrite=true trains the run again"
    if problem := _metrics_problem(folder, result):
        try:
            restored = _restored(folder, result)
        except (UserError, OSError) as error:
            restored = f"cannot be restored ({in_a_line(error)})"
        yield f"{folder}: finished, but {METRICS} {problem}; {restored}"


def _checkpoint_problem(folder: RunFolder) -> str | None:
    try:
        damage = checkpoint.damage_of(folder.path / LAST)
    except FileNotFoundError:
        origin = Origin.read(folder.path)
        return "is missing" if origin and not origin.cleaned else None
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"is damaged ({damage})" if damage else None


def _metrics_problem(folder: RunFolder, result: Result) -> str | None:
    try:
        text = read_text(folder.path / METRICS, LONGEST_METRICS)
        rows = list(csv.DictReader(text.splitlines()))
        for value in (value for row in rows for value in row.values() if value != ""):
            float(value)
    except FileNotFoundError:
        return "is missing"
    except UNREADABLE as error:
        return f"is damaged ({in_a_line(error)})"
    if len(rows) != result.epochs or (rows and not text.endswith("\n")):
        return f"is damaged ({len(rows)} rows, {result.epochs} epochs)"
    return None


def _restored(folder: RunFolder, result: Result) -> str:
    """Write metrics.csv from the checkpoint of the run's end, if there is one; returns a phrase about that."""
    state, _ = checkpoint.load(folder.path, malformed)
    is_last = state and state["training"]["iteration"] == result.iterations
    if not state or not is_last or difference(state.get("run", {}), folder.config):
        return "no checkpoint has its rows; overwrite=true trains the run again"
    with folder.hold():
        write_atomically(folder.path / METRICS, as_csv(state["history"]))
    return "restored from the checkpoint"
