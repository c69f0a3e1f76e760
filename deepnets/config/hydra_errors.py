"""Says Hydra's and OmegaConf's errors in plain words: the override, what is wrong with it, the nearest names."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.build import TARGETS, signature_of
from deepnets.config.project import CONF
from deepnets.config.schema import Config, Published, Sweep
from deepnets.config.trust import is_trusted
from deepnets.errors import UserError, nearest

HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
KEYS = [key.name for key in fields(Config)]
SHORT = 160  # characters: a longer list of names is not printed
ALIKE = 0.8  # how similar a key must be to be named before the options that have the typed one
MOST_OPTIONS = 4  # options that an error names
SEEDS = "several seeds are -m 'seed=range(3)' or seed=0,1,2"
OF_SWEEPS = "add sweep=NAME; `rows` and `zip` stand below `sweep:` in its file, conf/sweep/NAME.yaml"
PACKAGE = "a sweep, like a protocol, begins with the line # @package _global_"
VALUES = {  # OmegaConf's messages about a value, and how this project says them
    r".* could not be converted to Integer": "must be an integer",
    r".* could not be converted to Float": "must be a number",
    r".* is not a valid bool .*": "must be true or false",
    r"Invalid value .*, expected one of \[(.*)\]": r"must be one of \1",
    r"field .* is not Optional|Incompatible value 'None' .*": "needs a value",
    r"Key .* not in 'Sweep'": f"no such key here; sweep has {', '.join(key.name for key in fields(Sweep))}; {PACKAGE}",
    r"Key .* not in 'Published'": f"no such key; reported has {', '.join(key.name for key in fields(Published))}",
    r"Key 'protocol' not in .*": "no such key here; " + PACKAGE,
    r"Invalid value assigned: str is not a ListConfig.*": "must be a list; zip is a list of lists, as [[a, b]]",
    r"Cannot assign \w+ to Dict.*": "is chosen below `defaults:`, as `- override /model: resnet20`",
}


@contextmanager
def explained(words: Iterable[str]) -> Iterator[None]:
    """Explain errors within the context as mistakes in the words or in an option file; so call only Hydra there.

    Raises:
        UserError: Hydra fails an assertion or a look-up, or there is no such group of options.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserError, MemoryError) as error:
        if match := re.match(r"Could not override '((.+)/.+)'\.", str(error)):  # only groups have a / in their names
            groups = [str(group.relative_to(CONF)) for group in CONF.rglob("*/")]
            if match[1] in groups:
                raise UserError(f"{match[1]}: the chosen {match[2]} has no such part; leave it out") from error
            listed = nearest(match[1], groups) or "; --help lists all"
            raise UserError(f"{match[1]}: no such group of options{listed}") from error
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # OmegaConf raises some without errno
            raise
        reason = f"Hydra cannot compose this: {' '.join(str(error).split()) or type(error).__name__}"
        if isinstance(error, AssertionError):
            has_sweep = any(word.startswith("sweep=") for word in words)
            words = [word for word in words if "." in word.partition("=")[0]]
            reason = f"a key here lies below one that has no value ({reason})"
            if not has_sweep and any(word.lstrip("+~").startswith("sweep.") for word in words):
                reason = f"no sweep is chosen; {OF_SWEEPS}"
        raise UserError(f"{' '.join(words)}: {reason}") from error


def explain(error: Exception) -> str:
    """Say in a line why Hydra or OmegaConf refused an override or a file, and list the most similar names."""
    line, cause = str(error).partition("\n")[0], error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        folder, _, nested = group.partition("/")
        # A name in a file of defaults is relative to the file's folder.
        if nested and (CONF / folder).is_dir() and (CONF / nested).is_dir():
            return f"{group}={option}: no such option; a list of defaults names it as `override /{nested}: {option}`"
        if not group:
            return f"{option}: no such file of defaults; --config-name and a project's `defaults` omit its .yaml"
        if os.path.isfile(f"conf/{group}/{option}.yaml"):  # the user has the option, but has not named its folder
            words = "--project project.yaml" if Path("project.yaml").is_file() else "--config-dir conf"
            return f"{group}={option}: no such option; to use those in ./conf, add {words}"
        return f"{group}={option}: no such option{_nearest(option, error.options or (), '--help')}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read: {_why_unreadable(str(error.override), str(error))}"
    if match := re.match(r"In '(.+)': \w+ raised while composing config:", line):
        reason = str(error).partition("\n")[2].partition("\n")[0]
        key = re.search(r"full_key: (\S+)", str(error))
        plainer = _why_illegal(reason)
        if plainer == reason and (unknown := re.fullmatch(r"Key '(.+)' not in 'Config'", reason)):
            return f"{match[1]}.yaml: {unknown[1]}: no such key{_nearest(unknown[1], KEYS, '--cfg job')}"
        return f"{match[1]}.yaml: {f'{key[1]}: ' if key else ''}{plainer}"
    if match := re.match(r"In '(.+)': Could not override '(.+)@.+'", line):
        return f"{match[1]}.yaml: no {match[2]} to override here; {PACKAGE}"
    if match := re.match(r"Could not override '(.+)'\.", line):
        node = getattr(cause, "parent_node", None)
        names: Any = OmegaConf.to_container(node) if isinstance(node, DictConfig) else {}
        typed = str(getattr(cause, "key", match[1]))
        if typed == match[1].rpartition(".")[2] and _class_takes(typed, names):
            return f"{match[1]}: the option's file does not set it; add it there, or type +{match[1]}=VALUE"
        if match[1] == "seeds":
            return f"seeds: no such key; {SEEDS}, or in a sweep sweep.seeds=3"
        if match[1] in ("zip", "rows"):
            return f"{match[1]}: no such key; {OF_SWEEPS}"
        if (options := _options_with(match[1])) and (alike := get_close_matches(typed, map(str, names), 1, ALIKE)):
            return f"{match[1]}: no such key; the nearest: {alike[0]}{options}"
        return f"{match[1]}: no such key{options or _nearest_key(typed, names)}"
    if match := re.match(r"Error merging override (.+)", line):
        several = f"; {SEEDS}" if match[1].startswith("seed=") else ""
        return f"{match[1]}: {_why_illegal(str(cause).partition(chr(10))[0])}{several}"
    if match := re.match(r"Could not append to config. An item is already at '(.+)'", line):
        return f"+{match[1]}: it is there already; leave out the +"
    if match := re.match(r"(?:Multiple values for )?(\S+?)(?:\. | appears more than once in the final )", line):
        remedy = f"write `override /{match[1]}: NAME` in a list of defaults, or leave out the + in a command"
        return f"{match[1]}: an option is chosen already; to choose another, {remedy}"
    if match := re.match(r"Could not delete from config. '(.+)' does not exist", line):
        return f"~{match[1]}: no such key"
    if match := re.match(r"Ambiguous value for argument '(.+)'", line):
        if match[1].startswith("sweep="):
            return f"{match[1]}: a command trains one sweep"
        brackets = ", or [ ] around a list" * ("." in match[1].partition("=")[0])  # no key without a dot takes a list
        return f"{match[1]}: add -m to train a run with each value{brackets}"
    if match := re.match(r".*[Mm]issing mandatory value: (.+)", line):
        return f"{match[1] if '.' in match[1] else getattr(error, 'full_key', match[1])}: needs a value"
    if not line and isinstance(cause, Exception):
        return explain(cause)
    full_key = getattr(error, "full_key", None)
    return f"{full_key}: {line}" if full_key else line


def _class_takes(name: str, node: Any) -> bool:
    """Return whether the class or function that the node names, if it is trusted, has an argument of this name."""
    target = node.get("_target_") if isinstance(node, dict) else None
    if not isinstance(target, str) or not (target in TARGETS or is_trusted(target)):
        return False
    try:
        return name in signature_of(target)[0]
    except Exception:  # the user's own module cannot be imported, which is said when it is needed
        return False


def _why_illegal(line: str) -> str:
    """Translate OmegaConf's message about a value into this project's words; an unknown message stays as it is."""
    matches = (match.expand(plainer) for wording, plainer in VALUES.items() if (match := re.fullmatch(wording, line)))
    return next(matches, line)


def _why_unreadable(override: str, reason: str) -> str:
    """Say why Hydra cannot parse an override, or how to write it correctly."""
    key, equals, value = override.partition("=")
    if not equals:
        return "must be key=value"
    if value.endswith(","):
        return "ends in a comma; leave out the space behind it, or put the word in quotes"
    if value.startswith(("/", ".", "~")):  # a path; these characters mean something to Hydra
        return f"""put its value in quotes: {shlex.quote(f'{key}="{value}"')}"""
    if any(value.count(left) != value.count(right) for left, right in ("()", "[]", "{}")):
        return "a bracket is not closed, or not opened"
    if value.startswith("glob(") and "[" in value:
        example = """'model/shortcut=glob("*_b[0-5]")'"""
        return f"put a pattern that has brackets in quotes, as in {example}"
    lines = reason.splitlines()
    return lines[lines[0].startswith("Error parsing override")]


def _options_with(key: str) -> str:
    """Return the end of a sentence: the options of the key's group that have the key; empty if none has it."""
    group, _, name = key.replace(".", "/").rpartition("/")
    below = group.rpartition("/")[2]  # a file of model/shortcut sets `shortcut:` of the package model
    options = []
    for file in sorted((CONF / group).glob("*.yaml")) if group else []:
        node = yaml.safe_load(file.read_text())
        if name in ((node if below == group else node.get(below)) or {}):
            options.append(f"{group}={file.stem}")
    if len(options) > MOST_OPTIONS:
        return f"; {len(options)} options have it, such as {options[0]}"
    return f"; {', '.join(options)} {'has' if len(options) == 1 else 'have'} it" if options else ""


def _nearest_key(name: str, node: Any) -> str:
    """Return the end of a sentence: the nearest keys of `node`, or the same key in a node below it."""
    below = [
        f"{place}{'/' if isinstance(inner[name], dict) else '.'}{name}"
        for place, inner in node.items()
        if isinstance(inner, dict) and name in inner
    ]
    keys = [key for key in map(str, node) if not key.startswith("_")]
    return f"; the nearest: {', '.join(below)}" if below else _nearest(name, keys, "--cfg job")


def _nearest(name: str, names: Iterable[str], listing: str) -> str:
    """Return the end of a sentence: the nearest names, all names, or the option `listing`, which prints all names."""
    names = list(names)
    within = [each for each in names if len(name) > 2 and name in each]
    near = within if len(", ".join(within)) <= SHORT else []
    if near := near or get_close_matches(name, names, n=4, cutoff=0.7):
        return f"; the nearest: {', '.join(near)}"
    listed = ", ".join(names)
    return f"; one of {listed}" if listed and len(listed) <= SHORT else f"; {listing} lists all"
