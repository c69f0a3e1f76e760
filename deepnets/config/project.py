"""Where things are: deepnets' own options, version and outputs, and the options and classes of a user's project."""

import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from deepnets.config.safe_yaml import ALIASES, LONGEST, check_bounds, plain_yaml
from deepnets.config.schema import DEFAULTS, Search
from deepnets.errors import UserError, brief
from deepnets.system.files import read_text

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()  # as in a wheel; a clone has conf/ beside the package
CONF = PACKAGE / "conf" if INSTALLED else PACKAGE.parent / "conf"
SCHEMAS = CONF / "schema"  # of the files in it, for editors


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    options: str | None = None
    defaults: str = DEFAULTS
    trusted: list[str] = []


@dataclass(frozen=True)
class Project:
    """`options`: a folder laid out as conf/, beside the file; `defaults`: the file in it that stands for train.yaml.

    `trusted` are its classes that a configuration may name; they are imported from the file's folder.
    """

    file: Path
    options: Path | None
    defaults: str
    trusted: tuple[str, ...]

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
        raise UserError(f"{file}: {where}: {first['msg']}; the file may have options, defaults and trusted") from error
    except ValueError as error:
        raise UserError(f"{file}: cannot be read as a project's file: {error}") from error
    options = path.parent / content.options if content.options else None
    if options:
        check_options_folder(options)
    return Project(path, options, content.defaults, tuple(content.trusted))


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


def trusted_names(trusted: Collection[str]) -> frozenset[str]:
    """The classes that `trusted` names; a project's file among them stands for its own, which become importable.

    Raises:
        UserError: one that cannot be a class's name, or as `read_project`.
    """
    names: set[str] = set()
    for each in trusted:
        if not is_file(each):
            names.add(each)
            continue
        project = read_project(each)
        folder = str(project.file.parent)
        if folder not in sys.path:
            sys.path.append(folder)  # behind all others, so that a file of it hides no library
        names.update(project.trusted)
    if unfit := sorted(name for name in names if not re.fullmatch(r"\w+(\.\w+)+", name)):
        raise UserError(f"trusted: {brief(unfit[0])} names no class; needs its module too, as in my_shortcuts.ReZero")
    return frozenset(names)


def search_of_trusted(trusted: Collection[str]) -> Search:
    """Where the project whose file is among `trusted` has its options; conf/ alone without one."""
    return next((read_project(each).search for each in trusted if is_file(each)), Search())


def is_file(trusted: str) -> bool:
    """Whether the word names a project's file, not a class."""
    return "/" in trusted or trusted.endswith((".yaml", ".yml"))


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
    command = ["git", "-C", str(PACKAGE.parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _is_verb() -> bool:
    """Whether `deepnets VERB` is being executed, or a clone's scripts are not there."""
    return INSTALLED or sys.argv[0].startswith("deepnets ")
