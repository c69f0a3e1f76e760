"""Turns the words of a command into the rows of its grid, and refuses overrides that do not suit the sweep."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra import initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from deepnets.config.build import check_early, check_ranges, takes
from deepnets.config.compose import (
    Composed,
    check_words,
    compose,
    composed,
    key_of,
    parsed,
    plain_value,
    search_of,
    searching,
)
from deepnets.config.hydra_errors import explain, explained
from deepnets.config.identity import flat, is_execution
from deepnets.config.project import CONF, check_options_folder, read_project
from deepnets.config.schema import ABSENT, DEFAULTS, TRAINED_NODES, Row, Search, Sweep, axes_of, selected, value_at
from deepnets.config.sweep import check_file, params_of, rows_of
from deepnets.config.trust import trust
from deepnets.errors import UserError, brief
from deepnets.system.printing import with_progress

PLUGINS = {  # Hydra's defaults; deepnets calls neither of them, so others would change nothing
    "sweeper": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "launcher": "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
}
HYDRA_KEYS = ("hydra.mode", "hydra.searchpath", "hydra.sweeper.params")  # deepnets reads these
HARMLESS = ("hydra.job.name", "hydra.verbose")  # ignored: users of Hydra may type them by habit
PATHS = ("weights", "dataset.root", "output_root")
RESERVED_FOLDERS = {"runs": "the runs without a sweep", "records": "the records"}
FIXING_GROUPS = ("sweep", "protocol")  # their files set values of other groups' options


def rows_of_command() -> list[Row]:
    """Compose the rows that `sys.argv` asks for; if it asks for a page such as --help, print this and return no rows.

    Raises:
        HydraException, OmegaConfBaseException: an option or key is unknown, or a value has the wrong type.
        UserError: options or sweeps do not go together, or `trust` raises it.
    """
    sys.argv[1:] = map(_with_plain_path, sys.argv[1:])
    words, search = _own_flags(sys.argv[1:])
    flags = _flags(words)
    places = {*search.places, *_typed_places(flags.overrides)}
    _check_folders(places)  # before Hydra reads them
    for file in _sweep_files(flags.overrides, places):
        check_file(file)
    if flags.multirun and flags.cfg:
        raise UserError(
            f"-m --cfg {flags.cfg}: --cfg prints one run; leave out -m and give each key one value (plan=true lists "
            "all runs)"
        )
    if flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion:
        if flags.help and (page := _help_page(flags.overrides, search)):
            print(page)
        else:
            _show(words, flags.overrides, search)
        return []
    rows = _rows(flags.overrides, flags.multirun, search)
    sweeps = {row.choices.get("sweep") for row in rows}
    if len(sweeps) > 1:
        raise UserError(f"sweep={','.join(sorted(map(str, sweeps)))}: a command trains one sweep")
    _check_folders({*rows[0].search.places} - places)
    for row in rows:
        check_options(row)
        check_widths(row)
        check_name(row)
    check_early(rows)
    return rows


def _with_plain_path(word: str) -> str:
    """Expand ~ in `key=~/PATH`, and quote a path with commas or "=" in it, as in the name of a run's folder.

    A shell expands ~ only at the beginning of a word, and Hydra does neither.
    """
    word = re.sub(r"^([\w.]+=)(~/)", lambda match: match[1] + expanduser(match[2]), word)
    key, _, path = word.partition("=")
    if key in PATHS and path[:1] not in ("'", '"') and {",", "="} & {*path} and Path(path).exists():
        return f"{key}={json.dumps(path, ensure_ascii=False)}"
    return word


def check_options(row: Row) -> None:
    """Refuse an option if the row's sweep or protocol changes values that the option sets.

    `model=resnet56` in a sweep that sets `model.depth` to 110 would train 110 layers under the name of 56. An option on
    the sweep's axes is allowed, and so are a value that the sweep's own option has too and a value that is typed.

    Raises:
        UserError: names the values, ready to paste.
    """
    fixing = [f"{group}={row.choices[group]}" for group in FIXING_GROUPS if row.choices.get(group)]
    if not fixing:
        return
    scale = f"scale={row.choices['scale']}"
    fixed = composed(tuple(word for word in row.overrides if key_of(word) in {*FIXING_GROUPS, "scale"}), row.search)
    axes, defaults = _options_on_axes(fixed), fixed.choices
    typed = {word.partition("=")[0].lstrip("+~") for word in row.overrides}
    for group in sorted(typed & defaults.keys() - {*FIXING_GROUPS, "scale"}):
        option = row.choices.get(group)  # None for ~GROUP
        if is_execution(group) or option in (None, defaults[group], *axes.get(group, [])):
            continue
        replaced, chosen = _option_words({**row.choices, **defaults}), _option_words(row.choices)
        alternatives = (replaced, chosen, (*chosen, *fixing))
        configs = [composed((*words, scale), row.search).config for words in alternatives]
        others = tuple(f"{key.replace('/', '.')}." for key in typed - {group} if not group.startswith(f"{key}/"))
        overruled = {
            key: (value_at(row.config, key), selected(configs[1], key, ABSENT))
            for key in _differing(group.replace("/", "."), *configs)
            if not f"{key}.".startswith(others)
        }
        if overruled := {key: values for key, values in overruled.items() if values[0] != values[1]}:
            raise UserError(_message(f"{group}={option}", " and ".join(fixing), overruled))


def check_widths(row: Row) -> None:
    """Refuse scale=deep if the model's file has no smaller widths for this scale and the command sets no widths.

    Raises:
        UserError: names the model's widths.
    """
    typed = any(word.lstrip("+").startswith("model.widths=") for word in row.overrides)
    if row.config.scale.name != "deep" or typed:
        return
    model = row.choices["model"]
    words = (f"model={model}",)
    full, deep = (
        selected(composed(chosen, row.search).config, "model.widths") for chosen in (words, (*words, "scale=deep"))
    )
    if deep == full:
        raise UserError(
            f"scale=deep needs smaller widths in the model's file, as conf/model/resnet.yaml has them; "
            f"model={model} has only the widths {full or 'none'}: choose another model or scale, or add "
            "model.widths=[...]"
        )


def check_name(row: Row) -> None:
    """Refuse a `name` that cannot name a folder, or that names the folder of another sweep.

    Raises:
        UserError: `name` is one of these.
    """
    name, sweep = row.config.name, row.choices.get("sweep")
    if name is None or name == sweep:
        return
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"name={brief(name)}: must be a folder's name, of letters, digits, '_', '.' and '-'")
    folders = [CONF, *(Path(place.removeprefix("file://")) for place in row.search.places)]
    if name in RESERVED_FOLDERS or any((folder / "sweep" / f"{name}.yaml").is_file() for folder in folders):
        owner = RESERVED_FOLDERS.get(name, f"the runs of sweep={name}")
        raise UserError(f"name={name}: is the folder of {owner}; choose another name")


def _rows(words: Sequence[str], multirun: bool, search: Search) -> list[Row]:
    """Compose all rows of the grid; if the words ask for no grid, compose one row."""
    words = [_with_commas(word, {}) if "=[" in word and "." not in key_of(word) else word for word in words]
    check_words(words)
    _check_root(words)
    hydra_words = [word for word in words if parsed(word).is_hydra_override()]
    if swept := [word for word in hydra_words if parsed(word).is_sweep_override()]:
        raise UserError(f"{swept[0]}: Hydra's own settings have one value for all runs")
    task = [word for word in words if word not in hydra_words]
    shared = _composed_for_all(hydra_words, task, search)
    for plugin, target in PLUGINS.items():
        if shared.hydra[plugin]["_target_"] != target:
            raise UserError(f"hydra/{plugin}: deepnets expands the grid and launches its runs itself; leave it out")
    for word in hydra_words:
        if not f"{key_of(word)}.".startswith(tuple(f"{key}." for key in (*HYDRA_KEYS, *HARMLESS))):
            raise UserError(f"{word}: changes nothing here; of Hydra's settings deepnets reads {', '.join(HYDRA_KEYS)}")
    sweep: Any = OmegaConf.to_object(shared.config.sweep) if shared.config.sweep else Sweep()
    sweep.axes = axes_of(vars(sweep))
    check_ranges(sweep, "sweep.")
    params: Any = OmegaConf.to_container(shared.hydra.sweeper.params or OmegaConf.create({}), resolve=True)
    is_table = sweep.seeds is not None or sweep.rows
    is_grid = multirun or shared.hydra.mode == RunMode.MULTIRUN or (is_table and shared.hydra.mode is None)
    if not (is_grid or sweep.zip or sweep.exclude or sweep.union):
        if shared.config.sweep and params and not is_table:
            reason = "its hydra.sweeper.params make no rows; add `mode: MULTIRUN` below its `hydra:`"
            raise UserError(f"sweep={shared.choices['sweep']}: {reason}")
        return [compose(words, search)]
    # This search includes the folders that hydra.searchpath names.
    search = search_of(shared.hydra, search.defaults)
    hydra_words = [word for word in hydra_words if key_of(word) != "hydra.searchpath"]
    if any(key_of(word) == "sweep.seeds" for word in task):
        params.pop("seed", None)  # typed seeds replace seeds that the scale sets
    params = params_of(sweep.rows, sweep.seeds, params)
    if any("." in key_of(word) and isinstance(parsed(word).value(), list) for word in task):
        chosen = [word for word in task if "." not in key_of(word) and not parsed(word).is_sweep_override()]
        settings = OmegaConf.to_container(composed((*hydra_words, *chosen), search).config, resolve=False)
        task = [_with_commas(word, settings) for word in task]
    rows = rows_of(params, sweep, task, search)
    return [_composed(hydra_words, row, search) for row in with_progress(rows, "runs composed")]


def _composed(hydra_words: list[str], words: list[str], search: Search) -> Row:
    try:
        return compose([*hydra_words, *words], search)
    except MissingMandatoryValue as error:
        raise UserError(f"{explain(error)} with {' '.join(words)}") from error


def _check_root(words: Sequence[str]) -> None:
    """Refuse a missing data folder before the rows of a SLURM grid are composed, which takes a while."""
    typed = {key_of(word): parsed(word).value() for word in words if not parsed(word).is_sweep_override()}
    root = typed.get("dataset.root")
    if typed.get("launcher") == "slurm" and isinstance(root, str) and "${" not in root and not Path(root).is_dir():
        raise UserError(
            f"dataset.root={brief(root)}: no such folder; name the one that holds the data, or create it for the "
            "download"
        )


def _with_commas(word: str, settings: Any) -> str:
    """Write a list of values as Hydra does: `seed=[0,1]` as `seed=0,1`; but `model.widths=[4,8,16]` is one value.

    `settings` is the configuration whose classes say which of their arguments are lists.
    """
    override, values = parsed(word), parsed(word).value()
    key = override.key_or_group
    is_group = "/" in key or (CONF / key).is_dir()
    if not isinstance(values, list) or not values or not (is_group or not takes(settings, key, values)):
        return word
    return f"{override.get_key_element()}={override.get_value_element_as_str()[1:-1]}"


def _sweep_files(words: Iterable[str], places: Iterable[str]) -> list[Path]:
    """Return the files of the sweeps that are typed, in conf/ and in the folders `places`."""
    names = [parsed(word).value() for word in words if key_of(word) == "sweep"]
    folders = [CONF, *(Path(place.removeprefix("file://")) for place in places if place.startswith("file://"))]
    files = [folder / "sweep" / f"{name}.yaml" for name in names if isinstance(name, str) for folder in folders]
    return [file for file in files if file.is_file()]


def _composed_for_all(hydra_words: Sequence[str], task: Sequence[str], search: Search) -> Composed:
    """Compose the sweep, its axes and Hydra's own node from the words that all rows share."""
    words = [
        word
        for word in task
        if not parsed(word).is_sweep_override() and re.fullmatch(r"(sweep|scale)\..*|[^./]+", key_of(word))
    ]
    shared = composed((*hydra_words, *(word for word in words if not plain_value(word))), search)
    sweep: Any = OmegaConf.to_container(shared.config, resolve=False)["sweep"] or {}  # type: ignore[call-overload,index]
    axes = str([OmegaConf.to_container(shared.hydra.sweeper, resolve=False), sweep.get("rows"), sweep.get("seeds")])
    if any(plain_value(word) and re.search(rf"\b{key_of(word)}\b", axes) for word in words):
        return composed((*hydra_words, *words), search)
    return shared


def _options_on_axes(composition: Composed) -> dict[str, list[str]]:
    """Return the values of each axis in the sweep's rows, in `hydra.sweeper.params`, and in the sweep's union."""
    options: dict[str, list[str]] = {}
    sweep = composition.config.sweep or {"rows": {}, "union": []}
    for axes in (sweep["rows"], composition.hydra.sweeper.params or {}, *sweep["union"]):
        for axis, values in axes.items():
            words = re.split(r"[,\s]+", values) if isinstance(values, str) else values
            options.setdefault(axis, []).extend(words if isinstance(words, Sequence) else [words])
    return options


def _option_words(choices: dict[str, str]) -> list[str]:
    chosen = {group: option for group, option in choices.items() if group.split("/")[0] in TRAINED_NODES}
    return sorted(f"{group}={option}" for group, option in chosen.items() if option)


def _differing(node: str, *configs: DictConfig) -> list[str]:
    """Return the keys below `node` where the second configuration differs from both the first and the third."""
    before, usual, after = (flat(selected(config, node, resolve=False), node) for config in configs)
    return [key for key in after if after[key] != usual.get(key, ABSENT) != before.get(key, ABSENT)]


def _message(option: str, fixing: str, overruled: dict[str, tuple[Any, Any]]) -> str:
    fixed = [
        f"{key} is {json.dumps(value)}" + ("" if of_option is ABSENT else f" (the option has {json.dumps(of_option)})")
        for key, (value, of_option) in overruled.items()
    ]
    remedy = [
        f"~{key}" if of_option is ABSENT else f"{key}={json.dumps(of_option, separators=(',', ':'))}"
        for key, (_, of_option) in overruled.items()
    ]
    remedies = f"Add {' '.join(remedy)}, or other values, or leave {option} out"
    return f"{option}: with {fixing}, {', '.join(fixed)}. {remedies}"


def _own_flags(words: Sequence[str]) -> tuple[list[str], Search]:
    """Read the flags that Hydra does not have; returns the other words, and where to search for options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = _refuse  # type: ignore[method-assign]  # argparse would print the usage of four flags
    parser.add_argument("--project")
    parser.add_argument("--trust", action="append", default=[])
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn", default=DEFAULTS)
    flags, rest = parser.parse_known_args(words)
    if "" in (flags.project, flags.config_dir):
        raise UserError("--project, --config-dir: one of them is empty; name a place, or leave it out")
    trust(flags.trust)
    if flags.project:
        if flags.config_dir or flags.config_name != DEFAULTS:
            raise UserError("--project: names its own options and defaults; leave out --config-dir and --config-name")
        trust(project := read_project(flags.project).file)
        return rest, read_project(project).search
    places = (f"file://{Path(flags.config_dir).absolute()}",) if flags.config_dir else ()
    return rest, Search(places, flags.config_name)


def _typed_places(words: Iterable[str]) -> list[str]:
    """Return the places that `hydra.searchpath=[file://FOLDER]` adds to the search for options."""
    typed = [word for word in words if word.startswith("hydra.searchpath=")]
    values = [parsed(word).value() for word in typed]
    return [place for value in values if isinstance(value, list) for place in value if isinstance(place, str)]


def _check_folders(places: Iterable[str]) -> None:
    for place in sorted(places):
        if place.startswith("file://"):
            check_options_folder(Path(place.removeprefix("file://")))


def _flags(words: Sequence[str]) -> argparse.Namespace:
    """Parse Hydra's flags among the words; the other words become `overrides`.

    Raises:
        UserError: a flag is unknown, lacks its value, or is one of Hydra's that deepnets does not have.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # argparse would print Hydra's usage in eight lines
    flags = parser.parse_intermixed_args(list(words))
    if flags.config_path is not None:
        raise UserError("--config-path: cannot replace the options of deepnets; add your own with --config-dir")
    if flags.experimental_rerun is not None:
        raise UserError("--experimental-rerun: to resume a run, give its command again")
    return flags


def _refuse(message: str) -> NoReturn:
    """Raise argparse's message about a flag as a UserError of one line."""
    raise UserError(f"{message}; options are written as key=value, and --hydra-help lists all flags")


def _show(words: Sequence[str], overrides: Sequence[str], search: Search) -> None:
    """Let Hydra answer its own flags among the words, such as --help or --cfg."""

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=search.defaults)
    def nothing(config: DictConfig) -> None:
        """Do nothing: Hydra prints instead of calling this."""

    check_words(overrides)
    in_front = [word for word in words if word not in overrides]
    typed_words, sys.argv = sys.argv, [sys.argv[0], *in_front, *overrides]  # where Hydra reads them
    try:
        # Otherwise Hydra prints its errors in tens of lines and exits.
        with env_override({"HYDRA_FULL_ERROR": "1"}), explained(overrides), searching(search):
            nothing()
    finally:
        sys.argv = typed_words


def _help_page(overrides: Sequence[str], search: Search) -> str | None:
    """Return the page of --help; None if a user's template has other placeholders, which Hydra must fill in.

    Hydra would take half a second to list the groups, because it copies its repository of options for each group.
    """
    composition = composed(tuple(overrides), search)
    before, groups, after = composition.hydra.help.template.partition("$APP_CONFIG_GROUPS")
    if not groups or "$" in before + after:
        return None
    with searching(search), initialize_config_dir(str(CONF), version_base="1.3"):
        loader: Any = GlobalHydra.instance().config_loader()
        lines = dict(_groups(loader.repository, composition.choices))
    return before + "".join(lines[group] for group in sorted(lines)) + after


def _groups(repository: Any, chosen: dict[str, str], parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield each group below `parent` that is not Hydra's own, and the line of its options, where * marks a choice."""
    for name in repository.get_group_options(parent, ObjectType.GROUP):
        if (group := f"{parent}/{name}".lstrip("/")) != "hydra":
            if options := sorted(repository.get_group_options(group, ObjectType.CONFIG)):
                yield group, f"{group}: {', '.join(o + '*' * (o == chosen.get(group)) for o in options)}\n"
            yield from _groups(repository, chosen, group)
