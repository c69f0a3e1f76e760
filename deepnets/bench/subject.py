"""What is measured: the run that the options of scripts/train.py compose, and the device that it runs on."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepnets.config.compose import compose
from deepnets.config.schema import Config
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training
from deepnets.training.hardware import choose_precision, find_device


@dataclass(frozen=True)
class Subject:
    """A run's configuration as `overrides` compose it, its device and its arithmetic."""

    overrides: tuple[str, ...]
    config: Config
    device: torch.device
    precision: torch.dtype

    def training(self) -> Training:
        """The run at its beginning."""
        return prepare(self.config, self.device, self.precision)


def subject_of(overrides: Sequence[str]) -> Subject:
    """The subject that scripts/train.py makes of these overrides."""
    config = compose(overrides).config
    device = find_device(config.device)
    return Subject(tuple(overrides), config, device, choose_precision(config.precision, device))


def add_subject(parser: argparse.ArgumentParser, model: str, dataset: str = "cifar10") -> None:
    """What a bench of one network asks; `model` and `dataset` are the default ones."""
    if dataset != "synthetic":
        parser.add_argument("--root", metavar="DIR", help=f"folder with {dataset}, as dataset.root of scripts/train.py")
    parser.add_argument("--model", default=model, help=f"the network, as in conf/model (default: {model})")
    parser.add_argument("overrides", nargs="*", metavar="OPTION", help="any other option of scripts/train.py")
    parser.set_defaults(dataset=dataset)


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The overrides that `add_subject` asked for; an OPTION replaces what would follow from the others."""
    words = {"model": arguments.model, "dataset": arguments.dataset}
    if getattr(arguments, "root", None):
        words["dataset.root"] = arguments.root
    given = {word.partition("=")[0] for word in arguments.overrides}
    return [*(f"{key}={value}" for key, value in words.items() if key not in given), *arguments.overrides]


def chosen(arguments: argparse.Namespace) -> Subject:
    """The subject of `words_of`."""
    return subject_of(words_of(arguments))
