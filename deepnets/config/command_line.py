"""From the words of a command to the rows of its grid."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os.path import expanduser
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.compose import check_words, register, renamed, row_of, search_of
from deepnets.config.overruled import check_options
from deepnets.config.places import CONF
from deepnets.config.project import Project, check_options_folder, read_project
from deepnets.config.schema import DEFAULTS, Row
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
    words, project = _project(sys.argv[1:])
    register()
    composed = _composed(words)
    if not composed:
        return []
    sweeps = {chosen.runtime.choices.get("sweep") for _, chosen in composed}
    if len(sweeps) > 1:
        raise UserError(f"sweep={','.join(sorted(map(str, sweeps)))}: a command trains one sweep")
    search = search_of(composed[0][1], composed[0][1].job.config_name or DEFAULTS)
    for folder in [place.removeprefix("file://") for place in search.places if place.startswith("file://")]:
        check_options_folder(Path(folder))
    rows = [row_of(config, dict(chosen.runtime.choices), chosen.overrides.task, search) for config, chosen in composed]
    typed_trust = any(word.startswith("trusted_targets=") for word in words)
    trusted = {tuple(row.config.trusted_targets) for row in rows}
    if len(trusted) > 1 or (rows[0].config.trusted_targets and not typed_trust):
        raise UserError("trusted_targets: can be set on the command line only, to one list for all runs")
    for row in rows:
        check_options(row)
        if project:  # trusted as a whole, so that a job elsewhere reads the list of then
            row.config.trusted_targets.append(str(project.file))
    return rows


def _project(words: Sequence[str]) -> tuple[list[str], Project | None]:
    """The words for Hydra, where options are searched for in front, and the project that --project names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--project")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn")
    known, rest = parser.parse_known_args(words)
    project = read_project(known.project) if known.project else None
    if project and (known.config_dir or known.config_name):
        raise UserError("--project: names its own options and defaults; leave out --config-dir and --config-name")
    folder = known.config_dir if project is None else project.options
    defaults = known.config_name if project is None else project.defaults
    options = ["--config-dir", str(folder)] if folder else []
    options += ["--config-name", defaults] if defaults else []
    return [*options, *rest], project


def _composed(words: Sequence[str]) -> list[tuple[DictConfig, HydraConf]]:
    """Every row of the grid with Hydra's own node; nothing is checked, written or trained before all are composed."""
    rows: list[tuple[DictConfig, HydraConf]] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=DEFAULTS)
    def compose(config: DictConfig) -> None:
        rows.append((config, HydraConfig.get()))

    if any(word.startswith(("--config-path", "-cp")) for word in words):
        raise UserError("--config-path: the options of deepnets always stand; add your own with --config-dir")
    typed_words, sys.argv = sys.argv, [sys.argv[0], *words]  # where Hydra reads them
    try:
        with _errors_raised():
            check_words(word for word in words if "=" in word and not word.startswith("-"))
            compose()
    except OmegaConfBaseException:
        raise
    except UserError:
        raise
    except ValueError as error:  # Hydra's own flags do not go together
        raise UserError(str(error)) from error
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
