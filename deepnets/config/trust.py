"""Keeps which of the user's classes a configuration may name in this process, and which version of them is executed.

Trust is never written to a file: the user states it in each command, which passes it to the processes that it starts.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from os.path import abspath, expanduser
from pathlib import Path

from deepnets.config.project import read_project
from deepnets.config.schema import CodeChoice, Search
from deepnets.errors import UserError, brief, nearest
from deepnets.system.files import BYTE_CODE, own_cache

_trusted: list[str] = []
_copies: list[Path] = []  # folders with copies of trusted modules, which are imported from there
_choice: str | None = None  # which version of trusted modules a run executes

Trust = str | Path | Iterable[str | Path]


def trust(names: Trust) -> None:
    """Trust classes from now on; each name is a class, a module, a Python file, or a project's file.

    A module or Python file covers the classes and functions that it defines; a project's file covers all modules beside
    it. The folder of a file becomes the last one from which Python imports modules.

    Raises:
        UserError: a name is neither a file nor a class, a file cannot be read, no module of this name can be imported
            here, or the module does not mention the class.
    """
    for name in map(str, [names] if isinstance(names, str | Path) else names):
        if is_file(name):
            file = Path(abspath(expanduser(name)))
            if not _is_python(name):
                read_project(file)
            elif not file.is_file():
                near = nearest(file.name, [other.name for other in file.parent.glob("*.py")])
                copy = (
                    "; to execute the copy that a run has of it, name the class and choose the copy, as in --trust "
                    f"{file.stem}.ReZero and code=frozen for train, --code frozen for other commands"
                )
                raise UserError(f"--trust {name}: no such file{near}{copy}")
            name, folder = str(file), str(file.parent)
            if folder not in sys.path:
                sys.path.append(folder)  # behind all others, so that a file in it hides no library
        elif not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"--trust {brief(name)}: names neither a file nor a class, as in my_shortcuts.ReZero")
        elif "." not in name and _spec(name) is None:
            raise UserError(
                f"--trust {name}: no such module; a class needs its module too, as in my_shortcuts.ReZero, and a "
                "module must be importable here: name its file, as in --trust my_shortcuts.py, or the class, as in "
                f"--trust {name}.ReZero with code=frozen for train or --code frozen elsewhere, which executes the copy "
                "that a run has"
            )
        elif other := _misspelt(name):
            raise UserError(f"--trust {name}: {_only_others(other, name)}")
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
    """Return the names that this process trusts, to pass on as --trust to another process; paths are absolute."""
    return tuple(_trusted)


def trusted_search() -> Search:
    """Return where the trusted project keeps its options; only conf/ if this process trusts no project."""
    projects = (name for name in _trusted if is_file(name) and not _is_python(name))
    return next((read_project(project).search for project in projects), Search())


def is_trusted(target: str) -> bool:
    """Return whether this process trusts the class or function `module.name`, without importing a project's code."""
    module, _, name = target.rpartition(".")
    if target in _trusted:
        return True
    definitions = [_definitions(file) for file in _trusted_files(module)]
    return any(names is None or name in names for names in definitions)


def to_trust(target: str) -> str:
    """Return what a user names with --trust to trust a class: the file of its module, if that lies here, or the class.

    An installed program imports modules from no other folder. A module of a package is trusted by the class alone.
    """
    module = target.rpartition(".")[0]
    file = Path(f"{module}.py")
    return str(file) if "." not in module and file.is_file() else target


def why_refused(target: str) -> str | None:
    """Say which definitions the trusted module of a refused target has; None if its module is not trusted either."""
    file = next(_trusted_files(target.rpartition(".")[0]), None)
    return _only_others(file, target) if file else None


def choose_code(choice: str | None) -> None:
    """Choose the version of trusted modules that runs execute from now on: a `CodeChoice`, or the hash of a copy.

    Raises:
        UserError: the choice is neither.
    """
    global _choice
    if choice not in (None, *CodeChoice) and not re.fullmatch("[0-9a-f]{16}", str(choice)):
        raise UserError(f"--code {brief(choice)}: choose from {', '.join(CodeChoice)}")
    _choice = choice


@contextmanager
def choosing_code(choice: str | None) -> Iterator[None]:
    """Choose a version within the context only; raises as `choose_code`. Modules already imported do not change."""
    before = _choice
    try:
        choose_code(choice or before)
        yield
    finally:
        choose_code(before)


def chosen_code() -> str | None:
    """Return the chosen version of trusted modules: a `CodeChoice`, the hash of a copy, or None."""
    return _choice


def execute_from(copy: Path) -> None:
    """Import trusted modules from this folder first; it holds their copies, which were made when a run began.

    Python does not read byte code in this folder, because nobody has compared the byte code with the sources.
    """
    _copies.append(copy)
    sys.path.insert(0, str(copy))
    sys.pycache_prefix = str(own_cache() / BYTE_CODE)
    invalidate_caches()


def executed_from() -> tuple[Path, ...]:
    """Return the copies from which this process imports modules."""
    return tuple(_copies)


def is_file(name: str) -> bool:
    """Return whether the word names a file, not a class or a module."""
    return "/" in name or name.endswith((".yaml", ".yml", ".py"))


def _trusted_files(module: str) -> Iterator[Path]:
    """Yield the files of the module if this process trusts it."""
    parts = module.split(".")
    for trusted_name in _trusted:
        if not is_file(trusted_name):
            spec = _spec(module) if module == trusted_name else None
            if spec and spec.origin:
                yield Path(spec.origin)
            continue
        folder = Path(trusted_name).parent
        if _is_python(trusted_name) and parts != [Path(trusted_name).stem]:
            continue
        if copied := [file for copy in _copies for file in _files(copy, parts) if file.is_file()]:
            yield from copied
            continue
        top = _spec(parts[0]) if parts[0] else None
        if top and top.origin and Path(top.origin).resolve().is_relative_to(folder.resolve()):
            # otherwise Python imports a library, which hides the project's file of the same name
            yield from filter(Path.is_file, _files(folder, parts))


def _files(folder: Path, parts: list[str]) -> Iterator[Path]:
    file = folder.joinpath(*parts)
    yield from (file.with_suffix(".py"), file / "__init__.py")


def _misspelt(name: str) -> Path | None:
    """Return the module's file if it never mentions the class; imports only the packages around the module."""
    module, _, last = name.rpartition(".")
    spec = _spec(module) if module else None
    if spec is None or spec.submodule_search_locations or not _is_python(spec.origin or ""):
        return None  # `last` may be a module in the package
    file = Path(str(spec.origin))
    is_mentioned = re.search(rf"\b{last}\b|import \*|__getattr__", file.read_text(errors="replace"))
    return None if is_mentioned else file


def _only_others(file: Path, target: str) -> str:
    names = ", ".join(sorted(_definitions(file) or ())) or "no class and no function"
    return f"{file} defines no {target.rpartition('.')[2]}, but {names}"


def _spec(module: str) -> ModuleSpec | None:
    """Find where the module would be imported from; None if it is missing or cannot be imported."""
    try:
        return find_spec(module)
    except Exception:  # a package around the module may raise anything; the target is then refused
        return None


def _definitions(file: Path) -> set[str] | None:
    """Return the names of the classes and functions that a file defines and does not merely import.

    None if the file cannot be read as Python; an import of the file then raises the error.
    """
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    return {each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)}


def _is_python(name: str) -> bool:
    return name.endswith(".py")
