"""Which classes besides those of deepnets a configuration may name: what the command trusts, a state of the process.

Trust is never written down: each command that executes a run is told anew, and tells the processes that it starts.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os.path import abspath, expanduser
from pathlib import Path

from deepnets.config.project import read_project
from deepnets.config.schema import Search
from deepnets.errors import UserError, brief

_trusted: list[str] = []

Trust = str | Path | Iterable[str | Path]


def trust(names: Trust) -> None:
    """Trust classes from here on: a class or a module by name, a file of Python, or a project's file.

    A module, or a file, stands for the classes and functions that are defined in it, a project for all modules beside
    its file. The folder of a file becomes importable, behind all others.

    Raises:
        UserError: a file that cannot be read, or a name of no module that can be imported here.
    """
    for name in map(str, [names] if isinstance(names, str | Path) else names):
        if is_file(name):
            file = Path(abspath(expanduser(name)))
            if not _is_python(name):
                read_project(file)
            elif not file.is_file():
                raise UserError(f"--trust {name}: no such file")
            name, folder = str(file), str(file.parent)
            if folder not in sys.path:
                sys.path.append(folder)  # behind all others, so that a file in it hides no library
        elif not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"--trust {brief(name)}: names neither a file nor a class, as in my_shortcuts.ReZero")
        elif "." not in name and find_spec(name) is None:
            raise UserError(
                f"--trust {name}: no such module; a class needs its module too, as in my_shortcuts.ReZero, and a "
                "module must be importable here: name its file, as in --trust my_shortcuts.py"
            )
        if name not in _trusted:
            _trusted.append(name)


@contextmanager
def trusting(names: Trust) -> Iterator[None]:
    """Trust classes within the context only; raises as `trust`."""
    before = [*_trusted]
    try:
        trust(names)
        yield
    finally:
        _trusted[:] = before


def trusted() -> tuple[str, ...]:
    """What this process trusts, as another process takes it by --trust: files are absolute."""
    return tuple(_trusted)


def trusted_search() -> Search:
    """Where the project that this process trusts has its options; conf/ alone without one."""
    projects = (name for name in _trusted if is_file(name) and not _is_python(name))
    return next((read_project(project).search for project in projects), Search())


def is_trusted(target: str) -> bool:
    """Whether this process trusts the class or function, given as `module.name`; imports nothing of a project."""
    module, _, name = target.rpartition(".")
    return any(each == target or _stands_for(each, module, name) for each in _trusted)


def is_file(name: str) -> bool:
    """Whether the word names a file, not a class or a module."""
    return "/" in name or name.endswith((".yaml", ".yml", ".py"))


def _stands_for(trusted_name: str, module: str, name: str) -> bool:
    """Whether the trusted file or module defines this class or function itself, and so does not merely import it."""
    if not is_file(trusted_name):
        spec = find_spec(module) if module == trusted_name else None
        return bool(spec and spec.origin and _defines(Path(spec.origin), name))
    folder, parts = Path(trusted_name).parent, module.split(".")
    if _is_python(trusted_name) and parts != [Path(trusted_name).stem]:
        return False
    top = find_spec(parts[0]) if parts[0] else None
    if not (top and top.origin and Path(top.origin).resolve().is_relative_to(folder.resolve())):
        return False  # a library, which is imported in place of a file of the same name
    file = folder.joinpath(*parts)
    return any(_defines(each, name) for each in (file.with_suffix(".py"), file / "__init__.py"))


def _defines(file: Path, name: str) -> bool:
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return file.is_file() and file.suffix == ".py"  # importing it says what is wrong
    return any(isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name for each in body)


def _is_python(name: str) -> bool:
    return name.endswith(".py")
