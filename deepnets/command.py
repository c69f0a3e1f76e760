"""The top of every command: how it ends when the user erred, or asked it to stop."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import NoReturn

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from deepnets.distributed.signals import RESUME, Interrupted
from deepnets.errors import UserError

SHORT = 160  # characters: a longer list of names is not printed


def run_command(command: Callable[[], int]) -> NoReturn:
    """Call `command` and exit with the code it returns; 1 with a message for a user's error, 128 + n after signal n.

    What Hydra refuses to compose is a user's error too. A bug has its traceback; with HYDRA_FULL_ERROR=1 so has a
    user's error.
    """
    try:
        sys.exit(command())
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        sys.exit(f"error: {error if isinstance(error, UserError) else in_short(error)}")
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        print(f"Stopped. {RESUME}.", file=sys.stderr)
        sys.exit(130)


def called() -> list[str]:
    """The words of this command as they were typed, however Python was found."""
    program, *words = sys.argv
    verb = program.split() if program.startswith("deepnets ") else [os.path.basename(sys.executable), program]
    return [*verb, *words]


def in_short(error: Exception) -> str:
    """What Hydra or OmegaConf refused, in one or two lines: the word, what is wrong with it, and the nearest names."""
    line, cause = str(error).partition("\n")[0], error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return f"{group}={option}: no such option{_nearest(option, error.options or (), '--help')}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read: {line}"
    if found := re.match(r"Could not override '(.+)'\.", line):
        node = getattr(cause, "parent_node", None)
        names = [str(name) for name in node] if isinstance(node, DictConfig) else []
        return f"{found[1]}: no such key{_nearest(str(getattr(cause, 'key', found[1])), names, '--cfg job')}"
    if found := re.match(r"Error merging override (.+)", line):
        return f"{found[1]}: {str(cause).partition(chr(10))[0]}"
    if found := re.match(r"Could not append to config. An item is already at '(.+)'", line):
        return f"+{found[1]}: it is there already; leave out the +"
    if found := re.match(r"Multiple values for (.+?)\.", line):
        return f"+{found[1]}: it is there already; leave out the +"
    if found := re.match(r"Could not delete from config. '(.+)' does not exist", line):
        return f"~{found[1]}: no such key"
    if found := re.match(r"Ambiguous value for argument '(.+)'", line):
        return f"{found[1]}: add -m to train a run with each value, or [ ] around a list"
    if found := re.match(r".*[Mm]issing mandatory value: (.+)", line):
        return f"{found[1] if '.' in found[1] else getattr(error, 'full_key', found[1])}: needs a value"
    key = getattr(error, "full_key", None)
    return f"{key}: {line}" if key else line


def _nearest(name: str, names: Iterable[str], listing: str) -> str:
    """The rest of a sentence that says which names there are."""
    names = list(names)
    if near := get_close_matches(name, names, n=4, cutoff=0.7):
        return f"; the nearest: {', '.join(near)}"
    every = ", ".join(names)
    return f"; one of {every}" if every and len(every) <= SHORT else f"; {listing} lists all"
