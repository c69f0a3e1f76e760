"""Where things are: deepnets' own options, version and outputs, and the options of a user's project."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from deepnets.config.safe_yaml import ALIASES, LONGEST, check_bounds, plain_yaml
from deepnets.config.schema import DEFAULTS, Search
from deepnets.errors import UserError
from deepnets.system.files import read_text

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # as in a wheel; a clone has conf/ beside the package
CONF = PACKAGE / "conf" if INSTALLED else PACKAGE.parent / "conf"
SCHEMAS = CONF / "schema"  # of the files in it, for editors


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    options: str | None = None
    defaults: str = DEFAULTS


@dataclass(frozen=True)
class Project:
    """`options`: a folder laid out as conf/, beside the file; `defaults`: the file in it that stands for train.yaml.

    The modules beside the file are the project's own, which a configuration may name where the project is trusted.
    """

    file: Path
    options: Path | None
    defaults: str

    @property
    def search(self) -> Search:
        return Search((f"file://{self.options}",) if self.options else (), self.defaults)


def read_project(file: str | Path) -> Project:
    """What the file says.

    Raises:
        UserError: it is not there or no project's file, or its folder of options is not there.
    """
    path = Path(file).expanduser().absolute()
    try:
        content = _Content.model_validate(plain_yaml(read_text(Path(os.path.realpath(path)), LONGEST)) or {})
    except OSError as error:
        raise UserError(f"{file}: cannot be read as a project's file: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{file}: {where}: {first['msg']}; the file may have options and defaults") from error
    except ValueError as error:
        raise UserError(f"{file}: cannot be read as a project's file: {error}") from error
    options = path.parent / content.options if content.options else None
    if options:
        check_options_folder(options)
    return Project(path, options, content.defaults)


def check_options_folder(folder: Path) -> None:
    """Whether a folder can stand beside conf/.

    Raises:
        UserError: it is not there, holds an option of a name that conf/ has too, which would never be read, or one that
            cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of options")
    for file in sorted(folder.rglob("*.yaml")):
        if (CONF / file.relative_to(folder)).is_file():
            named = "; `defaults` of a project's file, or --config-name, names it" if file.parent == folder else ""
            raise UserError(f"{file}: deepnets has an option of this name, and reads that one; rename yours{named}")
        try:
            check_bounds(read_text(Path(os.path.realpath(file)), LONGEST), ALIASES)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{file}: cannot be read as options: {' '.join(str(error).split())}") from error


def home() -> Path:
    """The folder of outputs/ and data/: that of the clone for its scripts, else the one where a command is called."""
    return Path.cwd() if _is_verb() else PACKAGE.parent


def program(verb: str) -> str:
    """How a user types the command `verb`."""
    return f"deepnets {verb}" if _is_verb() else f"python scripts/{verb}.py"


@cache
def git_commit() -> str | None:
    """The commit of the clone deepnets runs from, `-dirty` with uncommitted changes, or that its wheel was built from.

    None outside a git clone, and where the wheel was not built in one.
    """
    if INSTALLED:  # where a folder above may be another project's clone
        file = CONF / "commit"
        return file.read_text().strip() if file.is_file() else None
    return commit_of(PACKAGE.parent)


@cache
def commit_of(folder: Path) -> str | None:
    """The commit of the clone that a folder lies in, `-dirty` with uncommitted changes; None where it lies in none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _is_verb() -> bool:
    """Whether `deepnets VERB` is being executed, or a clone's scripts are not there."""
    return INSTALLED or sys.argv[0].startswith("deepnets ")
