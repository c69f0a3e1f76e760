"""The names and types of a run's settings, and of Hydra's own. Every value is in conf/, none here.

`${name:...}` in conf/ calls the functions at the end: they choose a value by the scale or by another value, or draw it
for a random search. `selected` and `value_at` read a dotted key.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, Optional

from hydra.conf import HydraConf
from omegaconf import MISSING, DictConfig, OmegaConf
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from deepnets.system.settings import Count, Memory, Name, NotNegative, Positive, PositiveFactor, Seed, Threads

CALLBACKS = {"callbacks": None}  # the entry of Hydra's own defaults list that chooses callbacks
DEFAULTS = "train"  # the file in conf/ that composes one run
TRAINED_NODES = ("model", "dataset", "optimizer", "schedule", "loss")
NODES = (*TRAINED_NODES, "launcher")  # the chosen option of these groups decides the keys below them
ABSENT = object()  # stands for the value of a key that does not exist


class Precision(StrEnum):
    """The arithmetic of the forward pass: float32, bfloat16 autocast, or (auto) bfloat16 if the hardware has it."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class BatchNormKernel(StrEnum):
    """The kernel of batch normalisation in training: torch's, or (auto) a faster one for narrow maps on a CPU."""

    auto = "auto"
    torch = "torch"


class Selection(StrEnum):
    """The epoch whose test error is the result: the last one, or the one with the lowest validation error."""

    final = "final"
    best_validation = "best_validation"


class StepKind(StrEnum):
    """How training's forward pass is executed: operation by operation, from compiled code, as a CUDA graph, or as both.

    Evaluation is always executed operation by operation.
    """

    eager = "eager"
    compiled = "compiled"
    graphed = "graphed"
    compiled_graphed = "compiled_graphed"


class CodeChoice(StrEnum):
    """Which version of the user's code a run executes after a change: the copy made when it began, or current code."""

    frozen = "frozen"
    current = "current"


class Until(StrEnum):
    """When a sweep stops training more seeds: as soon as its claims are decided."""

    decided = "decided"


@dataclass(frozen=True)
class Typed:
    """A type for pydantic to check; OmegaConf sees `Any`, because it supports neither these unions nor ranges."""

    type: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.type)


Values = Annotated[dict[str, Any], Typed(dict[str, str | bool | int | float | list[Any]])]
Plan = Annotated[Any, Typed(Literal[True, False, "timed"])]
Seeds = Annotated[Any, Typed(Count | list[Seed] | None)]


@dataclass
class Published:
    """The paper's numbers, in percent, by row. Rows are named as their folders, by their values in `Sweep.rows`.

    A row's values are joined by commas. `statistic` says what `test_error` is, such as "median of 5" or "single". An
    error is a number, `fail` (non-finite or above 20), or null if the paper draws it without a number. `mean`, `std`
    and `best` are further statistics of the same rows, and `top5_error` their top-5 errors; `view` says how the test
    images are shown. `literature` names rows that the paper prints and no run trains. With `best_epochs: N`, our
    number of a run is the mean of its N lowest test errors; with null, it is the test error of its result. All are
    empty if the paper prints no numbers.
    """

    statistic: Optional[str] = None
    test_error: dict[str, Any] = field(default_factory=dict)  # omegaconf takes no int for Union[float, str]
    mean: dict[str, float] = field(default_factory=dict)
    std: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    top5_error: dict[str, float] = field(default_factory=dict)
    view: dict[str, str] = field(default_factory=dict)
    literature: list[str] = field(default_factory=list)
    best_epochs: Optional[Count] = None


@dataclass
class Sweep:
    """A sweep: `rows` maps each axis, a key that rows differ in, to its values; `reported` has the paper's numbers.

    `seeds` is how many seeds each row has, from 0 on, or a list of them. `axes` lists the axes without their values, in
    a frozen run and in a file that gives the values in `hydra.sweeper.params`. `claims` are the paper's statements
    about rows, which `deepnets.config.claim` reads. `margins` are percent points by scale: rows whose errors differ by
    less count as equal. `deep` says that the sweep supports scale=deep. `zip` pairs axes instead of multiplying them,
    `exclude` leaves out the rows that match one of its entries, and `union` joins blocks of rows, each with axes of its
    own; `deepnets.config.sweep` applies these rules.
    """

    rows: Values = field(default_factory=dict)
    seeds: Seeds = None
    axes: list[str] = field(default_factory=list)
    deep: bool = False
    reported: Published = field(default_factory=Published)
    claims: list[dict[str, Any]] = field(default_factory=list)
    margins: dict[str, float] = field(default_factory=dict)
    zip: list[list[str]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    union: list[dict[str, Any]] = field(default_factory=list)


def axes_of(sweep: Mapping[str, Any]) -> list[str]:
    """Return the keys that name a sweep's rows: its `axes`, or if it has none, the keys in `rows` and `union`."""
    axes, rows, union = (sweep.get(key) for key in ("axes", "rows", "union"))
    if axes and isinstance(axes, list):
        return axes
    blocks = [rows, *(union if isinstance(union, list) else ())]
    keys = [str(key) for block in blocks if isinstance(block, Mapping) for key in block]
    return [key for key in dict.fromkeys(keys) if key != "seed"]


@dataclass
class Scale:
    """How much of a protocol is trained: `budget` is the share of its epochs or iterations."""

    name: Name = MISSING
    budget: PositiveFactor = MISSING


@dataclass
class Config:
    """One run. Each dictionary here, such as `model`, has a `_target_`, whose signature is the dictionary's schema."""

    model: dict[str, Any] = MISSING
    dataset: dict[str, Any] = MISSING
    optimizer: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    loss: dict[str, Any] = MISSING
    epochs: Optional[Count] = MISSING
    iterations: Optional[Count] = MISSING
    scale: Scale = MISSING
    batch_size: Count = MISSING
    seed: Seed = MISSING
    setting: Optional[Seed] = MISSING
    clip_gradient_norm: Optional[Positive] = MISSING
    weights: Optional[Name] = MISSING
    weights_hash: Optional[Name] = MISSING
    precision: Precision = MISSING
    memory: Memory = MISSING
    batchnorm_kernel: BatchNormKernel = MISSING
    step: StepKind = MISSING
    selection: Selection = MISSING
    evaluation_batch_size: Count = MISSING
    devices: Any = MISSING  # a number, or auto
    launcher: dict[str, Any] = MISSING
    deterministic: bool = MISSING
    fail_fast: bool = MISSING
    device: Name = MISSING
    threads: Optional[Threads] = MISSING
    output_root: Name = MISSING
    name: Optional[Name] = MISSING
    checkpoint_seconds: NotNegative = MISSING
    log_iterations: Count = MISSING
    keep_checkpoints: Optional[Count] = MISSING
    overwrite: bool = MISSING
    code: Optional[CodeChoice] = MISSING
    reuse: bool = MISSING
    until: Optional[Until] = MISSING
    hours: Optional[Positive] = MISSING
    plan: Plan = MISSING
    sweep: Optional[Sweep] = MISSING


@dataclass
class NoCallback:
    """The only type that a callback may have; no option can write it, so OmegaConf refuses all callbacks."""


@dataclass
class WithoutCallbacks(HydraConf):
    """Hydra's own node without callbacks, so that no option can name a class for Hydra to call."""

    defaults: list[Any] = field(default_factory=lambda: [each for each in HydraConf().defaults if each != CALLBACKS])
    callbacks: dict[str, NoCallback] = field(default_factory=dict)  # type: ignore[assignment]


@dataclass(frozen=True)
class Search:
    """Where options lie besides conf/ (`file://FOLDER`, `pkg://PACKAGE`), and which file a run is composed from."""

    places: tuple[str, ...] = ()
    defaults: str = DEFAULTS


@dataclass(frozen=True)
class Row:
    """One composed run, the option chosen in each group, its overrides (typed or of the axes), where options lie."""

    config: Config
    choices: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    search: Search = Search()


def at_scale(full: Any, mini: Any, *deep: Any, _root_: DictConfig) -> Any:
    """`${at_scale:110,20}`: the first value, or the second with scale=mini; a third one is for scale=deep."""
    return _as_node({"mini": mini, "deep": (*deep, full)[0]}.get(_root_.scale.name, full))


def case(value: Any, cases: Mapping[Any, Any], otherwise: Any) -> Any:
    """`${case:${model.depth},{110:400},0}`: the entry of `cases` for `value`, or `otherwise` if there is none."""
    return _as_node(cases.get(value, otherwise))


def uniform(setting: int | None, name: str, low: float, high: float) -> float | None:
    """`${uniform:${setting},momentum,0.5,0.99}`: a number drawn evenly from [low, high], rounded to 4 digits.

    The number depends only on `setting` and `name`, so it is the same on every machine. It is None without a setting.
    """
    return None if setting is None else _rounded(low + (high - low) * _draw(setting, name))


def log_uniform(setting: int | None, name: str, low: float, high: float) -> float | None:
    """`${log_uniform:${setting},lr,1e-3,1.0}`: like `uniform`, but the number's logarithm is drawn evenly."""
    return None if setting is None else _rounded(low * math.exp(math.log(high / low) * _draw(setting, name)))


def choice(setting: int | None, name: str, *options: Any) -> Any:
    """`${choice:${setting},activation,relu,tanh}`: one of the options, each as likely; None without a setting."""
    return None if setting is None else options[int(_draw(setting, name) * len(options))]


def _as_node(value: Any) -> Any:
    """Turn a list into OmegaConf's `ListConfig`, because `--cfg job --resolve` cannot write a plain list."""
    return OmegaConf.create(value) if isinstance(value, list) else value


def _draw(setting: int, name: str) -> float:
    """Return a number in [0, 1), evenly distributed over settings and names."""
    digest = hashlib.sha256(f"{name} {setting}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48  # exact in a float, never rounded up to 1


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def selected(config: DictConfig, key: str, otherwise: Any = None, resolve: bool = True) -> Any:
    """Return the plain value of a dotted key; `otherwise` if the key, or a key that its value refers to, is missing."""
    value = OmegaConf.select(config, key, default=otherwise, throw_on_resolution_failure=False)
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=resolve)
    return value.name if isinstance(value, Enum) else value


def value_at(config: Any, key: str, otherwise: Any = None) -> Any:
    """Return the value of a dotted key of a typed configuration, as `selected` does."""
    node = config
    for name in key.split("."):
        if isinstance(node, list):
            node = node[int(name)] if name.isdecimal() and int(name) < len(node) else ABSENT
        else:
            node = node.get(name, ABSENT) if isinstance(node, dict) else getattr(node, name, ABSENT)
        if node is ABSENT:
            return otherwise
    return node.name if isinstance(node, Enum) else node
