"""Reads sweep files and makes their rows: all combinations of values, as `zip`, `exclude` and `union` change them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice, product
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config import schema
from deepnets.config.compose import CONF_ALONE, compose, parsed, searching
from deepnets.config.hydra_errors import HYDRA_ERRORS, explained
from deepnets.config.identity import folder_name
from deepnets.config.project import CONF
from deepnets.config.safe_yaml import LOADER
from deepnets.config.schema import ABSENT, Search, Sweep, at_scale, axes_of, value_at
from deepnets.errors import UserError, brief

Axes = dict[str, list[str]]  # the values of each axis, as they are typed
Row = dict[str, str]  # the value of each axis; `schema.Row` is the run that is composed from it
R = TypeVar("R")

HEADER = "# @package _global_"
SWEEPS = CONF / "sweep"
STATISTIC = re.compile(r"(single|drawn|none|(best|median|mean) of [1-9]\d*)\b")
NO_KEY = "-"  # stands in the name of a row for the value of an axis that only other rows of a union have
ANY = "*"  # stands in the name of a row for the value of an axis that its file does not give
LARGEST_GRID = 10_000  # runs of one command, which are all composed before the first one starts
TOO_LARGE = f"a grid of more than {LARGEST_GRID:,} runs, the most that one command composes"


def rows_of(
    params: Mapping[str, Any], sweep: Sweep, typed: Sequence[str], search: Search = CONF_ALONE
) -> list[list[str]]:
    """Return the overrides of each row; `params` are the axes of the file, `typed` the words of the command.

    A word replaces the values of an axis; on an axis of `union` or `zip` it only selects values. If words set all axes
    of a `zip`, they are paired with each other instead.

    Raises:
        OverrideParseException: a word cannot be read.
        UserError: a rule names an unknown axis or pairs lists of different lengths, two entries of a union give the
            same row, no row, or none with a typed value, is left, or there are over `LARGEST_GRID` rows; the message
            names the rule. Or an axis or a word has no values, or values that cannot be listed.
    """
    words = _axes(typed, search)
    entries = [_values(entry, search) for entry in sweep.union or [{}]]
    union_axes = {key for entry in entries for key in entry}
    blocks = [_values(params, search) | entry for entry in entries]
    all_axes = {key for block in blocks for key in block}
    for rule, groups in (("zip", sweep.zip), ("exclude", sweep.exclude)):
        if unknown := [key for group in groups for key in group if key not in all_axes]:
            raise UserError(
                f"sweep.{rule}: {unknown[0]} is not an axis of this sweep; it has {', '.join(sorted(all_axes))}"
            )
    joined = _bounded(row for block in blocks for row in _rows(block, all_axes, union_axes, sweep.zip, words))
    rows = [row for row in joined if not any(_matches(row, _values(entry, search)) for entry in sweep.exclude)]
    for key in [key for key in words if key in all_axes]:
        remaining = {row.get(key) for row in rows}
        for value in [value for value in words[key] if value not in remaining]:
            left_out = any(row.get(key) == value for row in joined)
            rule = "exclude" if left_out else "union" if sweep.union else "zip"
            there = ", ".join(dict.fromkeys(value for block in blocks for value in block.get(key, ())))
            there = "" if left_out else f"; the sweep has {there}"
            raise UserError(f"sweep.{rule}: leaves no row with {key}={value}{there}")
    if not rows:
        raise UserError("sweep.exclude: leaves no row of this sweep")
    duplicates = [row for row, count in Counter(" ".join(sorted(_typed(row))) for row in rows).items() if count > 1]
    if duplicates and sweep.union:
        raise UserError(f"sweep.union: two of its entries produce the row {duplicates[0]}")
    constant = {key: values for key, values in words.items() if key not in all_axes}
    return _bounded(_typed(row) + _typed(more) for row in rows for more in _products(constant))


def params_of(rows: Mapping[str, Any], seeds: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return all axes of a sweep with their values: `rows`, then `seeds`, then Hydra's `params`; later ones win.

    Raises:
        UserError: `rows` has an axis `seed`, which names no row.
    """
    if "seed" in rows:
        raise UserError("sweep.rows: seed names no row; write sweep.seeds, as 3 (for 0, 1, 2) or [3, 4, 5]")
    seed = {} if seeds is None else {"seed": f"range({seeds})" if isinstance(seeds, int) else seeds}
    return {**rows, **seed, **params}


def check_file(file: Path) -> None:
    """Check a sweep's file for errors that Hydra does not report.

    Raises:
        UserError: the file is not YAML that gives settings by name, lacks its header, gives its rows in two ways, or
            has an unknown `statistic` in `sweep.reported`.
    """
    content = _content(file)
    if content.keys() - {"defaults"} and _package(file.read_text()) != HEADER.split()[-1]:
        raise UserError(f"{file}: begins without its header; the first line of a sweep is {HEADER}")
    sweep, hydra = (content[key] if isinstance(content.get(key), dict) else {} for key in ("sweep", "hydra"))
    sweeper = hydra["sweeper"] if isinstance(hydra.get("sweeper"), dict) else {}
    ways = [f"sweep.{key}" for key in ("rows", "seeds", "axes") if sweep.get(key) is not None]
    ways += ["hydra.sweeper.params"] * bool(sweeper.get("params"))
    reported = sweep.get("reported")
    if isinstance(reported, dict) and (problem := problem_of_statistic(reported.get("statistic"))):
        raise UserError(f"{file}: {problem}")
    if {"sweep.rows", "sweep.seeds"} & {*ways} and {"sweep.axes", "hydra.sweeper.params"} & {*ways}:
        raise UserError(f"{file}: has {' and '.join(ways)}; write all values in sweep.rows and sweep.seeds alone")


def problem_of_statistic(statistic: Any) -> str | None:
    """Say what is wrong with `sweep.reported.statistic`, which says what the paper's numbers are; None if nothing is.

    It begins with `STATISTIC`; more words may follow.
    """
    if statistic is None or STATISTIC.match(str(statistic)):
        return None
    return (
        f"sweep.reported.statistic is {brief(statistic)}, but must begin with single, drawn or none, or with best, "
        "median or mean of a number, as in mean of 5"
    )


def sweep_of(file: Path) -> dict[str, Any]:
    """Return the node `sweep` of a sweep file; empty if there is no such file.

    Raises:
        UserError: the file is not YAML that gives settings by name, or its `sweep` is not a node.
    """
    sweep = _content(file).get("sweep") or {}
    if not isinstance(sweep, dict):
        raise UserError(f"{file}: its sweep must be a node, as in conf/sweep/digits_shortcuts.yaml; correct it")
    return sweep


def value_at_scale(file: Path, key: str, scale: str) -> Any:
    """Return the value that a sweep file gives a dotted key at a scale.

    None if the file does not set the key, or if Hydra must compose the file to know the value.

    Raises:
        UserError: as `sweep_of`.
    """
    OmegaConf.register_new_resolver("at_scale", at_scale, replace=True)
    settings = _content(file) | {"scale": {"name": scale}}
    if isinstance(sweep := settings.get("sweep"), dict):
        settings["sweep"] = {name: value for name, value in sweep.items() if name != "claims"}  # these are long
    content = OmegaConf.create(settings)
    try:
        value = OmegaConf.select(content, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return None


def names_at(file: Path, scale: str, search: Search | None = None) -> list[str]:
    """Return the folder names of the rows that a sweep file trains at a scale, in the file's order.

    A row of `union` may lack an axis that other rows have. With `search`, where a command finds the file as an option,
    the row is composed to know the axis's value; without it, or if that fails, the name has `ANY` there: see
    `matching`. The list is empty if there is no such file, or if Hydra must compose the file itself to know its rows.

    Raises:
        UserError: as `sweep_of` and `rows_of`.
    """
    node = sweep_of(file)
    rows, params = (value_at_scale(file, key, scale) or {} for key in ("sweep.rows", "hydra.sweeper.params"))
    if union := value_at_scale(file, "sweep.union", scale):
        node = node | {"union": union}
    others = [name for name in _content(file).get("defaults") or [] if isinstance(name, str) and name != "_self_"]
    if not rows and not params and (others or not union):
        return []
    rules = Sweep(axes=axes_of(node), **{name: node[name] for name in ("zip", "exclude", "union") if name in node})
    grid = rows_of(params_of(rows, None, params | {"seed": 0}), rules, [])
    names = []
    for words in grid:
        values = dict(word.split("=", 1) for word in words)
        if search and not {*rules.axes} <= values.keys():
            with suppress(*HYDRA_ERRORS, UserError):  # a command that trains this row says what is wrong
                row = compose([f"sweep={file.stem}", f"scale={scale}", *words], search)
                values = {axis: axis_value(row, axis) for axis in rules.axes} | values
        parts = [folder_name(values[axis]) if axis in values else ANY for axis in rules.axes]
        names.append(",".join(parts) if ANY in parts else folder_name(",".join(values[axis] for axis in rules.axes)))
    return list(dict.fromkeys(names))


def matching(row: str, names: Sequence[str]) -> int | None:
    """Return the place of a row's name, or of the first that may be it, in names of `names_at`; None if none may."""
    if row in names:
        return names.index(row)
    return next((place for place, name in enumerate(names) if ANY in name and fnmatchcase(row, name)), None)


def axis_value(row: schema.Row, axis: str) -> str:
    """Return what the name of a composed row has for an axis: the option of a group, or the value of a key.

    A row without the key, as of another network than the rows of a `union` that set the key, has `NO_KEY`.

    Raises:
        UserError: the axis is neither.
    """
    if axis in row.choices:
        return str(row.choices[axis])
    value = value_at(row.config, axis, ABSENT)
    if value is ABSENT and row.config.sweep and any(axis in block for block in row.config.sweep.union):
        return NO_KEY
    if value is ABSENT:
        raise UserError(f"sweep.axes: {axis} is neither a group of options nor a key of the configuration")
    return str(value)


def _package(text: str) -> str | None:
    """Return the package that is named in the header of an options file, as Hydra reads it."""
    try:
        return ConfigSource._get_header_dict(text)["package"]
    except ValueError:  # the header has too many words
        return None


def _content(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = yaml.load(file.read_text(), LOADER) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as YAML ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: must have settings by name, as conf/sweep/digits_shortcuts.yaml; correct it")
    return content


def _bounded(rows: Iterable[R]) -> list[R]:
    """List the rows; raises a UserError if there are more than `LARGEST_GRID`."""
    listed = list(islice(rows, LARGEST_GRID + 1))
    if len(listed) > LARGEST_GRID:
        raise UserError(f"sweep: {TOO_LARGE}")
    return listed


def _rows(
    block: Axes, all_axes: set[str], union_axes: set[str], zips: Sequence[Sequence[str]], words: Axes
) -> Iterator[Row]:
    """Yield the rows of one block; it has none if a word sets an axis that only other blocks have."""
    if any(key in words for key in all_axes - block.keys()):
        return
    groups = [group for group in zips if set(group) <= block.keys()]
    paired = {key for group in groups for key in group}
    factors = [
        # A word selects among the values of a union's axis; it replaces all values of any other axis.
        [{key: value} for value in words.get(key, values) if key not in union_axes or value in values]
        for key, values in block.items()
        if key not in paired
    ]
    factors += [_pairs(group, block, words) for group in groups]
    for parts in product(*factors):
        yield {key: value for part in parts for key, value in part.items()}


def _pairs(group: Sequence[str], block: Axes, words: Axes) -> list[Row]:
    values = words if set(group) <= words.keys() else block
    lengths = {key: len(values[key]) for key in group}
    if len(set(lengths.values())) > 1:
        shown = {key: ", ".join(values[key]).replace("\\ ", " ") for key in group}
        sizes = ", ".join(f"{key} has {length} ({shown[key]})" for key, length in lengths.items())
        commas = "; values are separated by commas" * any(" " in value for key in group for value in values[key])
        raise UserError(f"sweep.zip: can only pair lists of equal length; {sizes}{commas}")
    pairs = [dict(zip(group, row, strict=True)) for row in zip(*(values[key] for key in group), strict=True)]
    return [row for row in pairs if all(row[key] in words.get(key, [row[key]]) for key in group)]


def _matches(row: Row, entry: Axes) -> bool:
    return all(row.get(key) in values for key, values in entry.items())


def _products(axes: Axes) -> Iterator[Row]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _typed(row: Row) -> list[str]:
    return [key if key.startswith("~") and not value else f"{key}={value}" for key, value in row.items()]


def _values(node: Mapping[str, Any], search: Search) -> Axes:
    """Turn a node such as `{seed: [0, 1]}` or `{seed: range(2)}` into axes, here `{seed: ["0", "1"]}`."""
    axes: Axes = {}
    for key, value in node.items():
        if isinstance(value, str):
            axes |= _axes([f"{key}={value}"], search)
        else:
            values = value if isinstance(value, Sequence) else [value]
            if not values:
                raise UserError(f"sweep: {key} has no value")
            axes[str(key)] = [_value(str(key), each) for each in values]
    return axes


def _value(key: str, value: Any) -> str:
    """Write a list's value as in a command; equal values are written in the same form, so that they compare equal.

    Raises:
        UserError: the value stands for several values, as `range(3)` does.
    """
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    override = parsed(f"{key}={text}")
    if override.is_sweep_override():
        raise UserError(f"sweep: {key}: {text} in a list stands for several values; write it without [ ]")
    return _written(override)


def _axes(words: Sequence[str], search: Search = CONF_ALONE) -> Axes:
    axes: Axes = {}
    overrides = _parsed(words, search)
    _check_size(overrides)
    for override in overrides:
        word = override.input_line or ""
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(f"{word}: is no list of values; write them with commas, or as range(...)")
        with explained((word,)):
            values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [_written(override)]
        if not values:
            raise UserError(f"{word}: names no value")
        axes[override.get_key_element()] = values
    return axes


def _written(override: Override) -> str:
    """Write an override's value so that equal values have the same form and compare equal; keep interpolations."""
    word = override.input_line or ""
    return word.partition("=")[2] if "${" in word or "=" not in word else override.get_value_element_as_str()


def _parsed(words: Sequence[str], search: Search) -> list[Override]:
    if not any("glob(" in word for word in words):
        return [parsed(word) for word in words]
    with searching(search), initialize_config_dir(str(CONF), version_base="1.3"):  # glob() lists the options there
        return OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(list(words))


def _check_size(overrides: Iterable[Override]) -> None:
    """Raise a UserError if the values of these words make more runs than `LARGEST_GRID`."""
    runs = 1.0  # if several words set one key, the last counts
    for override in {override.get_key_element(): override for override in overrides}.values():
        runs *= _number_of_values(override.value())
        if not runs <= LARGEST_GRID:  # also if it is NaN
            raise UserError(f"{override.input_line}: {TOO_LARGE}")


def _number_of_values(sweep: Any) -> float:
    """Estimate how many values a word's sweep stands for, without listing them; 1 if it is no choice and no range."""
    if isinstance(sweep, ChoiceSweep):
        return len(sweep.list)
    if isinstance(sweep, RangeSweep) and sweep.step:  # Hydra refuses a step of 0
        try:
            return max((sweep.stop - sweep.start) / sweep.step, 0.0)  # type: ignore[operator]
        except OverflowError:
            return inf
    return 1.0
