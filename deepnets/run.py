"""Execute one run folder: `python -m deepnets.run FOLDER` starts or continues it."""

import argparse
import math
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import nn

from deepnets import checkpoint
from deepnets.assembly import dataset_of, model_of, prepare
from deepnets.command import run_command
from deepnets.config import CONF, Config, register, typed
from deepnets.errors import UserError
from deepnets.fit import Training, fit
from deepnets.folder import RunFolder
from deepnets.hardware import find_device
from deepnets.interruption import Interrupted, Interruption
from deepnets.log import Log, describe_result
from deepnets.record import changes_since, data_of, differing, environment_of, protocol_of, result_of

FINITE_CHECK_ITERATIONS = 50


def build_model(overrides: list[str]) -> nn.Module:
    """A freshly initialised network of any committed configuration, for example `["model=resnet110", "seed=1"]`.

    Takes the overrides of `scripts/train.py`; maps images (N, C, H, W) to logits (N, classes), with C, H, W and classes
    of the data set, which need not be there. The initialisation is that of a run with these overrides.

    Raises:
        UserError: an illegal value. hydra.errors.HydraException: an unknown option or key.
    """
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = typed(compose("train", overrides))
    torch.manual_seed(config.seed)
    dataset = dataset_of(config)
    return model_of(config, dataset.shape, dataset.classes)


def load_run(folder: str | Path, trusted: Sequence[str] = ()) -> tuple[nn.Module, Config]:
    """The network of a run as its last checkpoint left it, in evaluation mode on the CPU, and the run's configuration.

    `trusted` names the classes of your own that its configuration may use. The data need not be there.

    Raises:
        UserError: the folder is no run folder, or holds no intact checkpoint.
    """
    run_folder = RunFolder(folder)
    config = replace(run_folder.config, trusted_targets=list(trusted))
    state, damaged = checkpoint.load(run_folder.path)
    if state is None:
        raise UserError("\n".join([f"{run_folder}: no checkpoint to load", *_told(damaged)]))
    with torch.device("meta"):
        model = model_of(config, tuple(state["frozen"]["shape"]), state["frozen"]["classes"])
    model.load_state_dict(state["training"]["model"], assign=True)
    return model.eval(), config


def run(folder: RunFolder, trusted: Sequence[str] = ()) -> dict[str, Any]:
    """Train the folder's run to its end, from its last checkpoint if it has one, and return its result.

    Raises:
        Interrupted: a signal came; the state is saved.
        UserError: it cannot go on; this and any other failure is also noted in result.json.
    """
    if folder.is_complete:
        return folder.result
    with folder.lock():
        if folder.is_complete:  # by another process, a moment ago
            return folder.result
        (folder.path / "result.json").unlink(missing_ok=True)
        try:
            result = _train(folder, replace(folder.config, trusted_targets=list(trusted)))
            folder.write_json("result.json", result)
        except Interrupted as stop:
            command = ["python", "-m", "deepnets.run", str(folder), *(f"--trust={target}" for target in trusted)]
            print(f"\nstopped by {stop}; {folder} is saved. Continue with the same command", file=sys.stderr)
            print(f"or with: {shlex.join(command)}", file=sys.stderr)
            raise
        except Exception as error:
            _note_failure(folder, error)
            if isinstance(error, OSError):
                raise UserError(f"{folder}: {error}") from error
            raise
    return result


def _train(folder: RunFolder, config: Config) -> dict[str, Any]:
    saved, damaged = checkpoint.load(folder.path)
    for name in damaged:  # or the next checkpoint would push it over the intact one
        (folder.path / name).unlink()
    device = find_device(config.device)
    frozen = saved["frozen"] if saved else environment_of(config, device)
    if saved and (data := data_of(config, device)) != frozen["data"]:
        where = config.dataset.get("root")
        raise UserError(f"{folder}: began on other data than those in {where}: {differing(frozen['data'], data)}")
    torch.set_num_threads(frozen["threads"])
    training = prepare(config, device, getattr(torch, frozen["precision"]))
    remarks, history, seconds = [protocol_of(config, training), *_told(damaged)], [], 0.0
    if saved:
        training.load_state_dict(saved["training"])
        history, seconds = saved["history"], saved["seconds"]
        remarks.append(f"continuing at iteration {training.iteration} of {training.iterations}")
    remarks += changes_since(folder, config, frozen, device)

    def save() -> None:
        log.flush()
        state = {"training": training.state_dict(), "history": history, "seconds": log.seconds, "frozen": frozen}
        checkpoint.save(folder.path, state)

    diverged = False
    with Interruption() as interruption, Log(folder, training, history, seconds, config.log_iterations) as log:
        for remark in remarks:
            log.remark(remark)
        saved_at = time.monotonic()
        for state in fit(training):
            log.iteration(state)
            if diverged := _is_non_finite(state):
                break
            if state.completed:
                log.epoch(state)
            if interruption.received or time.monotonic() - saved_at >= config.checkpoint_seconds:
                save()
                saved_at = time.monotonic()
            if interruption.received:
                raise Interrupted(interruption.received)
        if not diverged:
            save()
        log.write_metrics()
        return result_of(config, training, history, log.seconds, "diverged" if diverged else "finished", frozen)


def _is_non_finite(state: Training) -> bool:
    """Whether a loss is; the device is asked at fixed iterations, so that a diverged run ends at the same one again."""
    if state.completed:
        return not all(math.isfinite(mean.loss) for mean in state.completed.values())
    return state.iteration % FINITE_CHECK_ITERATIONS == 0 and not state.sums.values[0].isfinite().item()


def _told(damaged: dict[str, str]) -> list[str]:
    return [f"{name} is damaged and was not used ({damage})" for name, damage in damaged.items()]


def _note_failure(folder: RunFolder, error: Exception) -> None:
    try:
        with (folder.path / "log.txt").open("a") as file:
            file.write("".join(traceback.format_exception(error)))
        folder.write_json("result.json", {"status": "failed", "reason": f"{type(error).__name__}: {error}"})
    except OSError as unwritable:  # the disk that is full may be what failed: the first error is the one to show
        print(f"{folder}: the failure could not be noted there ({unwritable})", file=sys.stderr)


def main() -> int:
    """Start or continue the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Start or continue a run folder.")
    parser.add_argument("folder", help="a folder that scripts/train.py has set up")
    parser.add_argument("--trust", action="append", default=[], metavar="TARGET", help="a class of your own it may use")
    arguments = parser.parse_args()
    folder = RunFolder(arguments.folder)
    print(f"{folder}: {describe_result(run(folder, arguments.trust))}")
    return 0


if __name__ == "__main__":
    run_command(main)
