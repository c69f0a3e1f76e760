"""The top of every command: how it ends when the user erred, or asked it to stop."""

import atexit
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from types import FrameType
from typing import Any, NoReturn

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.project import CONF
from deepnets.distributed.signals import RESUME, Interrupted
from deepnets.errors import UserError, of_system, readable
from deepnets.system.printing import print_error

SHORT = 160  # characters: a longer list of names is not printed
PACKAGE = "a sweep, like a protocol, begins with the line # @package _global_"
VALUES = {  # what OmegaConf says about a value
    r".* could not be converted to Integer": "must be an integer",
    r".* could not be converted to Float": "must be a number",
    r".* is not a valid bool .*": "must be true or false",
    r"Invalid value .*, expected one of \[(.*)\]": r"must be one of \1",
    r"field .* is not Optional|Incompatible value 'None' .*": "needs a value",
    r"Key .* not in 'Sweep'|Key 'protocol' not in .*": "no such key here; " + PACKAGE,
}


def run_command(command: Callable[[], int]) -> NoReturn:
    """Call `command` and exit with the code it returns; 1 with a message for a user's error, 128 + n after signal n.

    What Hydra refuses to compose is a user's error too, and so is a file or memory that the system refuses. A bug has
    its traceback; with HYDRA_FULL_ERROR=1 so has a user's error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # on a terminal that is not UTF-8
    threading.excepthook = _thread_failed
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)
    try:
        code = command()
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:  # the reader of the output has left
        _end_quietly(128 + signal.SIGPIPE)
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except KeyboardInterrupt:
        _end_stopped()
    except Exception as error:
        if stopped:  # an import that Ctrl-C breaks off may end in another error
            _end_stopped()
        line = _said(error)
        if line is None or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print_error(f"error: {readable(line)}")
        _end_quietly(1)


def _said(error: Exception) -> str | None:
    if isinstance(error, UserError):
        return str(error)
    return in_short(error) if isinstance(error, HydraException | OmegaConfBaseException) else of_system(error)


def _end_stopped() -> NoReturn:
    """By Ctrl-C. Where that broke off code made of a text, as dataclasses are, sys.exit would end in a signal."""
    print_error(f"Stopped. {RESUME}.")
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(130)


def _end_quietly(code: int) -> NoReturn:
    """As the interpreter ends it writes what is left to print, which cannot be where the output is full or closed."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    sys.exit(code)


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    """A file that a thread cannot write is raised again by TensorBoard's writer where it is used next."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)


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
        if not group:
            return f"{option}: no such file of defaults; --config-name and a project's `defaults` omit its .yaml"
        return f"{group}={option}: no such option{_nearest(option, error.options or (), '--help')}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read: {_of_word(str(error.override), str(error))}"
    if found := re.match(r"In '(.+)': \w+ raised while composing config:", line):
        reason = str(error).partition("\n")[2].partition("\n")[0]
        named = re.search(r"full_key: (\S+)", str(error))
        return f"{found[1]}.yaml: {f'{named[1]}: ' if named else ''}{_of_value(reason)}"
    if found := re.match(r"In '(.+)': Could not override '(.+)@.+'", line):
        return f"{found[1]}.yaml: no {found[2]} to override here; {PACKAGE}"
    if found := re.match(r"Could not override '(.+)'\.", line):
        node = getattr(cause, "parent_node", None)
        names = OmegaConf.to_container(node) if isinstance(node, DictConfig) else {}
        typed = str(getattr(cause, "key", found[1]))
        return f"{found[1]}: no such key{_elsewhere(found[1]) or _nearest_key(typed, names)}"
    if found := re.match(r"Error merging override (.+)", line):
        return f"{found[1]}: {_of_value(str(cause).partition(chr(10))[0])}"
    if found := re.match(r"Could not append to config. An item is already at '(.+)'", line):
        return f"+{found[1]}: it is there already; leave out the +"
    if found := re.match(r"Multiple values for (.+?)\.", line):
        return f"+{found[1]}: it is there already; leave out the +"
    if found := re.match(r"Could not delete from config. '(.+)' does not exist", line):
        return f"~{found[1]}: no such key"
    if found := re.match(r"Ambiguous value for argument '(.+)'", line):
        if found[1].startswith("sweep="):
            return f"{found[1]}: a command trains one sweep"
        return f"{found[1]}: add -m to train a run with each value, or [ ] around a list"
    if found := re.match(r".*[Mm]issing mandatory value: (.+)", line):
        return f"{found[1] if '.' in found[1] else getattr(error, 'full_key', found[1])}: needs a value"
    key = getattr(error, "full_key", None)
    return f"{key}: {line}" if key else line


def _of_value(line: str) -> str:
    """What OmegaConf says about a value, as this project says it."""
    found = (match.expand(plainer) for wording, plainer in VALUES.items() if (match := re.fullmatch(wording, line)))
    return next(found, line)


def _of_word(word: str, reason: str) -> str:
    """Why Hydra cannot read a word, or how it is written so that Hydra can."""
    key, equals, value = word.partition("=")
    if not equals:
        return "must be key=value"
    if value.endswith(","):
        return "ends in a comma; leave out the space behind it, or put the word in quotes"
    if value.startswith(("/", ".", "~")):  # a path with a character that has a meaning in Hydra's grammar
        return f"""put its value in quotes: {shlex.quote(f'{key}="{value}"')}"""
    lines = reason.splitlines()
    return lines[lines[0].startswith("Error parsing override")]


def _elsewhere(key: str) -> str:
    """The rest of a sentence that says which other options of the key's group have it; empty where none has."""
    group, _, name = key.partition(".")
    options = [
        f"{group}={file.stem}"
        for file in sorted((CONF / group).glob("*.yaml"))
        if re.search(rf"^{re.escape(name)}:", file.read_text(), re.MULTILINE)
    ]
    return f"; {', '.join(options)} {'has' if len(options) == 1 else 'have'} it" if options else ""


def _nearest_key(name: str, node: Any) -> str:
    """`_nearest` for a key of `node`, which may stand in one of the nodes below it."""
    below = [
        f"{place}{'/' if isinstance(inner[name], dict) else '.'}{name}"
        for place, inner in node.items()
        if isinstance(inner, dict) and name in inner
    ]
    return f"; the nearest: {', '.join(below)}" if below else _nearest(name, map(str, node), "--cfg job")


def _nearest(name: str, names: Iterable[str], listing: str) -> str:
    """The rest of a sentence that says which names there are."""
    names = list(names)
    within = [each for each in names if len(name) > 2 and name in each]
    near = within if len(", ".join(within)) <= SHORT else []
    if near := near or get_close_matches(name, names, n=4, cutoff=0.7):
        return f"; the nearest: {', '.join(near)}"
    every = ", ".join(names)
    return f"; one of {every}" if every and len(every) <= SHORT else f"; {listing} lists all"
