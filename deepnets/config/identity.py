"""When two runs are the same: the settings that make a run what it is, apart from where and how it executes."""

import copy
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from deepnets.config.schema import Config
from deepnets.models.settings import units_of_stages

LONGEST_NAME = 160  # bytes; file systems allow 255

RESNET = "deepnets.models.resnet.ResNet"
PLAIN_LOSS = {"_target_": "deepnets.loss.CrossEntropy", "smoothing": 0.0}

# What may change without making it another run: where it executes, reads and writes. All other keys are its identity.
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


def is_execution(key: str) -> bool:
    """Whether the key, or the node it stands in, is one of `EXECUTION_KEYS`: `launcher.time` is, for `launcher` is."""
    return any(key == other or key.startswith(other + ".") for other in EXECUTION_KEYS)


def identity(config: Config) -> dict[str, Any]:
    """The settings that make the run what it is: all but `EXECUTION_KEYS`.

    One net has one identity: a depth stands in it as the numbers of units that it means.
    """
    return _canonical(plain_values(config))


def plain_values(node: Any) -> Any:
    """Nested dataclasses as dictionaries, enumerations by name."""
    if is_dataclass(node):
        return {field.name: plain_values(getattr(node, field.name)) for field in fields(node)}
    if isinstance(node, dict):
        return {key: plain_values(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain_values(value) for value in node]
    return node.name if isinstance(node, Enum) else node


def _canonical(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` without `EXECUTION_KEYS`, and with units in place of a depth; in place."""
    for key in EXECUTION_KEYS:
        *path, last = key.split(".")
        node: Any = settings
        for step in path:
            node = node.get(step, {})
        node.pop(last, None)
    model = settings.get("model")
    if isinstance(model, dict) and model.get("_target_") == RESNET and model.get("units") is None:
        with suppress(KeyError, TypeError, ValueError):  # building the net says what is wrong with it
            stages, kernels = len(model["widths"]), len(model["kernels"])
            model["units"] = units_of_stages(model["depth"], None, stages, kernels)
            model["depth"] = None
    return settings


def difference(settings: dict[str, Any], config: Config) -> dict[str, tuple[Any, Any]]:
    """By dotted key, what other `settings` have otherwise than `config`, and what that has."""
    # Both are upgraded: an option of the user's own may lack a key that was added later.
    there, here = (flat(_canonical(upgrade(each))) for each in (settings, plain_values(config)))
    keys = sorted(key for key in {*there, *here} if there.get(key, "absent") != here.get(key, "absent"))
    return {key: (there.get(key, "absent"), here.get(key, "absent")) for key in keys}


def identity_hash(config: Config) -> str:
    """Twelve hexadecimal digits that are equal exactly when two runs are the same.

    A key that a later version adds does not change them where it has the value that changes nothing.
    """
    settings = identity(config)
    for step in STEPS:
        if isinstance(step, Added) and (node := step.node(settings)) and node.get(step.name) == step.neutral:
            node.pop(step.name, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested settings by dotted key; a list is one value."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        key: value for name, child in node.items() for key, value in flat(child, f"{prefix}.{name}".lstrip(".")).items()
    }


def plain(name: str) -> str:
    """A folder's name: without what a shell would have to quote; long ones end in a hash."""
    plain = re.sub(r"[^\w.=+,-]", "", name.replace("/", "."))
    if len(plain.encode()) <= LONGEST_NAME:
        return plain
    ending = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain.encode()[: LONGEST_NAME - 9].decode(errors="ignore") + "~" + ending


Frozen = dict[str, Any]


def upgrade(frozen: Frozen) -> Frozen:
    """The settings of a run folder's `config.yaml`, whichever version wrote it, as this version writes them.

    Applied wherever a frozen configuration is read, so that a folder of before is the same run afterwards. Whoever
    adds, drops or moves a key adds a step to `STEPS`; each is tested with a frozen folder.
    """
    frozen = copy.deepcopy(frozen)
    for step in STEPS:
        frozen = step(frozen)
    return frozen


@dataclass(frozen=True)
class Added:
    """A step for a key that did not exist: it gets, in place, the value that does what was done without it.

    Attributes:
        key: dotted.
        neutral: that value.
        target: the `_target_` that the node must have; None for any.
    """

    key: str
    neutral: Any
    target: str | None = None

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def node(self, frozen: Frozen) -> Frozen | None:
        """The node the key belongs into; None where that is absent or of another class."""
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
    """A step for a key that does not exist any more, and was no part of a run's identity.

    Attributes:
        key: at the top of a configuration.
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
    Added("loss", PLAIN_LOSS),
    Added("weights", None),
    Added("weights_hash", None),
    Added("dataset.augmentation", [], target="deepnets.data.dataset.Dataset"),
)
