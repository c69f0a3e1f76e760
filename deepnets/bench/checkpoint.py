"""Seconds that a checkpoint takes, against the training between two of them (checkpoint_seconds, 60 by default)."""

import argparse
import tempfile
import time
from pathlib import Path

from deepnets.bench.figures import Figures, in_turns
from deepnets.bench.subject import Subject, subject_of
from deepnets.runs import checkpoint
from deepnets.training.fit import Training, fit

MODELS = "resnet20,resnet110,preact1001"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--models", default=MODELS, help=f"as in conf/model, with commas (default: {MODELS})")
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured (default: the temporary one)")
    parser.add_argument("overrides", nargs="*", metavar="OPTION", help="any other option of scripts/train.py")


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Write checkpoints, one over the other, of each network."""
    figures = []
    for model in arguments.models.split(","):
        # The size of a batch is none of the checkpoint's; two images make the momentum that it holds.
        words = [f"model={model}", "dataset=synthetic", "batch_size=2", "dataset.source.train=4", *arguments.overrides]
        figures.append(_of(model, subject_of(words), arguments))
    return figures


def _of(model: str, subject: Subject, arguments: argparse.Namespace) -> Figures:
    training = subject.training()
    next(fit(training))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        values = in_turns({"checkpoint": lambda: _seconds(training, Path(folder))}, arguments.repeats)
        size = (Path(folder) / checkpoint.LAST).stat().st_size
    between = subject.config.checkpoint_seconds
    values["training between two"] = [between] * arguments.repeats
    return Figures(f"checkpoint of {model}", "seconds", values, notes=[f"{size:,} bytes"])


def _seconds(training: Training, folder: Path) -> float:
    """To take the state from the device, to write it and to have it on the disk, as `execution.train` does."""
    started = time.perf_counter()
    checkpoint.save(folder, {"training": training.state_dict(), "history": [], "observed": [], "seconds": 0.0})
    return time.perf_counter() - started
