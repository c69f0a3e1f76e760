"""Execute one run folder: `python -m deepnets.run FOLDER` starts or continues it."""

import argparse
import os
import sys
from pathlib import Path

from deepnets.distributed.signals import Interrupted, block_signals
from deepnets.system import begin

if __name__ == "__main__":
    begin()
    block_signals()  # importing torch takes seconds; a signal meanwhile waits for `run`

import torch
from torch import nn

from deepnets.command import add_code_options, run_command
from deepnets.config.compose import compose
from deepnets.config.schema import Config
from deepnets.config.trust import Trust, choosing_code, trusted_search, trusting
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
    need not exist. A run with these overrides starts from the same weights. `trust` names what --trust names: your
    own classes, modules, files of Python, or your project's file, whose options are found too.

    Raises:
        UserError: a value is illegal, or as `deepnets.config.trust.trust`.
        hydra.errors.HydraException: an unknown option or key.
    """
    with trusting(trust):
        config = compose(overrides, trusted_search()).config
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

    If there is no checkpoint, it reads `weights.safetensors`, which records and `deepnets export` have. It prints the
    iteration of the weights. A finished run must have the weights of its last iteration; if its last checkpoint is
    damaged or missing, `allow_previous` accepts earlier ones. With `iteration` it loads the weights that
    keep_checkpoints=N kept of it.

    `trust` names what --trust names: your own classes, modules, files of Python, or your project's file. If they have
    changed since the run was trained, `code="frozen"` executes the copy of them beside the run, which must be what was
    trained, and `code="current"` executes today's. The data need not exist.

    Raises:
        OtherCode: your code has changed, and `code` is None.
        UserError: the folder is no run folder, or holds no intact weights, or none of its result or of `iteration`.
    """
    with trusting(trust), choosing_code(code):
        weights = read_weights(folder, allow_previous, iteration)
        return weights.model(), weights.config


def load_classifier(
    folder: str | Path, trust: Trust = (), allow_previous: bool = False, data: str | Path | None = None
) -> Classifier:
    """Load the network of `load_run`, on the CPU, with everything that turns an image file into a class.

    `classifier.read(file)` gives an image (H, W, C) uint8, and `classifier.predict(images)` the probabilities
    (N, classes) of images (N, H, W, C) uint8, in the order of `classifier.classes`. `data` is the folder of the run's
    data, which only runs of earlier versions need, as they did not store their normalisation.

    Raises:
        UserError: as `load_run`; or the normalisation is not stored, and `data` is not given or not the run's.
    """
    with trusting(trust):
        weights = read_weights(folder, allow_previous)
        return classifier_of(with_input(weights, folder, data))


def main() -> int:
    """Start or continue the run folder that the command line names."""
    parser = argparse.ArgumentParser(description="Start or continue a run folder.")
    parser.add_argument("folder", help="a folder that scripts/train.py has set up")
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
        # At the interpreter's end, a thread of gloo that still holds a tensor would sometimes abort the process.
        sys.stdout.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    run_command(main)
