"""Execute one run folder: `python -m deepnets.run FOLDER` starts or continues it."""

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import nn

from deepnets import checkpoint
from deepnets.command import run_command
from deepnets.config import CONF, Config, Selection, register, typed
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.dataset import Dataset, Splits
from deepnets.errors import UserError
from deepnets.fit import Training, fit
from deepnets.folder import RunFolder, identity_hash
from deepnets.hardware import choose_precision, describe, find_device
from deepnets.interruption import Interrupted, Interruption
from deepnets.log import Log, describe_result
from deepnets.metrics import Sums
from deepnets.nodes import build
from deepnets.revision import git_commit

THREADS = torch.get_num_threads()  # as this process started with, whatever an earlier row of a grid has set


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
    dataset = _dataset(config)
    return _model(config, dataset.shape, dataset.classes)


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
        raise UserError("\n".join([f"{run_folder}: no checkpoint to load", *damaged]))
    with torch.device("meta"):
        model = _model(config, tuple(state["frozen"]["shape"]), state["frozen"]["classes"])
    model.load_state_dict(state["training"]["model"], assign=True)
    return model.eval(), config


def check(config: Config) -> None:
    """Whether a run can be executed: everything short of training it. Its data are read and stay in memory.

    Raises:
        UserError: names the first thing that is wrong.
    """
    device = find_device(config.device)
    dataset = _dataset(config)
    for name in ("batch_size", "evaluation_batch_size", "log_iterations"):
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1")
    if config.batch_size > dataset.training_size:
        raise UserError(
            f"batch_size={config.batch_size}: larger than the training set of {dataset.training_size} images"
        )
    if config.threads is not None and config.threads < 1:
        raise UserError(f"threads={config.threads}: must be at least 1, or null for as many as torch takes")
    if config.selection is Selection.best_validation and not config.dataset["validation"]:
        raise UserError("selection=best_validation: needs a validation split; add for example dataset.validation=5000")
    iterations = _iterations(config, dataset)
    build("schedule", config.schedule, config.trusted_targets, total=iterations)
    build("optimizer", config.optimizer, config.trusted_targets, model=nn.Linear(1, 1))
    with torch.device("meta"):
        _model(config, dataset.shape, dataset.classes)
    _splits(dataset, device)


def run(folder: RunFolder, trusted: Sequence[str] = ()) -> dict[str, Any]:
    """Train the folder's run to its end, from its last checkpoint if it has one, and return its result.

    Raises:
        Interrupted: a signal came; the state is saved.
        UserError: it cannot go on; this and any other failure is also noted in result.json.
    """
    if folder.is_complete:
        return folder.result
    with folder.lock():
        (folder.path / "result.json").unlink(missing_ok=True)
        try:
            result = _train(folder, replace(folder.config, trusted_targets=list(trusted)))
        except Exception as error:
            _note_failure(folder, error)
            raise
        folder.write_json("result.json", result)
    return result


def _train(folder: RunFolder, config: Config) -> dict[str, Any]:
    saved, remarks = checkpoint.load(folder.path)
    device = find_device(config.device)
    frozen = saved["frozen"] if saved else _environment(config, device)
    torch.set_num_threads(frozen["threads"])
    training = prepare(config, device, getattr(torch, frozen["precision"]))
    history, seconds = [], 0.0
    if saved:
        training.load_state_dict(saved["training"])
        history, seconds = saved["history"], saved["seconds"]
        remarks.append(f"continuing at iteration {training.iteration} of {training.iterations}")
    for remark in remarks + _changes(folder, frozen, device):
        print(f"{folder}: {remark}", flush=True)

    def save() -> None:
        log.flush()
        state = {"training": training.state_dict(), "history": history, "seconds": log.seconds, "frozen": frozen}
        checkpoint.save(folder.path, state)

    diverged = False
    with Interruption() as interruption, Log(folder, training, history, seconds, config.log_iterations) as log:
        saved_at = time.monotonic()
        for state in fit(training):
            diverged = log.iteration(state)
            if state.completed and math.isfinite(state.completed["train"].loss):
                log.epoch(state)
            elif state.completed:
                diverged = True
            if diverged:
                break
            if interruption.received or time.monotonic() - saved_at >= config.checkpoint_seconds:
                save()
                saved_at = time.monotonic()
            if interruption.received:
                raise Interrupted(interruption.received)
        if not diverged:
            save()
        log.write_metrics()
        return _result(config, training, history, log.seconds, "diverged" if diverged else "finished", frozen)


def prepare(config: Config, device: torch.device, precision: torch.dtype) -> Training:
    dataset = _dataset(config)
    splits = _splits(dataset, device)
    torch.manual_seed(config.seed)
    model = _model(config, dataset.shape, dataset.classes).to(device, memory_format=torch.channels_last)
    optimizer = build("optimizer", config.optimizer, config.trusted_targets, model=model)
    iterations = _iterations(config, dataset)
    schedule = build("schedule", config.schedule, config.trusted_targets, total=iterations)
    evaluated = {"validation": splits.validation, "test": splits.test}
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        batches=TrainingBatches(
            splits.train,
            splits.normalization,
            pad=dataset.pad,
            flip=dataset.flip,
            batch_size=config.batch_size,
            seed=config.seed,
        ),
        evaluated={
            name: EvaluationBatches(split, splits.normalization, batch_size=config.evaluation_batch_size)
            for name, split in evaluated.items()
            if split is not None
        },
        iterations=iterations,
        device=device,
        precision=precision,
        sums=Sums(device),
    )


def _model(config: Config, shape: tuple[int, int, int], classes: int) -> nn.Module:
    return build("model", config.model, config.trusted_targets, shape=shape, classes=classes)


def _dataset(config: Config) -> Dataset:
    return _built_dataset(json.dumps([config.dataset, config.trusted_targets], sort_keys=True))


@lru_cache(maxsize=4)
def _built_dataset(key: str) -> Dataset:
    node, trusted = json.loads(key)
    return build("dataset", node, trusted)


@lru_cache(maxsize=4)
def _splits(dataset: Dataset, device: torch.device) -> Splits:
    """The images, shared by all rows of this process that name the same dataset node."""
    return dataset.load(device)


def _iterations(config: Config, dataset: Dataset) -> int:
    budgets = {"epochs": config.epochs, "iterations": config.iterations}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) != 1:
        what = " and ".join(f"{name}={value}" for name, value in budgets.items())
        raise UserError(f"{what}: give one of them and null for the other, as in 'epochs=null iterations=64000'")
    ((name, value),) = given.items()
    if value < 1:
        raise UserError(f"{name}={value}: must be at least 1")
    return value if name == "iterations" else value * math.ceil(dataset.training_size / config.batch_size)


def _environment(config: Config, device: torch.device) -> dict[str, Any]:
    """What must stay the same for a continued run to be bit-identical; kept in the checkpoint."""
    dataset = _dataset(config)
    precision = choose_precision(config.precision, device)
    return {
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "threads": config.threads or THREADS,
        "precision": str(precision).removeprefix("torch."),
        "device": describe(device),
        "torch": str(torch.__version__),
    }


def _changes(folder: RunFolder, frozen: dict[str, Any], device: torch.device) -> list[str]:
    """A line about each thing that is no longer as it was when the run started."""
    now = {"torch": str(torch.__version__), "device": describe(device)}
    remarks = [
        f"started with {name} {frozen[name]}, continues with {now[name]}" for name in now if frozen[name] != now[name]
    ]
    commit, frozen_commit = git_commit(), folder.origin.get("commit")
    if commit != frozen_commit:
        remarks.append(f"the code is at commit {commit}, the run was set up at {frozen_commit}")
    return remarks


def _result(
    config: Config,
    training: Training,
    history: list[dict[str, Any]],
    seconds: float,
    status: str,
    frozen: dict[str, Any],
) -> dict[str, Any]:
    last = history[-1] if history else {}
    selected = last
    if config.selection is Selection.best_validation and history:
        selected = min(history, key=lambda row: row["validation_error"])
    speeds = sorted(row["images_per_second"] for row in history)
    return {
        "status": status,
        "test_error": selected.get("test_error"),
        "selection": config.selection.value,
        "selected_epoch": selected.get("epoch"),
        "last_test_error": last.get("test_error"),
        "best_test_error": min((row["test_error"] for row in history), default=None),
        "train_error": last.get("train_error"),
        "validation_error": selected.get("validation_error"),
        "epochs": training.epoch,
        "iterations": training.iteration,
        "seconds": round(seconds, 2),
        "images_per_second": speeds[len(speeds) // 2] if speeds else None,
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "identity": identity_hash(config),
        "commit": git_commit(),
        "versions": {name: version(name) for name in ("torch", "hydra-core", "numpy")},
        "python": sys.version.split()[0],
        **{name: frozen[name] for name in ("device", "precision", "threads")},
    }


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
