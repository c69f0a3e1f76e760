"""Composes configurations from YAML and overrides.

Hydra composes each choice of options once, which takes a third of a second; later commands read it from the user's
cache. A run's plain values, such as its seed, are set on a copy; those that interpolations read are set before.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter

from deepnets.config.hydra_errors import explained
from deepnets.config.identity import flat
from deepnets.config.project import CONF, home, is_pure, key_at_first, options_key, program
from deepnets.config.safe_yaml import refuse_interpolations
from deepnets.config.schema import (
    ABSENT,
    NODES,
    Config,
    Row,
    Search,
    WithoutCallbacks,
    at_scale,
    axes_of,
    case,
    choice,
    log_uniform,
    selected,
    uniform,
    value_at,
)
from deepnets.errors import UserError
from deepnets.system.files import own_cache, write_atomically

CONF_ALONE = Search()
REMEMBERED = 500  # so many compositions, of some kilobytes each, are kept in the user's cache
COMPOSED_KEYS = ("scale", "setting", "sweep")  # they decide other values or the rows
SET_KEYS = frozenset(key.name for key in fields(Config)) - {*COMPOSED_KEYS}


class OptionFolders(SearchPathPlugin):
    """Makes Hydra look for options in `places` too, which `searching` sets."""

    places: ClassVar[tuple[str, ...]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the places after conf/; Hydra calls this."""
        for place in self.places:
            search_path.append("deepnets", place)


@contextmanager
def searching(search: Search) -> Iterator[None]:
    """Let Hydra find the options of `search` within the context; schemas and resolvers stay registered after it."""
    register()
    before, OptionFolders.places = OptionFolders.places, search.places
    try:
        yield
    finally:
        OptionFolders.places = before


@cache
def register() -> None:
    """Make the schemas and the resolvers known to Hydra, which reads them while it composes."""
    Plugins.instance().register(OptionFolders)
    ConfigStore.instance().store(name="config", node=Config)
    ConfigStore.instance().store(group="hydra", name="config", node=WithoutCallbacks, provider="hydra")
    OmegaConf.register_new_resolver("repository", lambda path: str(home() / path), replace=True)
    OmegaConf.register_new_resolver("program", program, replace=True)
    OmegaConf.register_new_resolver("folder_name", lambda path: Path(path).resolve().name, replace=True)
    for resolver in (at_scale, case, log_uniform, uniform, choice):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)


def compose(overrides: Sequence[str], search: Search = CONF_ALONE) -> Row:
    """Compose a run from the file that `search.defaults` names, such as conf/train.yaml, and from these overrides.

    Hydra composes the overrides that choose options, that add or delete keys, whose keys an interpolation reads, or
    whose values have a wrong type. The other values are set on a copy of the result.

    Raises:
        HydraException: an option or a key is unknown.
        OmegaConfBaseException, UserError: `typed` raises it.
    """
    base, plain = composed_base(overrides, search)
    config = base.copy()
    for key, value in plain.values():
        _set(config, key, value)
    task = tuple(word for word in overrides if not parsed(word).is_hydra_override())
    return Row(_with_absolute_folders(config), dict(base.choices), task, base.search)


def composed_base(overrides: Sequence[str], search: Search) -> tuple["Base", "Plain"]:
    """Return what Hydra has to compose of these overrides, and the other values, which can be set on a copy.

    Raises:
        HydraException, UserError: `composed` raises it.
    """
    plain = _plain_values(overrides)
    base = _base(tuple(word for word in overrides if word not in plain), search)
    while refused := base.refused(plain):
        plain = {word: value for word, value in plain.items() if word not in refused}
        base = _base(tuple(word for word in overrides if word not in plain), search)
    return base, plain


@dataclass(frozen=True)
class Composed:
    """The configuration that Hydra composed, Hydra's own node, and the option chosen in each group."""

    config: DictConfig
    hydra: Any
    choices: dict[str, str]


@cache
def composed(overrides: tuple[str, ...], search: Search = CONF_ALONE) -> Composed:
    """Let Hydra compose the overrides; `typed` then turns the configuration into a run.

    Plain values are set afterwards, on a copy of what Hydra composes without them: this is much faster.

    Raises:
        HydraException: an option or a key is unknown.
        UserError: `check_words` or `explained` raises it.
    """
    check_words(overrides)
    if plain := _plain_values(overrides, SET_KEYS | {"setting"}):
        base = composed(tuple(word for word in overrides if word not in plain), search)
        with suppress(OmegaConfBaseException, ValueError, AssertionError):  # Hydra says below what is wrong
            config = deepcopy(base.config)
            for key, value in plain.values():
                OmegaConf.update(config, key, value)
            if "${" not in str(OmegaConf.to_container(base.hydra.sweeper, resolve=False)):
                return Composed(config, base.hydra, base.choices)
    key_at_first(search)
    with searching(search), explained(overrides), initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(search.defaults, list(overrides), return_hydra_config=True)
    node = config.hydra
    with open_dict(config):
        del config["hydra"]
    return Composed(config, node, dict(node.runtime.choices))


def typed(composed: DictConfig) -> Config:
    """Turn Hydra's configuration into a `Config`: resolve interpolations, and make the paths of folders absolute.

    Raises:
        OmegaConfBaseException: a value is missing, or an interpolation names no key.
        UserError: a key is unknown, a key has no value, or values contradict each other.
    """
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    try:
        refuse_interpolations(OmegaConf.to_container(composed, resolve=True))
    except ValueError as error:
        raise UserError(f"a value is written with a backslash in front of ${{: {error}") from error
    if config.sweep:
        config.sweep.axes = axes_of(vars(config.sweep))
    for place, schema in (("", config), ("scale.", config.scale), ("sweep.", config.sweep)):
        if schema is None:
            continue
        # Overrides may add keys (+) and delete keys (~); OmegaConf compares neither with the schema.
        keys, values = {key.name for key in fields(schema)}, vars(schema)
        unknown, missing = values.keys() - keys, {key for key in keys if values.get(key) == MISSING}
        if unknown:
            raise UserError(f"unknown key {place + min(unknown)!r}; --cfg job prints all keys")
        if missing:
            raise UserError(f"{place + min(missing)}: needs a value")
    if config.scale.name == "deep" and config.sweep and not config.sweep.deep:
        raise UserError("scale=deep is not supported by this sweep: use scale=mini or scale=full")
    if config.setting is not None and "${setting}" not in OmegaConf.to_yaml(composed):
        raise UserError(
            f"setting={config.setting}: this key numbers the trials of a random search, but this is no random search"
        )
    return _with_absolute_folders(config)


def _with_absolute_folders(config: Config) -> Config:
    for node, key in ((vars(config), "output_root"), (vars(config), "weights"), (config.dataset, "root")):
        if isinstance(node.get(key), str) and node[key]:  # an empty path must not become the working directory
            node[key] = os.path.abspath(os.path.expanduser(node[key]))
    return config


Plain = dict[str, tuple[str, Any]]  # key and value of each override


def _plain_values(overrides: Sequence[str], keys: frozenset[str] = SET_KEYS) -> Plain:
    """Return the overrides that set one value each, below one of `keys`, where no other override sets any."""
    plain = {word: value for word in overrides if (value := plain_value(word, keys))}
    used = [key for word in overrides if (key := key_of(word)) not in NODES]
    return {word: (key, value) for word, (key, value) in plain.items() if sum(_overlap(key, k) for k in used) == 1}


@cache
def plain_value(word: str, keys: frozenset[str] = SET_KEYS) -> tuple[str, Any] | None:
    """Return the key and value of an override below one of `keys`, if its value is known without composing anything."""
    override = parsed(word)
    is_value = override.type == OverrideType.CHANGE and not override.package and not override.is_sweep_override()
    key, value = override.key_or_group, override.value()
    first = key.partition(".")[0]
    if not is_value or first not in keys or key in NODES or not re.fullmatch(r"\w+(\.\w+)*", key):
        return None
    values = value if isinstance(value, list) else [value]
    is_plain = all(each is None or isinstance(each, bool | int | float) or _is_plain_text(each) for each in values)
    return (key, value) if is_plain else None


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, str) and "${" not in value and value != MISSING


@dataclass(frozen=True)
class Base:
    """A run composed from a choice of options; plain values are set on copies of it.

    Attributes:
        config: the run, or an error in its values, which a plain value may correct.
        settings: the configuration before it was resolved, as plain values.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)
    config: Config | UserError | OmegaConfBaseException
    choices: dict[str, Any]
    search: Search
    settings: dict[str, Any]

    @cached_property
    def open_values(self) -> dict[str, Any]:
        """The values that are missing or are interpolations, by key."""
        return {key: value for key, value in flat(self.settings).items() if value == MISSING or "${" in str(value)}

    @cached_property
    def mentioned_keys(self) -> frozenset[str]:
        """The keys that interpolations mention."""
        texts = map(str, self.open_values.values())
        return frozenset(key for text in texts for key in re.findall(r"\.*\w+(?:\.\w+)*", text))

    def value(self, key: str) -> Any:
        """Return the resolved value of a dotted key, None if it, or a key that it refers to, is missing."""
        is_open = any(_overlap(key, other) for other in self.open_values)
        return selected(self._configuration, key) if is_open else value_at(self.settings, key)

    @cached_property
    def _configuration(self) -> DictConfig:
        register()
        return OmegaConf.create(self.settings)

    def copy(self) -> Config:
        """Copy the run; the copy shares only the scale and the sweep, which nobody changes.

        Raises:
            UserError, OmegaConfBaseException: these options make no run.
        """
        if isinstance(self.config, Exception):
            raise self.config
        nodes = {name: deepcopy(getattr(self.config, name)) for name in NODES}
        return replace(self.config, **nodes)

    def refused(self, plain: Plain) -> list[str]:
        """Return the overrides that cannot be set on a copy, so that Hydra has to compose them."""
        if isinstance(self.config, Exception):
            return [word for word, (key, _) in plain.items() if key in self.open_values] or list(plain)
        return [word for word, (key, value) in plain.items() if not self._takes(key, value)]

    def _takes(self, key: str, value: Any) -> bool:
        """Return whether setting the value on a copy gives the configuration that Hydra would compose."""
        if key in self.choices or any(_overlap(key, mentioned) for mentioned in self.mentioned_keys):
            return False
        node, _, last = key.rpartition(".")
        if not node:
            return _converted(key, value) is not ABSENT
        settings = value_at(self.config, node)
        return isinstance(settings, dict) and last in settings and not isinstance(settings[last], dict)


BASES = TypeAdapter(Base)


@cache
def _base(overrides: tuple[str, ...], search: Search) -> Base:
    """Compose these options, or read what they composed before from the user's cache, which remembers no errors."""
    key = options_key(overrides, search)
    file = f"options-{key}.json"
    if key:
        with suppress(OSError, UserError, ValueError):  # it is new, or damaged
            return BASES.validate_json((own_cache() / file).read_bytes())
    base = _composed_base(overrides, search)
    is_run = key and isinstance(base.config, Config) and base.search == search
    if is_run and is_pure(map(str, base.open_values.values())) and options_key((), search) == key_at_first(search):
        with suppress(OSError, UserError, ValueError):  # there is no cache, or the schema refuses the values
            text = BASES.dump_json(base, warnings=False)
            if BASES.validate_json(text) == base:
                write_atomically(own_cache() / file, text, durable=False)
                for old in sorted(own_cache().glob("options-*"), key=os.path.getmtime)[:-REMEMBERED]:
                    old.unlink()
    return base


def _composed_base(overrides: tuple[str, ...], search: Search) -> Base:
    composition = composed(overrides, search)
    run: Config | UserError | OmegaConfBaseException
    try:
        run = typed(composition.config)
    except (UserError, OmegaConfBaseException) as error:
        run = error
    settings: Any = OmegaConf.to_container(composition.config, resolve=False, enum_to_str=True)
    return Base(run, composition.choices, search_of(composition.hydra, search.defaults), settings)


def _overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are equal, or one is below the other; `other` may be relative, as `..depth`."""
    if other.startswith("."):
        return f".{other.lstrip('.')}." in f".{key}."
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _set(config: Config, key: str, value: Any) -> None:
    *path, last = key.split(".")
    if not path:
        setattr(config, key, _converted(key, value))
        return
    node: Any = getattr(config, path[0])
    for name in path[1:]:
        node = node[int(name)] if isinstance(node, list) else node[name]
    node[last] = deepcopy(value)


def _converted(key: str, value: Any) -> Any:
    """Convert the value to the type that `Config` gives the key; returns `ABSENT` if it does not fit."""
    schema = _schema()
    try:
        OmegaConf.update(schema, key, value)
    except OmegaConfBaseException:
        return ABSENT
    return OmegaConf.to_container(schema[key]) if isinstance(value, list) else schema[key]


@cache
def _schema() -> DictConfig:
    return OmegaConf.structured(Config)


def key_of(word: str) -> str:
    """Return the key that an override sets, adds or deletes."""
    return word.lstrip("+~").partition("=")[0].partition("@")[0]


@cache
def parsed(word: str) -> Override:
    """Parse an override as Hydra does.

    Raises:
        OverrideParseException: the word cannot be read.
    """
    with explained((word,)):
        # The errors of parse_override would not name the word.
        return OverridesParser.create().parse_overrides([word])[0]


def check_words(words: Iterable[str]) -> None:
    """Refuse a group whose value cannot be the name of an option; Hydra would accept it.

    Raises:
        UserError: a word gives a group a value that is no name, such as `model=null` or `scale=0.5`, or has no key.
        OverrideParseException: a word cannot be read.
    """
    for word in words:
        group, equals, _ = word.lstrip("+").partition("=")
        if equals and not group:
            raise UserError(f"{word}: needs a key in front of the =, without a space")
        if equals and (CONF / group).is_dir():
            override = parsed(word)
            if not override.is_sweep_override() and not isinstance(override.value(), str):
                raise UserError(f"{word}: {group} needs the name of an option; --help lists all")


def search_of(hydra_node: Any, defaults: str) -> Search:
    """Return where Hydra searched for options, as its own node says."""
    sources = [(each.provider, each.schema, each.path) for each in hydra_node.runtime.config_sources]
    places = (f"{schema}://{path}" for provider, schema, path in sources if provider not in ("hydra", "schema"))
    return Search(tuple(dict.fromkeys(place for place in places if place != f"file://{CONF}")), defaults)
