"""Decides whether two runs are the same experiment: whether they differ only in where and how they execute."""

import copy
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from deepnets.config.schema import Config
from deepnets.system.settings import units_of_stages

LONGEST_NAME = 160  # bytes; file systems allow 255

RESNET = "deepnets.models.resnet.ResNet"
PLAIN_LOSS = {"_target_": "deepnets.loss.CrossEntropy", "smoothing": 0.0}

# These keys say where and how a run executes, and may change. All other keys are the run's identity.
EXECUTION_KEYS = frozenset(
    {
        "dataset.root",
        "dataset.workers",
        "evaluation_batch_size",
        "devices",
        "memory",
        "batchnorm_kernel",
        "step",
        "deterministic",
        "launcher",
        "fail_fast",
        "device",
        "threads",
        "output_root",
        "name",
        "checkpoint_seconds",
        "log_iterations",
        "keep_checkpoints",
        "overwrite",
        "code",
        "reuse",
        "until",
        "hours",
        "plan",
        "weights",
        "sweep",
    }
)


@cache
def is_execution(key: str) -> bool:
    """Return whether `EXECUTION_KEYS` has the key or a node that holds it: `launcher` holds `launcher.time`."""
    return any(key == other or key.startswith(other + ".") for other in EXECUTION_KEYS)


def identity(config: Config) -> dict[str, Any]:
    """Return the settings that define the run: all but `EXECUTION_KEYS`.

    A ResNet's depth is replaced by the number of units in each stage, so that one network has one identity.
    """
    return _canonical(plain_values(config))


def plain_values(node: Any) -> Any:
    """Turn nested dataclasses into dictionaries and enumerations into their names."""
    if is_dataclass(node):
        return {field.name: plain_values(getattr(node, field.name)) for field in fields(node)}
    if isinstance(node, dict):
        return {key: plain_values(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain_values(value) for value in node]
    return node.name if isinstance(node, Enum) else node


def _canonical(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove `EXECUTION_KEYS` from `settings`, replace a ResNet's depth by its stages' units, and return `settings`."""
    for key in EXECUTION_KEYS:
        *path, last = key.split(".")
        node: Any = settings
        for step in path:
            node = node.get(step, {})
        node.pop(last, None)
    model = settings.get("model")
    if isinstance(model, dict) and model.get("_target_") == RESNET and model.get("units") is None:
        with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):  # building the net says what is wrong
            stages, kernels = len(model["widths"]), len(model["kernels"])
            model["units"] = units_of_stages(model["depth"], None, stages, kernels)
            model["depth"] = None
    return settings


def difference(settings: dict[str, Any], config: Config) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys in which `settings` differ from `config`, each with both values."""
    # `config` is upgraded too: a user's own option may lack a key that a later version added.
    others, values = (flat(_canonical(upgrade(each))) for each in (settings, plain_values(config)))
    keys = sorted(key for key in {*others, *values} if others.get(key, "absent") != values.get(key, "absent"))
    return {key: (others.get(key, "absent"), values.get(key, "absent")) for key in keys}


def identity_hash(config: Config) -> str:
    """Return twelve hexadecimal digits, which are equal for two runs exactly if the runs have the same identity.

    A key that a later version adds does not change them while the key has its neutral value.
    """
    settings = identity(config)
    for step in STEPS:
        if isinstance(step, Added) and (node := step.node(settings)) and node.get(step.name) == step.neutral:
            node.pop(step.name, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by dotted key; a list is one value."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        key: value for name, child in node.items() for key, value in flat(child, f"{prefix}.{name}".lstrip(".")).items()
    }


def folder_name(name: str) -> str:
    """Turn a name into a folder's name that a shell need not quote; a long name is cut off and ends in a hash."""
    folder = re.sub(r"[^\w.=+,-]", "", name.replace("/", "."))
    if len(folder.encode()) <= LONGEST_NAME:
        return folder
    ending = hashlib.sha256(name.encode()).hexdigest()[:8]
    return folder.encode()[: LONGEST_NAME - 9].decode(errors="ignore") + "~" + ending


Frozen = dict[str, Any]


def upgrade(frozen: Frozen) -> Frozen:
    """Turn the settings of a frozen `config.yaml` that any version wrote into those that this version would write.

    Every reader of a frozen configuration calls this, so that an older folder stays the same run. If you add, drop or
    move a key, add a step to `STEPS`; each is tested with a frozen folder.
    """
    frozen = copy.deepcopy(frozen)
    for step in STEPS:
        frozen = step(frozen)
    return frozen


@dataclass(frozen=True)
class Added:
    """Adds, in place, a key that older versions lack. Its value leaves the behaviour of a run as it was.

    Attributes:
        key: the dotted key.
        neutral: this value.
        target: the `_target_` that the key's node must have; None: any.
    """

    key: str
    neutral: Any
    target: str | None = None

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def node(self, frozen: Frozen) -> Frozen | None:
        """Return the node that the key belongs in; None if the node is absent or has another `_target_`."""
        node: Any = frozen
        for name in self.key.split(".")[:-1]:
            node = node.get(name) if isinstance(node, dict) else None
        return node if isinstance(node, dict) and self.target in (None, node.get("_target_")) else None

    def __call__(self, frozen: Frozen) -> Frozen:
        node = self.node(frozen)
        if node is not None:
            node.setdefault(self.name, self.neutral)
        return frozen


@dataclass(frozen=True)
class Removed:
    """Removes a key that no longer exists and was not part of a run's identity.

    Attributes:
        key: the key, at the top of a configuration.
    """

    key: str

    def __call__(self, frozen: Frozen) -> Frozen:
        return {key: value for key, value in frozen.items() if key != self.key}


STEPS: tuple[Callable[[Frozen], Frozen], ...] = (
    Added("batchnorm_kernel", "torch"),
    Removed("trusted_targets"),
    Added("code", None),
    Added("reuse", False),
    Added("name", None),
    Added("until", None),
    Added("hours", None),
    Added("keep_checkpoints", None),
    Added("loss", PLAIN_LOSS),
    Added("weights", None),
    Added("weights_hash", None),
    Added("dataset.augmentation", [], target="deepnets.data.dataset.Dataset"),
)
