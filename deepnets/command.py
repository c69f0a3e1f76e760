"""The common part of all commands: how a command ends, common options, and types for the values of options."""

import argparse
import atexit
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from deepnets.config.hydra_errors import HYDRA_ERRORS, explain
from deepnets.config.trust import choose_code, trust
from deepnets.distributed.signals import CTRL_C, Interrupted, how_to_resume
from deepnets.errors import UserError, nearest, shortened, system_message
from deepnets.system import stop_at_once
from deepnets.system.printing import print_error

MOST = 10**9  # the largest whole number that an option takes; it overflows no library's integers


def run_command(command: Callable[[], int]) -> NoReturn:
    """Call `command` and exit with its code; with 1 and a message after a user's error, with 128 + n after signal n.

    It is also a user's error if Hydra refuses to compose, or if the system refuses a file or memory. A bug is printed
    with its traceback; with HYDRA_FULL_ERROR=1, a user's error too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # on a terminal that is not UTF-8
    threading.excepthook = _thread_failed

    def stop(number: int, frame: FrameType | None) -> None:
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            stop_at_once(number, frame)  # an exception in torch's C++ code would abort the process
        CTRL_C.append(number)
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
        if CTRL_C:  # an import that Ctrl-C interrupts may end in another error
            _end_stopped()
        message = _message_of(error)
        if message is None or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print_error(f"error: {shortened(message)}")
        _end_quietly(1)


def number(text: str, least: int = -MOST) -> int:
    """Read a whole number from `least` to `MOST`; raises the error that argparse reports."""
    if not re.fullmatch(r"-?\d{1,10}", text) or not least <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, {least} or more, {MOST} at most")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number >= 0."""
    return number(text, 0)


def count(text: str) -> int:
    """Read a whole number >= 1."""
    return number(text, 1)


def counts(text: str) -> list[int]:
    """Read whole numbers >= 1, separated by commas."""
    return [count(part) for part in text.split(",")]


def filled(text: str) -> str:
    """Return the text; refuse an empty one, which `--verify "$DATA"` gives if the variable has no value."""
    if not text:
        raise argparse.ArgumentTypeError("needs a value")
    return text


def some_of(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Make the type of an option that takes some of these names, separated by commas."""

    def names(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in choices]:
            raise argparse.ArgumentTypeError(f"{','.join(unknown)}: choose from {', '.join(choices)}")
        return text.split(",")

    return names


class Parser(argparse.ArgumentParser):
    """Names the nearest of its options if it does not know one, also as the parser of a subcommand."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the words and refuse unknown ones; argparse calls this for a subcommand, whose options `self` has."""
        namespace, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return namespace, left

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        super().error(message + (nearest(unknown[1], self._option_string_actions) if unknown else ""))


class _Trusts(argparse.Action):
    """Trusts the class, module or file that an option names, as soon as the option is parsed."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        trust(values)


class _ChoosesCode(argparse.Action):
    """Chooses a version of the code as soon as the option is parsed."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        choose_code(values)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add --trust, which acts until the process ends; --project is another name for it."""
    parser.add_argument(
        *("--trust", "--project"),
        action=_Trusts,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="your own class or module, its file, or a project's file",
    )


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that executes a user's own code: what to trust, and which version."""
    add_trust_option(parser)
    parser.add_argument(
        "--code",
        action=_ChoosesCode,
        default=argparse.SUPPRESS,
        metavar="frozen|current",
        help="if your code has changed since the run began: execute the copy beside the run, or today's",
    )


def add_weights_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that loads the weights of a run."""
    add_code_options(parser)
    parser.add_argument(
        "--allow-previous", action="store_true", help="accept weights of an earlier iteration of a finished run"
    )


def add_iteration_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses among the weights that a run has kept."""
    parser.add_argument(
        "--iteration",
        type=int,
        metavar="N",
        help="take the weights of this iteration, which keep_checkpoints=K or selection=best_validation kept",
    )


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of the commands that need to know the input of a run's network."""
    parser.add_argument(
        "--data",
        type=filled,
        metavar="DIR",
        help="the run's data, for runs of earlier versions, which stored no normalisation",
    )


def _message_of(error: Exception) -> str | None:
    """Return the message for the user, or None if the error is a bug."""
    if isinstance(error, UserError):
        return str(error)
    return explain(error) if isinstance(error, HYDRA_ERRORS) else system_message(error)


def _end_stopped() -> NoReturn:
    """End with 130 after Ctrl-C.

    This does not call sys.exit, which may end the process by SIGINT instead if Ctrl-C came while Python executed
    generated code, such as a method of a dataclass.
    """
    print_error(f"Stopped. {how_to_resume()}.")
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(130)


def _end_quietly(code: int) -> NoReturn:
    """Exit quietly: the interpreter would flush the output again, and report an error if it is full or closed."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    sys.exit(code)


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    """Do not print that a thread cannot write a file: TensorBoard's writer raises the error again at its next use."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)
