"""Finds the user's own modules that a run uses, copies them, and notices when they change.

A run uses the modules whose classes its configuration names, and the modules that these import from the same project.
This module reads their sources and imports nothing. A copy is executed only if a command chooses it.
"""

import ast
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from deepnets.config.build import own_targets
from deepnets.config.project import commit_of
from deepnets.config.schema import TRAINED_NODES, CodeChoice, Config, Search
from deepnets.config.trust import chosen_code, execute_from, executed_from, is_trusted, trusted_search
from deepnets.errors import UserError
from deepnets.runs.contents import Code, Unreadable
from deepnets.runs.folder import OtherCode, RunFolder, run_folders
from deepnets.system.files import read_text, write_folder

FOLDER = ".code"  # beside the rows of a sweep: a folder for each version of the code, named by its hash
HASH = "[0-9a-f]{16}"  # the name of a version
LONGEST_SOURCE = 10_000_000  # bytes

_stored: set[str] = set()  # the versions that this process has copied, and executes even if the files are edited


def code_of(config: Config) -> Code | None:
    """Return the user's own code that a run with this configuration uses; None if it names only deepnets' classes."""
    if not (sources := sources_of(config)):
        return None
    files = sorted(sources.items())
    modules = {name: _hash(_source(name, source)) if isinstance(source, Path) else source for name, source in files}
    folders = sorted({str(source.parent) for source in sources.values() if isinstance(source, Path)}, key=len)
    return Code(hash=_joined(modules), modules=modules, commit=commit_of(Path(folders[0])) if folders else None)


def sources_of(config: Config) -> dict[str, Path | str]:
    """Return the user's own modules that a run uses: the file of each, by the module's name.

    If the configuration names a class of an installed package, the package is included, with its version.
    """
    targets = _own_targets(config)
    waiting = sorted({target.rpartition(".")[0] for target in targets})
    sources: dict[str, Path | str] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] in ("", "deepnets"):
            continue
        seen.add(name)
        place = _place(name.partition(".")[0])
        if not place:
            continue
        if {"site-packages", "dist-packages"} & {*place.parts}:
            if name in {target.rpartition(".")[0] for target in targets}:
                sources[name.partition(".")[0]] = _version(name.partition(".")[0])
        elif file := _file(place, name):
            sources[name] = file
            waiting += _imports(name, file)
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return sources


def _own_targets(config: Config) -> set[str]:
    return own_targets([getattr(config, node) for node in TRAINED_NODES])


def store(folder: RunFolder, config: Config, code: Code) -> Path:
    """Copy the sources of `code` beside the rows of the run's sweep, if not done yet; returns the copy's folder."""
    copy = folder.grid / FOLDER / code.hash
    _stored.add(code.hash)
    if is_stored(copy):
        return copy
    contents = {}
    for name, source in sources_of(config).items():
        if isinstance(source, Path):
            place = Path(*name.split("."))
            place = place / "__init__.py" if source.name == "__init__.py" else place.with_suffix(".py")
            contents[place] = _source(name, source).encode()
    write_folder(copy, contents)
    return copy


def is_stored(copy: Path) -> bool:
    """Return whether a version's copy is there; `clean` leaves an empty folder of one that no run names any more."""
    return copy.is_dir() and any(copy.iterdir())


def changed_files(folder: RunFolder, before: Code, now: Code) -> list[str]:
    """Return the files of the modules whose code differs; comments and docstrings do not count."""
    if before.hash == now.hash:
        return []
    # Hashes depend on Python's version, so they are computed again from the copy, if there is one.
    copied = modules_in(copy_of(folder, before))
    then = {name: copied.get(name, value) for name, value in before.modules.items()}
    names = sorted({*then, *now.modules})
    return [f"{name.replace('.', '/')}.py" for name in names if then.get(name) != now.modules.get(name)]


def noted_code(folder: RunFolder) -> Code | None:
    """Return the version of the user's own code that the folder notes for its run; None if it notes none."""
    if code := folder.origin.code:
        return code
    result = folder.result  # a record has no origin
    return list(result.code.values())[-1] if result and result.code else None


def kept_code(folder: RunFolder, config: Config) -> tuple[RunFolder, Code] | None:
    """Return the version that code=frozen chooses for a run that is set up now, and a run that notes it.

    It is the version of the row's other seeds that have begun (if there are two, not the folder's own), or else the
    folder's own. Unless it is overwritten, a folder that has its own, as after a cancelled job, takes another only if
    all trained seeds have it. None if there is no version, or if the configuration names only deepnets' classes.

    Raises:
        UserError: the other seeds are of several versions.
    """
    if not sources_of(config):
        return None
    own: dict[str, tuple[RunFolder, Code]] = {}
    with suppress(Unreadable):
        own = {code.hash: (folder, code)} if (code := noted_code(folder)) else {}
    others = [run for run in run_folders(folder.path.parent) if run.path != folder.path]
    if own and not config.overwrite:
        versions = _versions(run for run in others if run.has_checkpoint or run.is_complete)
        versions = versions if len(versions) == 1 else own
    else:
        versions = {version: found for version, found in _versions(others).items() if version not in own} or own
    if len(versions) > 1:
        which = f"{folder}: code=frozen cannot choose between versions {' and '.join(versions)}, which trained other"
        raise UserError(f"{which} seeds of its row; first train one version's seeds again: code=frozen overwrite=true")
    return next(iter(versions.values()), None)


def _versions(runs: Iterable[RunFolder]) -> dict[str, tuple[RunFolder, Code]]:
    """Return by hash the versions of the user's code that train or trained these runs, and a run by each."""
    versions: dict[str, tuple[RunFolder, Code]] = {}
    for run in runs:
        with suppress(Unreadable):  # nobody asked for this run
            codes = run.completed.code if run.completed else {"": noted_code(run)} if run.has_begun else None
            versions |= {code.hash: (run, code) for code in (codes or {}).values() if code}
    return versions


def is_by(folder: RunFolder, code: Code | None) -> bool:
    """Return whether this version of the user's own code trained a run from beginning to end, or is what it notes."""
    result, noted = folder.result, noted_code(folder)
    versions = list(result.code.values()) if result and result.code else [noted] if noted else []
    return not any(changed_files(folder, each, code) for each in versions) if code else not versions


def replaced_versions(grid: Path) -> list[str]:
    """Return the versions of the user's own code that were copied beside a sweep's rows, but that no run there notes.

    Those that `clean` has removed are among them.
    """
    if not (copies := [copy.name for copy in (grid / FOLDER).glob("*") if re.fullmatch(HASH, copy.name)]):
        return []
    return sorted({*copies}.difference(*(run.code_hashes for run in run_folders(grid))))


def copy_of(folder: RunFolder, code: Code) -> Path:
    """Return where the copy of the run's code is: beside the rows of its sweep, or in an exported folder within it."""
    within = folder.path.resolve() / FOLDER / code.hash
    return within if within.is_dir() else folder.grid / FOLDER / code.hash


def copy_code(source: RunFolder, into: Path, noted: Code | None = None) -> None:
    """Copy the versions of the user's own code that a run, or its weights, note into the folder `into`, if stored."""
    result, noted = source.result, noted_code(source) or noted
    for code in [*(result.code.values() if result and result.code else ()), *([noted] if noted else ())]:
        stored = copy_of(source, code)
        if is_stored(stored) and not is_stored(into / FOLDER / code.hash):
            contents = {file.relative_to(stored): _read_in(stored, file).encode() for file in stored.rglob("*.py")}
            write_folder(into / FOLDER / code.hash, contents)


def by_change(folders: Iterable[RunFolder]) -> dict[str, list[RunFolder]]:
    """Group the runs whose code has changed since it was noted by the changed files; code that is gone is no change."""
    by_files: dict[str, list[RunFolder]] = {}
    for folder in folders:
        with suppress(UserError):  # a file of code cannot be read
            before, now = noted_code(folder), code_of(folder.config)
            if before and now and (changed := changed_files(folder, before, now)):
                by_files.setdefault(", ".join(changed), []).append(folder)
    return by_files


def code_to_execute(
    folder: RunFolder, config: Config, option: str = "--code {}", noted: Code | None = None
) -> Code | None:
    """Return the user's own code with which this process executes the run: the noted version, or the chosen one.

    `option` says in messages how a user types the choice, with {} in its place. `noted` is the version that weights
    note, if the folder does not. If this process has stored that version, it executes the copy after an edit.

    Raises:
        OtherCode: the code has changed since the run began, and no version was chosen.
        UserError: only a copy is here; `execute_copy` raises it; or today's code is needed, and a copy is imported.
    """
    before, choice = noted_code(folder) or noted, chosen_code()
    if before and choice not in (None, CodeChoice.current):
        execute_copy(folder, before if choice == CodeChoice.frozen else before.model_copy(update={"hash": str(choice)}))
    now = code_of(config)
    if before and not now and choice is None and (copied := modules_in(copy_of(folder, before))):
        files, copy = ", ".join(f"{name.replace('.', '/')}.py" for name in copied), RunFolder(copy_of(folder, before))
        frozen = option.replace("{}", CodeChoice.frozen)
        targets = set() if trusted_search() != Search() else _own_targets(config)  # all of a project are trusted
        untrusted = sorted(target for target in targets if not is_trusted(target))
        trust = f", and needs {' '.join(f'--trust {target}' for target in untrusted)} too" if untrusted else ""
        raise UserError(f"{folder}: your code is not here ({files}); {frozen} executes its copy, {copy}{trust}")
    changed = changed_files(folder, before, now) if before and now else []
    if before and changed and choice in (None, CodeChoice.current) and before.hash in _stored:
        execute_copy(folder, before)
        return before
    if choice == CodeChoice.current or (choice is None and (changed or not before)):
        check_is_todays(folder, config)
    if changed and choice is None:
        assert before
        raise OtherCode(folder, list(map(_if_missing, changed)), option, copy_of(folder, before))
    return now if changed or not now else before or now


def _if_missing(file: str) -> str:
    name = file.removesuffix(".py").replace("/", ".")
    return file if (place := _place(name.partition(".")[0])) and _file(place, name) else f"{file} (missing)"


def check_is_todays(folder: RunFolder, config: Config) -> None:
    """Check that no copy that this process executes stands in for another version of the run's modules.

    Raises:
        UserError: one does.
    """
    for module, source in sources_of(config).items() if executed_from() else ():
        if isinstance(source, Path) and any(source.is_relative_to(copy) for copy in executed_from()):
            places = [Path(place) for place in sys.path if Path(place) not in executed_from()]
            today = next((file for place in places if (file := _file(place, module))), None)
            if not today or _hash(_read(today)) != _hash(_read(source)):
                raise _second_version(folder, module)


def execute_copy(folder: RunFolder, code: Code) -> None:
    """Make this process import the run's modules from the copy of this version, not from the current files.

    Raises:
        UserError: the copy is missing, its code has another hash, or this process has imported another version.
    """
    copy = copy_of(folder, code)
    if copy in executed_from():
        return
    if not is_stored(copy):
        raise UserError(
            f"{folder}: the code that the run began with is missing ({RunFolder(copy)}); copy it from where the run "
            "was trained, or choose `current` to go on with today's"
        )
    modules = modules_in(copy)
    if _joined(modules | {key: value for key, value in code.modules.items() if key not in modules}) != code.hash:
        raise UserError(f"{RunFolder(copy)}: its code does not have the hash in its name, and is not executed")
    for module, value in modules.items():
        loaded = getattr(sys.modules.get(module), "__file__", None)
        sources = [_read(file) for other in executed_from() if (file := _file(other, module))]
        sources += [_source(module, Path(loaded))] if loaded else []
        if any(_hash(source) != value for source in sources):
            raise _second_version(folder, module)
    for module in modules:  # modules of a package that are imported later come from the copy too
        if isinstance(path := getattr(sys.modules.get(module), "__path__", None), list):
            path.insert(0, str(copy.joinpath(*module.split("."))))
    execute_from(copy)


def _second_version(folder: RunFolder, module: str) -> UserError:
    return UserError(
        f"{folder}: needs another version of {module} than this process has imported, and a process can use only one; "
        "choose that version in a command, or a Python, of its own"
    )


def _place(top: str) -> Path | None:
    """Return the folder from which a top-level module is imported; None if it is missing or belongs to Python."""
    try:
        spec = find_spec(top)  # this imports nothing, as the name has no dots
    except (ValueError, ImportError):
        return None
    locations: Sequence[str] = list(spec.submodule_search_locations or ()) if spec else []
    origin = locations[0] if locations else spec and spec.origin
    if not origin or not os.path.exists(origin):
        return None
    folder = Path(origin).resolve().parent
    if {"site-packages", "dist-packages"} & {*folder.parts}:
        return folder
    return None if folder.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve()) else folder


def _version(top: str) -> str:
    """Return the version of the installed package that provides a top-level module, as PyYAML provides `yaml`."""
    distributions = packages_distributions().get(top)
    return version(distributions[0]) if distributions else "installed"


def _file(place: Path, name: str) -> Path | None:
    path = place.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def _imports(name: str, file: Path) -> Iterator[str]:
    """Yield the names in a file's imports; some are modules, others classes or functions."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(_parsed(_source(name, file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
            yield base


_last_read: dict[Path, str] = {}  # by file
_imported: dict[str, tuple[ModuleSpec, str]] = {}  # by module, which is imported again with another specification


def _source(name: str, file: Path) -> str:
    """Read a module of the user's: if this process has imported it, as last read before, or else first after that."""
    file = file.resolve()
    text, spec = _read(file), getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or Path(spec.origin or "").resolve() != file:
        _last_read[file] = text
        return text
    before = _imported.get(name)
    if before is None or before[0] is not spec:
        _imported[name] = spec, text if before else _last_read.get(file, text)
    return _imported[name][1]


def _read(file: Path) -> str:
    try:
        return read_text(file.resolve(), LONGEST_SOURCE)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as a module ({error})") from error


@cache
def _parsed(source: str) -> ast.Module:
    """Return a module without its docstrings; if it is not valid Python, return an empty one: its import will fail."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *rest]:
                    node.body = rest or [ast.Pass()]
    return tree


@cache
def _hash(source: str) -> str:
    """Return a hash of sixteen hexadecimal digits that does not depend on comments, docstrings and layout."""
    try:
        code = ast.unparse(_parsed(source)) or source
    except RecursionError:
        code = source
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _joined(modules: dict[str, str]) -> str:
    text = "\n".join(f"{name} {value}" for name, value in sorted(modules.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def modules_in(copy: Path) -> dict[str, str]:
    """Return the hash of each module in a copy, by name; empty if there is no copy."""
    modules = {}
    for file in sorted(copy.rglob("*.py")):
        parts = file.relative_to(copy).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = _hash(_read_in(copy, file))
    return modules


def _read_in(copy: Path, file: Path) -> str:
    """Read a file of a copy, but follow no links, because a copy is data that comes with a run folder."""
    try:
        return read_text(file, LONGEST_SOURCE)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as a module ({error})") from error
