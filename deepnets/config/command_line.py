"""From the words of a command to the rows of its grid."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os.path import abspath, expanduser
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from deepnets.config.compose import check_words, compose, composed, register, renamed, row_of, search_of
from deepnets.config.composing import composing
from deepnets.config.overruled import check_options, check_widths
from deepnets.config.places import CONF
from deepnets.config.project import Project, check_options_folder, is_file, read_project
from deepnets.config.schema import DEFAULTS, Row, Search
from deepnets.config.sweep_rows import rows_of
from deepnets.errors import UserError


def rows_of_command() -> list[Row]:
    """The rows that `sys.argv` composes; none where it asks for something else, as with --help.

    Raises:
        HydraException, OmegaConfBaseException: an unknown option or key, a value of the wrong type.
        UserError: options, sweeps or trusted targets that do not go together.
    """
    # A shell expands ~ only where a word begins, and Hydra does not read it.
    sys.argv[1:] = [
        re.sub(r"^([\w.]+=)(~/)", lambda found: found[1] + expanduser(found[2]), word) for word in sys.argv[1:]
    ]
    for place, word in enumerate(sys.argv):
        if (now := renamed(word)) != word:
            print(f"{word}: read as {now}, its name since it belongs to the launcher", file=sys.stderr)
            sys.argv[place] = now
    words, project, search = _project(sys.argv[1:])
    known = {*search.places, *_typed_places(words)}
    _check_folders(known)  # before Hydra reads them
    register()
    rows = _rows_by_rules(words, search)
    if rows is None:
        rows = _rows_of_hydra(_flags(search, words))
    if not rows:
        return []
    sweeps = {row.choices.get("sweep") for row in rows}
    if len(sweeps) > 1:
        raise UserError(f"sweep={','.join(sorted(map(str, sweeps)))}: a command trains one sweep")
    _check_folders({*rows[0].search.places} - known)
    typed_trust = any(word.startswith("trusted_targets=") for word in words)
    if not all(isinstance(each, str) for row in rows for each in row.config.trusted_targets):
        raise UserError("trusted_targets: needs a list of names, such as trusted_targets=[my_shortcuts.ReZero]")
    trusted = {tuple(row.config.trusted_targets) for row in rows}
    if len(trusted) > 1 or (rows[0].config.trusted_targets and not typed_trust):
        raise UserError("trusted_targets: can be set on the command line only, to one list for all runs")
    for row in rows:
        check_options(row)
        check_widths(row)
        trust = row.config.trusted_targets  # with absolute files, as jobs may start elsewhere
        trust[:] = [abspath(each) if is_file(each) else each for each in trust]
        if project:  # trusted as a whole, so that a job elsewhere reads the list of then
            trust.append(str(project.file))
    return rows


def _project(words: Sequence[str]) -> tuple[list[str], Project | None, Search]:
    """The other words, the project that --project names, and where options are searched for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--project")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn", default=DEFAULTS)
    known, rest = parser.parse_known_args(words)
    if known.project:
        if known.config_dir or known.config_name != DEFAULTS:
            raise UserError("--project: names its own options and defaults; leave out --config-dir and --config-name")
        project = read_project(known.project)
        return rest, project, project.search
    places = (f"file://{Path(known.config_dir).absolute()}",) if known.config_dir else ()
    return rest, None, Search(places, known.config_name)


def _typed_places(words: Iterable[str]) -> list[str]:
    """Where options are searched for by `hydra.searchpath=[file://FOLDER]`."""
    typed = [word for word in words if word.startswith("hydra.searchpath=")]
    values = [override.value() for override in OverridesParser.create().parse_overrides(typed)]
    return [place for value in values if isinstance(value, list) for place in value if isinstance(place, str)]


def _check_folders(places: Iterable[str]) -> None:
    for place in sorted(places):
        if place.startswith("file://"):
            check_options_folder(Path(place.removeprefix("file://")))


def _flags(search: Search, words: Sequence[str]) -> list[str]:
    """The words for Hydra, which takes its flags in front.

    Raises:
        UserError: a flag that there is not, or that lacks its value.
    """

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; options are written as key=value, and --hydra-help lists all flags")

    several = ("-m", "--multirun")
    folders = [word for place in search.places for word in ("--config-dir", place.removeprefix("file://"))]
    in_front = sorted([*folders, "--config-name", search.defaults, *words], key=lambda word: word not in several)
    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]  # which would print how Hydra is used, over eight lines
    parser.parse_args(in_front)
    return in_front


def _rows_by_rules(words: Sequence[str], search: Search) -> list[Row] | None:
    """The rows of a sweep with rules, which Hydra's sweeper does not know; None of others, and where flags ask."""
    typed_words = [word for word in words if word not in ("-m", "--multirun")]
    sweeps = [word for word in typed_words if re.fullmatch(r"sweep=[^,]+", word)]
    if not sweeps or any(word.startswith("-") for word in typed_words):
        return None
    check_words(typed_words)
    of_hydra = [word for word in typed_words if word.lstrip("+~").startswith("hydra.")]
    scales = [word for word in typed_words if re.fullmatch(r"scale=[^,]+", word)]
    page = composed((*of_hydra, *scales, sweeps[-1]), search)[0]
    rules: Any = OmegaConf.to_object(page.sweep) if page.sweep else None
    if not (rules and (rules.zip or rules.exclude or rules.union)):
        return None
    params: Any = OmegaConf.to_container(page.hydra.sweeper.params or OmegaConf.create({}), resolve=True)
    overrides = [word for word in typed_words if word not in of_hydra]
    return [compose([*of_hydra, *row], search) for row in rows_of(params, rules, overrides)]


def _rows_of_hydra(words: Sequence[str]) -> list[Row]:
    jobs = _composed(words)
    if not jobs:
        return []
    config, job = jobs[0]
    if config.sweep and job.sweeper.params and job.mode != RunMode.MULTIRUN:
        name = f"sweep={job.runtime.choices['sweep']}"
        raise UserError(f"{name}: its hydra.sweeper.params make no rows; add `mode: MULTIRUN` below its `hydra:`")
    search = search_of(job, job.job.config_name or DEFAULTS)
    return [row_of(config, dict(job.runtime.choices), job.overrides.task, search) for config, job in jobs]


def _composed(words: Sequence[str]) -> list[tuple[DictConfig, HydraConf]]:
    """Every row of the grid with Hydra's own node; nothing is checked, written or trained before all are composed."""
    rows: list[tuple[DictConfig, HydraConf]] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=DEFAULTS)
    def note(config: DictConfig) -> None:
        rows.append((config, HydraConfig.get()))

    if any(word.startswith(("--config-path", "-cp")) for word in words):
        raise UserError("--config-path: cannot replace the options of deepnets; add your own with --config-dir")
    typed_words, sys.argv = sys.argv, [sys.argv[0], *words]  # where Hydra reads them
    try:
        with _errors_raised(), composing(words):
            check_words(word for word in words if "=" in word and not word.startswith("-"))
            note()
    finally:
        sys.argv = typed_words
    return rows


@contextmanager
def _errors_raised() -> Iterator[None]:
    """Hydra prints an error over tens of lines and exits, unless this variable is set."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
