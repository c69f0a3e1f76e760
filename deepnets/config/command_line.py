"""From the words of a command to the rows of its grid."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import expanduser

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.compose import check_words, register, renamed, typed
from deepnets.config.overruled import check_options
from deepnets.config.places import CONF
from deepnets.config.schema import Row
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
    register()
    composed = _composed()
    if not composed:
        return []
    sweeps = {chosen.runtime.choices.get("sweep") for _, chosen in composed}
    if len(sweeps) > 1:
        raise UserError(f"sweep={','.join(sorted(map(str, sweeps)))}: a command trains one sweep")
    rows = [
        Row(typed(config), dict(chosen.runtime.choices), tuple(chosen.overrides.task)) for config, chosen in composed
    ]
    typed_trust = any(word.startswith("trusted_targets=") for word in sys.argv[1:])
    trusted = {tuple(row.config.trusted_targets) for row in rows}
    if len(trusted) > 1 or (rows[0].config.trusted_targets and not typed_trust):
        raise UserError("trusted_targets: can be set on the command line only, to one list for all runs")
    for row in rows:
        check_options(row)
    return rows


def _composed() -> list[tuple[DictConfig, HydraConf]]:
    """Every row of the grid with Hydra's own node; nothing is checked, written or trained before all are composed."""
    rows: list[tuple[DictConfig, HydraConf]] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def compose(config: DictConfig) -> None:
        rows.append((config, HydraConfig.get()))

    with _errors_raised():
        check_words(word for word in sys.argv[1:] if not word.startswith("-"))
        try:
            compose()
        except OmegaConfBaseException:
            raise
        except ValueError as error:  # Hydra's own flags do not go together
            raise UserError(str(error)) from error
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
