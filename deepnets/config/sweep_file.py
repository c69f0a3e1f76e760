"""The node `sweep` of a sweep file, read without composing the rest."""

from pathlib import Path
from typing import Any

import yaml

from deepnets.config.places import CONF
from deepnets.errors import UserError

SWEEPS = CONF / "sweep"


def sweep_of(file: Path) -> dict[str, Any]:
    """The node `sweep` of a sweep file; empty where there is no such file.

    Raises:
        UserError: the file is not YAML.
    """
    if not file.is_file():
        return {}
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as YAML ({' '.join(str(error).split())}); correct it") from error
    sweep = content.get("sweep") or {} if isinstance(content, dict) else None
    if not isinstance(sweep, dict):
        raise UserError(f"{file}: its sweep must be a node, as that of conf/sweep/digits_shortcuts.yaml; correct it")
    return sweep
