"""The node `sweep` of a sweep file, read without composing the rest."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.frozen import LOADER
from deepnets.config.places import CONF
from deepnets.config.resolvers import at_scale
from deepnets.errors import UserError

SWEEPS = CONF / "sweep"


def sweep_of(file: Path) -> dict[str, Any]:
    """The node `sweep` of a sweep file; empty where there is no such file.

    Raises:
        UserError: the file is not YAML.
    """
    sweep = _content(file).get("sweep") or {}
    if not isinstance(sweep, dict):
        raise UserError(f"{file}: its sweep must be a node, as that of conf/sweep/digits_shortcuts.yaml; correct it")
    return sweep


def set_at_scale(file: Path, key: str, scale: str) -> Any:
    """What a sweep file sets at a dotted key, at a scale; None where it sets nothing, or what a composition decides.

    Raises:
        UserError: as `sweep_of`.
    """
    OmegaConf.register_new_resolver("at_scale", at_scale, replace=True)
    content = OmegaConf.create(_content(file) | {"scale": {"name": scale}})
    try:
        value = OmegaConf.select(content, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return None


def _content(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = yaml.load(file.read_text(), LOADER) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as YAML ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: must have settings by name, as conf/sweep/digits_shortcuts.yaml; correct it")
    return content
