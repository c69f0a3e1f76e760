"""Starts a run from the weights of another run or of a file: `weights=RUN_OR_FILE`."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from deepnets.config.build import build
from deepnets.config.identity import difference, plain_values
from deepnets.config.schema import Config, Row
from deepnets.errors import UserError, brief
from deepnets.runs.checkpoint import load_checked
from deepnets.runs.code import changed_files, code_of, noted_code
from deepnets.runs.contents import FINISHED
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.record import state_checksum
from deepnets.runs.weights import CHECKSUM, by_own_names, fitting, read_record, read_state
from deepnets.training.assembly import dataset_of

DIGITS = 12  # of the SHA-256 that becomes part of the run's identity


def with_weights(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; a row that starts from weights gets their hash, which is part of its identity.

    Raises:
        UserError: the weights are missing, are of an unfinished run, or do not have the row's `weights_hash`.
    """
    return [replace(row, config=_with_hash(row.config)) for row in rows]


def _with_hash(config: Config) -> Config:
    if config.weights is None:
        if config.weights_hash is not None:
            raise UserError(f"weights_hash={config.weights_hash}: is the hash of weights; add weights=RUN_OR_FILE")
        return config
    weights_hash = hash_of(Path(config.weights))
    if config.weights_hash not in (None, weights_hash):
        raise UserError(
            f"weights={config.weights}: have the hash {weights_hash}, not weights_hash={config.weights_hash}"
        )
    return replace(config, weights_hash=weights_hash)


def with_weights_from(config: Config, places: Iterable[Path]) -> Config:
    """Return a record's configuration with that of `places` which holds the weights that the run started from.

    A record knows these weights by their hash, and not by where they are.

    Raises:
        UserError: a place holds no weights, or none has the record's hash.
    """
    if config.weights is None:
        return config
    for place in places:
        if hash_of(place) == config.weights_hash and (place.is_file() or RunFolder(place).has_weights):
            return replace(config, weights=str(place))
    with suppress(UserError):  # the configuration of a record names no path
        if hash_of(Path(config.weights)) == config.weights_hash:
            return config
    raise UserError(
        f"it started from weights of the hash {config.weights_hash}: name the run or file that has them, as in "
        "--weights RUN_OR_FILE"
    )


@cache
def hash_of(path: Path) -> str:
    """Return the first twelve digits of a SHA-256.

    A finished run's result holds the SHA-256 of its weights, and so does a file that deepnets wrote, such as an
    export's. Of other files this hashes the bytes.

    Raises:
        UserError: the path is neither a finished run with a checksum, nor an export, nor a file.
    """
    path = _file_of_export(path)
    if path.is_dir():
        result = RunFolder(path).result
        if not result or result.status != FINISHED or not result.weights_sha256:
            hint = "" if result else RunFolder(path).hint_below
            raise UserError(f"weights={path}: no finished run with a checksum of its weights{hint}")
        return result.weights_sha256[:DIGITS]
    with suppress(SafetensorError, OSError), safe_open(path, framework="pt") as tensors:
        if checksum := (tensors.metadata() or {}).get(CHECKSUM):
            return checksum[:DIGITS]
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
    except OSError as error:
        raise UserError(f"weights={path}: neither a run's folder nor a file of weights ({error})") from error


def _file_of_export(path: Path) -> Path:
    """Return the file of weights in a folder that `export` wrote, which has no result; return other paths."""
    file = path / WEIGHTS
    return file if file.is_file() and not RunFolder(path).result else path


def check_start(config: Config) -> None:
    """Load the weights that the configuration names into its network, once in each process.

    Raises:
        UserError: as `start_from_weights`.
    """
    if config.weights is not None:
        dataset, model = dataset_of(config), json.dumps(config.model, sort_keys=True)
        _check_start(model, dataset.shape, dataset.classes, config.weights, config.weights_hash)


@lru_cache(maxsize=256)
def _check_start(model: str, shape: tuple[int, int, int], classes: int, weights: str, weights_hash: str | None) -> None:
    with torch.random.fork_rng(devices=[]):
        _start(build("model", json.loads(model), shape=shape, classes=classes), weights, weights_hash, classes)


def start_from_weights(model: nn.Module, config: Config, classes: int) -> str | None:
    """Copy the weights that the configuration names into a fresh network; returns a line about it.

    If the weights are for another number of classes, the last layer keeps its fresh weights. The line names what was
    different where the weights were trained: settings of the network, and files of the user's code.

    Raises:
        UserError: the weights have changed since the run was set up, are damaged, or are of another network.
    """
    if config.weights is None:
        return None
    return _start(model, config.weights, config.weights_hash, classes) + _otherwise(RunFolder(config.weights), config)


def _otherwise(source: RunFolder, config: Config) -> str:
    if not (source.path / "config.yaml").is_file():  # a file of weights
        return ""
    try:
        settings = difference(plain_values(source.config), config)
        before, now = noted_code(source), code_of(config)
        if not source.result:  # an exported folder: only its weights note the code
            before = read_record(source, source.config).code
        changed = changed_files(source, before, now) if before and now else []
    except UserError as error:
        return f"; how its network differs is not known: {error}"
    differing = [
        f"{key} is {brief(there)} there, {brief(here)} here"
        for key, (there, here) in settings.items()
        if key.startswith("model.") and not key.startswith("model.initialization.")
    ]
    if before and now:
        in_both = {f"{name.replace('.', '/')}.py" for name in before.modules.keys() & now.modules.keys()}
        differing += [f"{file} has changed" for file in changed if file in in_both]
    return f"; {'; '.join(differing)}" if differing else ""


def _start(model: nn.Module, weights: str, weights_hash: str | None, classes: int) -> str:
    initial, path = model.state_dict(), Path(weights)
    state = by_own_names(_read(path, weights_hash), initial)
    fresh = sorted(
        name
        for name in initial.keys() & state.keys()
        if initial[name].shape[:1] == (classes,)
        and state[name].shape[:1] != (classes,)
        and initial[name].shape[1:] == state[name].shape[1:]
    )
    model.load_state_dict(fitting(model, state | {name: initial[name] for name in fresh}))
    kept = f"; fresh: {', '.join(fresh)}, as the number of classes differs" if fresh else ""
    return f"starts from the weights in {RunFolder(path)}{kept}"


def _read(path: Path, expected: str | None) -> dict[str, Tensor]:
    path = _file_of_export(path)
    if not path.is_dir():
        hash_of.cache_clear()
        weights_hash, state = hash_of(path), read_state(path)
    else:
        folder = RunFolder(path)
        saved, _ = load_checked(folder, folder.config)
        state = saved["training"]["model"] if saved else read_state(path / WEIGHTS)
        weights_hash = state_checksum(state)[:DIGITS]
    if weights_hash != expected:
        raise UserError(f"weights={path}: have the hash {weights_hash} now; the run was set up with {expected}")
    return state
