"""Execute one run folder: `python -m deepnets.run FOLDER` starts or continues it."""

import argparse
import os
import sys
from pathlib import Path

from deepnets.distributed.signals import Interrupted, block_signals
from deepnets.system import begin

if __name__ == "__main__":
    begin()
    block_signals()  # importing torch takes seconds; a signal that comes meanwhile waits for `run`

import torch
from torch import nn

from deepnets.command import add_code_options, run_command
from deepnets.config.compose import compose
from deepnets.config.hydra_errors import HYDRA_ERRORS, explain
from deepnets.config.schema import Config
from deepnets.config.trust import Trust, choosing_code, trusted_search, trusting
from deepnets.distributed import spawn
from deepnets.distributed.world import world_from_env
from deepnets.errors import UserError, printable
from deepnets.runs.classifier import Classifier, classifier_of, with_input
from deepnets.runs.execute import LOCKED, run
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.resume import AnotherFailed
from deepnets.runs.weights import read_weights
from deepnets.system.printing import print_error
from deepnets.training.assembly import dataset_of, model_of


def build_model(overrides: list[str], trust: Trust = ()) -> nn.Module:
    """Build a freshly initialised network from overrides of `scripts/train.py`, e.g. `["model=resnet110", "seed=1"]`.

    The network maps images (N, C, H, W) to logits (N, classes); the data set decides C, H, W and classes, but its files
    need not exist. A run with these overrides starts from the same weights. `trust` is the value of --trust: your own
    classes, modules, files of Python, or your project's file, whose options can then be chosen too.

    Raises:
        UserError: there is no such option or key, a value is illegal, or `deepnets.config.trust.trust` refuses `trust`.
    """
    with trusting(trust):
        try:
            config = compose(overrides, trusted_search()).config
        except HYDRA_ERRORS as error:
            raise UserError(explain(error)) from None
        torch.manual_seed(config.seed)
        dataset = dataset_of(config)
        return model_of(config, dataset.shape, dataset.classes)


def load_run(
    folder: str | Path,
    trust: Trust = (),
    allow_previous: bool = False,
    code: str | None = None,
    iteration: int | None = None,
) -> tuple[nn.Module, Config]:
    """Load a run's network from its last checkpoint, in evaluation mode on the CPU, and the run's configuration.

    If there is no checkpoint, the weights are read from `weights.safetensors`, as in a record or an export. Their
    iteration is printed. A finished run must have the weights of its last iteration; if its last checkpoint is damaged
    or missing, `allow_previous` accepts earlier weights. With `iteration`, the weights of this iteration are read, if
    keep_checkpoints=N or selection=best_validation has kept them.

    `trust` is the value of --trust: your own classes, modules, files of Python, or your project's file. If your code
    has changed since the run was trained, `code="frozen"` executes the copy beside the run, which must be the code that
    trained it, and `code="current"` executes today's; a Python process can execute only one version of a module. The
    data need not exist.

    Raises:
        OtherCode: your code has changed, and `code` is None.
        UserError: the folder is no run folder, or its weights are missing, damaged or of another iteration.
    """
    with trusting(trust), choosing_code(code):
        weights = read_weights(folder, allow_previous, iteration)
        return weights.model(), weights.config


def load_classifier(
    folder: str | Path,
    trust: Trust = (),
    allow_previous: bool = False,
    data: str | Path | None = None,
    code: str | None = None,
    iteration: int | None = None,
) -> Classifier:
    """Load the network of `load_run`, on the CPU, with everything that turns an image file into a class.

    `classifier.read(file)` gives an image (H, W, C) uint8, and `classifier.predict(images)` the probabilities
    (N, classes) of images (N, H, W, C) uint8, in the order of `classifier.classes`. `data` is the folder of the run's
    data; only a run of an earlier version needs it, because that version did not store the normalisation. `trust`,
    `allow_previous`, `code` and `iteration` are as in `load_run`.

    Raises:
        UserError: `load_run` raises it; or the run has not stored its normalisation, and `data` is not given or not
            its data.
    """
    with trusting(trust), choosing_code(code):
        weights = read_weights(folder, allow_previous, iteration)
        return classifier_of(with_input(weights, folder, data))


def main() -> int:
    """Start or continue the run folder that the command line names."""
    parser = argparse.ArgumentParser(description="Start or continue a run folder.")
    parser.add_argument("folder", help="the folder of a run")
    add_code_options(parser)
    parser.add_argument("--quiet", action="store_true", help="print neither the result nor an error")
    arguments = parser.parse_args()
    folder, world, code = RunFolder(arguments.folder), world_from_env(), 0
    try:
        result = run(folder)
        if world.is_first and not arguments.quiet:
            print(printable(f"{folder}: {describe_result(result)}"))
    except Interrupted as stop:
        code = 0 if folder.is_complete else stop.exit_code
    except AnotherFailed:
        code = 1
    except Locked as error:
        if not arguments.quiet:
            print_error(f"error: {error}")
        code = LOCKED
    except UserError:
        if not arguments.quiet:
            raise
        code = 1
    if world.size > 1:
        # A thread of gloo that still holds a tensor would sometimes abort the process when the interpreter ends.
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == [spawn.SERVE]:
        # For launcher=pool. Until here this process has only imported. In particular, it has not asked CUDA for
        # devices: after that, a fork could not use them, nor choose others by CUDA_VISIBLE_DEVICES.
        sys.argv[1:] = spawn.serve(*sys.argv[2:])
    run_command(main)
