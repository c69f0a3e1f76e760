"""The functions that `${name:...}` in conf/ calls: values by scale or by another value, draws of a random search."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def at_scale(full: Any, mini: Any, *deep: Any, _root_: DictConfig) -> Any:
    """`${at_scale:110,20}`: the first value, or the second with scale=mini; a third one is for scale=deep."""
    return _as_node({"mini": mini, "deep": (*deep, full)[0]}.get(_root_.scale.name, full))


def case(value: Any, cases: Mapping[Any, Any], otherwise: Any) -> Any:
    """`${case:${model.depth},{110:400},0}`: the value in `cases` for `value`, or `otherwise`."""
    return _as_node(cases.get(value, otherwise))


def uniform(setting: int | None, name: str, low: float, high: float) -> float | None:
    """`${uniform:${setting},momentum,0.5,0.99}`: a number drawn evenly from [low, high], rounded to 4 digits.

    The number depends only on setting and name: it is the same on every machine, whatever else changes. Without a
    setting it is None.
    """
    return None if setting is None else _rounded(low + (high - low) * _draw(setting, name))


def log_uniform(setting: int | None, name: str, low: float, high: float) -> float | None:
    """`${log_uniform:${setting},lr,1e-3,1.0}`: like `uniform`, but the number's logarithm is drawn evenly."""
    return None if setting is None else _rounded(low * math.exp(math.log(high / low) * _draw(setting, name)))


def choice(setting: int | None, name: str, *options: Any) -> Any:
    """`${choice:${setting},activation,relu,tanh}`: one of the options, each as likely as the others."""
    return None if setting is None else options[int(_draw(setting, name) * len(options))]


def _as_node(value: Any) -> Any:
    """Return a list as OmegaConf's own, since `--cfg job --resolve` cannot write a plain one."""
    return OmegaConf.create(value) if isinstance(value, list) else value


def _draw(setting: int, name: str) -> float:
    """Return a number in [0, 1), evenly distributed over settings and names."""
    digest = hashlib.sha256(f"{name} {setting}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48  # exact in a float, never rounded up to 1


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
