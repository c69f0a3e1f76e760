"""Which rows of a grid can be trained at once, as one batched network."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from deepnets.config.identity import flat, identity
from deepnets.config.schema import Config, StepKind
from deepnets.models.settings import Memory
from deepnets.runs import checkpoint
from deepnets.runs.folder import RunFolder
from deepnets.runs.saved import malformed
from deepnets.training import stack
from deepnets.training.assembly import dataset_of, model_of
from deepnets.training.hardware import with_counted_devices

OPTIMIZERS = ("deepnets.optimizer.sgd", "deepnets.optimizer.scalar_sgd", "deepnets.optimizer.caffe_sgd")
# What may differ: each row has its own start, order of images, rates and schedule.
OWN = (
    "seed",
    "setting",
    "schedule",
    "optimizer.lr",
    "optimizer.momentum",
    "optimizer.nesterov",
    "optimizer.weight_decay",
    "model.initialization",
    "model.shortcut.bias",
)
SHARED = ("device", "threads")  # of the keys that say where a run executes


def groups_of(
    folders: Sequence[RunFolder], most: int, trusted: Sequence[str] = ()
) -> tuple[list[list[RunFolder]], dict[RunFolder, str]]:
    """Groups of up to `most` folders to be trained at once, in the order of their first; and why others are alone.

    `trusted` names the user's own classes that their configurations may use.
    """
    by_key: dict[Any, list[RunFolder]] = {}
    alone: dict[RunFolder, str] = {}
    for number, folder in enumerate(folders):
        key: Any = number
        if most > 1:
            config = replace(folder.config, trusted_targets=list(trusted))
            if reason := obstacle(config):
                alone[folder] = reason
            else:
                key = (_shared(config), _position(folder))
        by_key.setdefault(key, []).append(folder)
    groups = [same[first : first + most] for same in by_key.values() for first in range(0, len(same), most)]
    for group in groups:
        if len(group) == 1 and most > 1:
            alone.setdefault(group[0], "no other row that is left has its network, data, budget and iteration")
    places = {folder: place for place, folder in enumerate(folders)}
    return sorted(groups, key=lambda group: places[group[0]]), alone


def obstacle(config: Config) -> str | None:
    """Why the run cannot be trained at once with others of its kind; None when it can."""
    config = with_counted_devices(config)
    if config.devices > 1:
        return f"devices={config.devices}: only runs of one process can be stacked"
    if config.memory is not Memory.full:
        return f"memory={config.memory}: only runs with memory=full can be stacked"
    if config.step is not StepKind.eager:
        return f"step={config.step}: only runs with step=eager can be stacked"
    if config.optimizer["_target_"] not in OPTIMIZERS:
        return f"optimizer {config.optimizer['_target_']}: only SGD can be stacked"
    if config.clip_gradient_norm is not None:
        return f"clip_gradient_norm={config.clip_gradient_norm}: only runs without it can be stacked"
    dataset = dataset_of(config)
    if dataset.is_streamed:
        return "images that are decoded while a network trains cannot be stacked"
    with torch.device("meta"):
        model = model_of(config, dataset.shape, dataset.classes)
    return stack.obstacle(model, dataset.shape)


def _shared(config: Config) -> str:
    """What must be equal in all rows of a group."""
    values = flat(identity(config)) | {key: getattr(config, key) for key in SHARED}
    values["dataset.root"] = config.dataset.get("root")
    kept = {key: value for key, value in values.items() if not any(f"{key}.".startswith(f"{own}.") for own in OWN)}
    return json.dumps(kept, sort_keys=True)


def _position(folder: RunFolder) -> tuple | None:
    """Where the last whole checkpoint stands, and the arithmetic it began with; None without one."""
    saved, _ = checkpoint.load(folder.path, malformed)
    if saved is None:
        return None
    frozen = saved["frozen"]
    return saved["training"]["iteration"], saved["training"]["batch"], frozen["threads"], frozen["precision"]
