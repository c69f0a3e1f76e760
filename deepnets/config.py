"""The shape of a run: names and types. Every value stands in conf/, none here."""

import atexit
import os
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = REPOSITORY / "conf"


class Precision(Enum):
    """Arithmetic of the forward pass: bfloat16 autocast, float32, or bfloat16 where the hardware computes in it."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class Selection(Enum):
    """Whose test error is the result: the last epoch's, or that of the epoch with the lowest validation error."""

    final = "final"
    best_validation = "best_validation"


@dataclass
class Sweep:
    """What a table reports: `axes` are the choices that name a row, `reported` the published result of each row."""

    axes: list[str] = MISSING
    reported: dict[str, Any] = MISSING


@dataclass
class Config:
    """One run. The nodes model, dataset, optimizer and schedule have a `_target_`, whose signature is their schema."""

    model: dict[str, Any] = MISSING
    dataset: dict[str, Any] = MISSING
    optimizer: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    epochs: Optional[int] = MISSING  # omegaconf 2.3 does not read `int | None` in dataclasses
    iterations: Optional[int] = MISSING
    batch_size: int = MISSING
    evaluation_batch_size: int = MISSING
    seed: int = MISSING
    precision: Precision = MISSING
    selection: Selection = MISSING
    device: str = MISSING
    threads: Optional[int] = MISSING
    output_root: str = MISSING
    checkpoint_seconds: float = MISSING
    log_iterations: int = MISSING
    overwrite: bool = MISSING
    trusted_targets: list[str] = MISSING
    sweep: Optional[Sweep] = MISSING


# What may change without making it another run: where it executes, reads and writes. All other keys are its identity.
EXECUTION_KEYS = frozenset(
    {
        "dataset.root",
        "device",
        "threads",
        "output_root",
        "checkpoint_seconds",
        "log_iterations",
        "overwrite",
        "trusted_targets",
        "sweep",
    }
)


@dataclass(frozen=True)
class Row:
    """One composed run of a grid, with what named it: the option chosen in each group and the overrides typed."""

    config: Config
    choices: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


def typed(composed: DictConfig) -> Config:
    """What Hydra composed as a `Config`: every interpolation resolved, every folder absolute.

    Raises:
        OmegaConfBaseException: a value is missing, or an interpolation leads nowhere.
    """
    config: Config = OmegaConf.to_object(composed)
    config.output_root = os.path.abspath(os.path.expanduser(config.output_root))
    if "root" in config.dataset:
        config.dataset["root"] = os.path.abspath(os.path.expanduser(config.dataset["root"]))
    return config


def register() -> None:
    """Make the schema `config` and the resolvers known to Hydra, which reads them while it composes."""
    ConfigStore.instance().store(name="config", node=Config)
    OmegaConf.register_new_resolver("repository", lambda path: str(REPOSITORY / path), replace=True)
    OmegaConf.register_new_resolver("folder_name", lambda path: Path(path).resolve().name, replace=True)
    OmegaConf.register_new_resolver("scratch", _scratch_folder, use_cache=True, replace=True)


def _scratch_folder() -> str:
    """A folder that lives as long as this process, for what Hydra insists on writing."""
    folder = tempfile.TemporaryDirectory(prefix="deepnets-")
    atexit.register(folder.cleanup)
    return folder.name
