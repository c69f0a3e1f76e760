"""Finds deepnets' own options, version and outputs, and the options of a user's project."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
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
SCHEMAS = CONF / "schema"  # JSON schemas of the files in conf/, for editors
RESOLVER = re.compile(r"\$\{\s*([^:{}]*?(?:\$\{|(?=\s*:)))")  # its name, which another interpolation may be part of
# The resolvers whose values depend on nothing but their arguments, the command and the working directory.
PURE = {"at_scale", "case", "log_uniform", "uniform", "choice", "oc.select", "repository", "program"}


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    options: str | None = None
    defaults: str = DEFAULTS


@dataclass(frozen=True)
class Project:
    """A user's project: its file, its folder of `options`, which is laid out like conf/, and its `defaults`.

    `defaults` names the file from which a run is composed: `train`, or a file in `options` that replaces it. If the
    user trusts the project, configurations may also name classes in the modules beside `file`.
    """

    file: Path
    options: Path | None
    defaults: str

    @property
    def search(self) -> Search:
        return Search((f"file://{self.options}",) if self.options else (), self.defaults)


def read_project(file: str | Path) -> Project:
    """Read a project's file.

    Raises:
        UserError: the file is missing or is not a project's file, or as `check_options_folder`.
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
    """Check that the options in a folder can be used together with conf/.

    Raises:
        UserError: the folder is missing, an option in it is too large or too deep, or conf/ has an option of the same
            name, which would be read instead. Hydra refuses a file that is not YAML, once a command chooses it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of options")
    for file in sorted(folder.rglob("*.yaml")):
        if (CONF / file.relative_to(folder)).is_file():
            named = ", and name it by `defaults` of a project's file or --config-name" if file.parent == folder else ""
            raise UserError(f"{file}: deepnets has an option of this name, and reads that one; rename yours{named}")
        try:
            check_bounds(read_text(Path(os.path.realpath(file)), LONGEST), ALIASES)
        except yaml.YAMLError:
            continue
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: cannot be read as options: {' '.join(str(error).split())}") from error


def options_key(overrides: Sequence[str], search: Search) -> str | None:
    """Return a hash of all that decides what these overrides compose: options, code and working directory.

    It is None if more decides it: an installed package (`pkg://`), a linked folder, or a resolver such as `oc.env`. It
    is None too if a file cannot be read: Hydra says so if it needs the file.
    """
    if not all(place.startswith("file://") for place in search.places):
        return None
    folders = [Path(place.removeprefix("file://")) for place in search.places]
    ours = [*CONF.rglob("*.yaml"), *(PACKAGE / "config").glob("*.py"), PACKAGE / "system" / "settings.py"]
    try:
        own = [path for folder in folders for path in folder.rglob("*")]
        if any(path.is_symlink() and path.is_dir() for path in own):  # Hydra looks into it
            return None
        options, texts = _read_all(_states(path for path in own if path.suffix == ".yaml"))
        defaults, _ = _read_all(_states(ours))
    except (OSError, ValueError):
        return None
    if not is_pure((*texts, *overrides)):
        return None
    places = [str(Path.cwd()), os.path.expanduser("~"), str(home()), program("")]
    libraries = [version("hydra-core"), version("omegaconf")]
    dependencies = [*overrides], [*search.places], search.defaults, options, defaults, places, libraries
    return hashlib.sha256(json.dumps(dependencies).encode()).hexdigest()[:24]


@cache
def key_at_first(search: Search) -> str | None:
    """Return the `options_key` of no overrides when this process first composed; later files may differ from it."""
    return options_key((), search)


def is_pure(texts: Iterable[str]) -> bool:
    """Return whether the resolvers in these texts depend on nothing but their arguments and this command."""
    return all(name in PURE for text in texts for name in RESOLVER.findall(text))


State = tuple[str, int, int]  # a file, when it was changed, in nanoseconds, and its bytes


def _states(files: Iterable[Path]) -> tuple[State, ...]:
    return tuple((str(file), (stat := file.stat()).st_mtime_ns, stat.st_size) for file in sorted(files))


@lru_cache(maxsize=8)
def _read_all(files: tuple[State, ...]) -> tuple[str, tuple[str, ...]]:
    """Return a hash of the content of these files, which it reads again if they change, and their texts."""
    content = {file: Path(file).read_text() for file, *_ in files}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest(), (*content.values(),)


def home() -> Path:
    """Return the folder that holds outputs/ and data/: the clone for a clone's scripts, else the working directory."""
    return Path.cwd() if _is_verb() else PACKAGE.parent


def program(verb: str) -> str:
    """Return the command `verb` as a user types it."""
    return f"deepnets {verb}" if _is_verb() else f"python scripts/{verb}.py"


@cache
def git_commit() -> str | None:
    """Return the commit of the clone that deepnets runs from, or from which its wheel was built.

    It ends in `-dirty` if there were uncommitted changes. It is None if there is no clone.
    """
    if INSTALLED:  # git might find another project's clone in a folder above
        file = CONF / "commit"
        return file.read_text().strip() if file.is_file() else None
    return commit_of(PACKAGE.parent)


@cache
def commit_of(folder: Path) -> str | None:
    """Return the commit of the clone that contains a folder, as `git_commit` does; None if there is no clone."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _is_verb() -> bool:
    """Return whether the user types `deepnets VERB`; otherwise the user runs a clone's scripts."""
    return INSTALLED or sys.argv[0].startswith("deepnets ")


def typed_command() -> str:
    """Return this command as the user typed it, without the path of Python."""
    program, *words = sys.argv
    verb = program.split() if program.startswith("deepnets ") else [os.path.basename(sys.executable), program]
    return shlex.join([*verb, *words])
