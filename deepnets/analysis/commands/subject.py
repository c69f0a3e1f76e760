"""The subject of an analysis: a network, from a run folder or freshly built from the options typed, and its data."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from deepnets.analysis.commands.output import whole_numbers
from deepnets.analysis.walk import check_parts, recalibrate_batchnorm
from deepnets.command import add_trust_option, add_weights_options, filled
from deepnets.config.build import own_targets
from deepnets.config.compose import compose
from deepnets.config.project import CONF
from deepnets.config.schema import Config, Sweep
from deepnets.config.trust import trusted_search
from deepnets.data.batches import EvaluationBatches
from deepnets.errors import UserError
from deepnets.models.layers import LAYERS
from deepnets.models.resnet import ResNet
from deepnets.run import load_run
from deepnets.runs.folder import RunFolder
from deepnets.runs.initial_weights import start_from_weights
from deepnets.runs.naming import folder_of
from deepnets.training.assembly import dataset_of, model_of, splits_of
from deepnets.training.hardware import find_device, set_arithmetic

UNTRAINED = ", untrained"  # in the name of a fresh network
NUMBER = re.compile(r"-?[\d.]+(e[+-]?\d+)?|true|false|null", re.IGNORECASE)  # says nothing without its axis


@dataclass(frozen=True)
class Subject:
    """A network in evaluation mode on `device`, with float32 weights; its analyses are written below `folder`."""

    name: str
    model: nn.Module
    config: Config
    folder: Path
    trained: bool
    device: torch.device

    def batches(self, split: str, images: int | None = None) -> EvaluationBatches:
        """Return all images of split "train" or "test" in order; with `images`, that many random ones, always the same.

        Training images are not augmented. We draw the images at random because a class-folder tree is sorted by class:
        groups of a batch that are normalised separately would see one class each.

        Raises:
            UserError: `images` is below 1.
        """
        splits = splits_of(dataset_of(self.config), self.device)
        chosen = getattr(splits, split)
        if images is not None and images < 1:
            raise UserError(f"--images {images}: take at least 1, or leave it out for all {len(chosen)}")
        if images is not None:
            order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))
            chosen = chosen.select(order[:images].to(self.device))
        return splits.evaluation_batches(chosen, batch_size=self.config.evaluation_batch_size)

    def settled(self) -> nn.Module:
        """Return the network; if it is untrained, its batch statistics are first set to those of one training batch."""
        if not self.trained and any(isinstance(module, nn.BatchNorm2d) for module in self.model.modules()):
            recalibrate_batchnorm(self.model, next(iter(self.batches("train", self.config.evaluation_batch_size)))[0])
        return self.model

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by label."""
        return dataset_of(self.config).source.classes


def add_subject(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the options that all analyses of networks share: the subject, its data and weights, device and output."""
    parser.add_argument(
        "subject",
        nargs="*" if optional else "+",
        metavar="SUBJECT",
        help="a run folder, or options as of a training",
    )
    parser.add_argument("--root", type=filled, metavar="DIR", help="folder of the data (default: the run's)")
    parser.add_argument("--output", type=Path, help="folder for the results (default: analysis/ in the run folder)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default)")
    parser.add_argument(
        "--iteration",
        metavar="I,J,...",
        help="take the weights of these iterations, which keep_checkpoints=N or selection=best_validation kept",
    )
    add_weights_options(parser)


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the options of an analysis that reads run results; it needs no device, since no network is evaluated."""
    parser.add_argument("subject", nargs="+", type=Path, metavar="FOLDER", help="run folders, or folders of them")
    add_trust_option(parser)
    parser.add_argument("--output", type=Path, help="folder for the results (default: analysis/ in the first folder)")


def subject_of(arguments: argparse.Namespace) -> Subject:
    """Return the only subject that the command line names.

    Raises:
        UserError: the command line names several, or subjects_of refuses it.
    """
    subjects = subjects_of(arguments)
    if len(subjects) > 1 and len(arguments.subject) == 1:
        raise UserError(f"--iteration {arguments.iteration}: this analysis takes one network; name one iteration")
    if len(subjects) > 1:
        raise UserError(f"{' '.join(arguments.subject)}: {len(subjects)} networks; this analysis takes one")
    return subjects[0]


def subjects_of(arguments: argparse.Namespace) -> list[Subject]:
    """Return a subject for each run folder named, or one subject for the options typed.

    With --iteration there is a subject for each of these iterations of each folder.

    Raises:
        UserError: folders and options are mixed, the options are a sweep, or `load_run` or `compose` refuses them.
    """
    typed = arguments.subject
    folders = [word for word in typed if _is_folder(word)]
    iterations: list[int | None] = [None]
    if arguments.iteration is not None:
        iterations = [*sorted(set(whole_numbers("--iteration", arguments.iteration)))]
    if folders == typed:
        named = zip(folders, _names(folders), strict=True)
        return [_trained(Path(word), name, arguments, each) for word, name in named for each in iterations]
    if arguments.iteration is not None:
        raise UserError(
            f"--iteration {arguments.iteration}: weights are kept only in run folders; name those, not options"
        )
    if folders:
        raise UserError(f"{' '.join(typed)}: name run folders, or options such as model=preact110 dataset=cifar10")
    return [_fresh(typed, arguments)]


def one_batch(subject: Subject, images: int, split: str = "train") -> tuple[Tensor, Tensor]:
    """Return x and labels of random images of a split, always the same."""
    batches = subject.batches(split, images)
    x, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    return x, labels


def names_apart(subjects: Sequence[Subject]) -> list[str]:
    """Return each subject's name without the parts, between commas and slashes, that all names share.

    A number or a switch in the name of a sweep's row is written with the last word of its axis: `depth=8`.
    """
    names = [_with_axes(subject.name, subject.config.sweep) for subject in subjects]
    split = [re.split("[,/]", name) for name in names]
    shared = set.intersection(*map(set, split))
    return [
        ",".join(part for part in parts if part not in shared) or name for parts, name in zip(split, names, strict=True)
    ]


def fresh_network(config: Config, changes: Mapping[str, Any], seed: int) -> nn.Module:
    """Build the network that a run of `config` with this seed starts from, after `changes` to the `model` node.

    Raises:
        UserError: the node has no such entries, or they do not go together.
    """
    is_residual = config.model.get("_target_") == f"{ResNet.__module__}.{ResNet.__name__}"
    if unknown := sorted(set(changes) - {*config.model, *["own_layers"] * is_residual}):
        raise UserError(
            f"{config.model['_target_']} has no {', '.join(unknown)}: this works for networks of model=resnet"
        )
    dataset, node = dataset_of(config), config.model | dict(changes)
    if own := (config.model.get("own_layers") or {}) | (changes.get("own_layers") or {}):  # these of both, if used
        used = {*LAYERS, *node["layer"], *node["after"], *(node["stem"] or ())}
        node["own_layers"] = {name: layer for name, layer in own.items() if name in used}
    torch.manual_seed(seed)
    model = model_of(replace(config, model=node), dataset.shape, dataset.classes)
    if not changes:
        start_from_weights(model, config, dataset.classes)
    return model.eval()


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """Move `model` to the device, without weight gradients, in the memory format and arithmetic of all analyses."""
    set_arithmetic()
    return model.to(device).to(memory_format=torch.channels_last).requires_grad_(False)


def model_option(group: str, name: str) -> dict[str, Any]:
    """Return the entries that the option `name` of conf/model/<group>/ sets in a model's node.

    Raises:
        UserError: there is no such option.
    """
    folder = CONF / "model" / group
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in names:
        raise UserError(f"model/{group}={name}: no such option; choose from {', '.join(names)}")
    keys: set[Any] = set(OmegaConf.load(folder / f"{name}.yaml")) - {"defaults"}
    model = compose(["model=resnet20", f"model/{group}={name}"]).config.model
    return {key: value for key, value in model.items() if key in keys}


def _with_axes(name: str, sweep: Sweep | None) -> str:
    *above, row, seed = ["", *name.split("/")]
    if sweep and len(values := row.split(",")) == len(sweep.axes):
        row = ",".join(
            f"{axis.rpartition('.')[2]}={value}" if NUMBER.fullmatch(value) else value
            for axis, value in zip(sweep.axes, values, strict=True)
        )
    return "/".join([*above, row, seed]).removeprefix("/")


def _is_folder(word: str) -> bool:
    """Return whether the word names a folder, even a missing one: runs/x,epochs=5/seed0, not model/block=basic."""
    key, equals, _ = word.partition("=")
    group = key.split("/")[0]
    return not equals or Path(word).is_dir() or ("/" in key and not (group and (CONF / group).is_dir()))


def _names(folders: Sequence[str]) -> list[str]:
    """Return the last parts of each run folder's path: row and seed, or more parts if these do not tell all apart."""
    paths = [Path(folder).resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        raise UserError(f"{' '.join(folders)}: a run folder is named twice")
    parts = next(parts for parts in count(2) if len({path[-parts:] for path in paths}) == len(paths))
    return ["/".join(path[-parts:]).removeprefix("//") for path in paths]


def _trained(path: Path, name: str, arguments: argparse.Namespace, iteration: int | None = None) -> Subject:
    folder = RunFolder(path)
    model, config = load_run(path, allow_previous=arguments.allow_previous, iteration=iteration)
    _check_own(model, config)
    name += "" if iteration is None else f",iteration {iteration}"
    device = find_device(arguments.device)
    config = _rooted(config, arguments.root)
    return Subject(name, placed(model, device), config, arguments.output or folder.path, True, device)


def _fresh(overrides: Sequence[str], arguments: argparse.Namespace) -> Subject:
    row = compose(overrides, trusted_search())
    if row.config.sweep:
        raise UserError(
            f"{' '.join(overrides)}: a sweep has many networks; name the options of one network, or run folders"
        )
    config = row.config
    run = folder_of(replace(row, config=config)).path
    folder = Path(config.output_root) / "analysis" / f"{run.parent.name},{run.name}"
    config = _rooted(config, arguments.root)
    model = fresh_network(config, {}, config.seed)
    _check_own(model, config)
    device = find_device(arguments.device)
    name = f"{run.parent.name}/{run.name}{UNTRAINED}"
    return Subject(name, placed(model, device), config, arguments.output or folder, False, device)


def _check_own(model: nn.Module, config: Config) -> None:
    """Check the `parts` of a network of the user's own class, if it has any; raises what `check_parts` raises."""
    if own_targets(config.model) and hasattr(model, "parts"):
        check_parts(model, dataset_of(config).shape)


def _rooted(config: Config, root: str | None) -> Config:
    """Return the configuration, with its data in the folder `root` if that is given."""
    return replace(config, dataset=config.dataset | {"root": root}) if root else config
