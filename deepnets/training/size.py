"""Counts a network's parameters and multiply-adds, without memory for large weights, and remembers the counts."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from deepnets.config.build import own_targets
from deepnets.config.project import PACKAGE
from deepnets.config.schema import Config
from deepnets.data.dataset import Dataset
from deepnets.errors import UserError, first_line
from deepnets.system.files import own_cache, read_object, write_atomically
from deepnets.training.assembly import model_of

REMEMBERED = "networks.json"  # in the user's cache
PASSED = "passed.json"  # beside it: what was tried without an error
MOST = 2_000  # each file remembers at most this many
DRAWS = (Tensor.normal_, Tensor.uniform_)
# The meta device takes a time for each layer, the CPU for each weight, which is less for deep networks of thin layers.
LARGEST_WEIGHT, LARGEST_IMAGE = 2**18, 3 * 64 * 64  # bytes of a weight on average, numbers of an image


@dataclass(frozen=True)
class NetworkSize:
    """A network's parameters and the bytes that they take, its `layers`, and `macs` for one image.

    `layers` are the modules with parameters of their own, batch normalisation too. `macs` are the multiply-adds of
    convolutions and linear layers if every branch is taken. Networks with an equal
    `architecture` take the same time. It is a hash of torch's description of the modules, without decimal numbers such
    as the bias of a gate.
    """

    parameters: int
    bytes: int
    layers: int
    macs: int
    architecture: str


SIZES = TypeAdapter(dict[str, NetworkSize])


def size_of(config: Config, dataset: Dataset, code: str | None = None) -> NetworkSize:
    """Return the size of the run's network, and check that its layers fit together for each shape of its images.

    The user's cache remembers the size for this version of deepnets and torch. It remembers the size of a network with
    the user's own classes only if `code`, a hash of their code, is given.

    Raises:
        UserError: the network is illegal.
    """
    key, sizes = network_key(config, dataset, code), _remembered()
    if key in sizes:
        return sizes[key]
    is_own, shapes = bool(own_targets(config.model)), [dataset.shape, *dataset.final_shapes]
    model = meta_network(config, dataset)
    weight = fmean(parameter.nbytes for parameter in model.parameters())
    if not is_own and weight <= LARGEST_WEIGHT and max(map(math.prod, shapes)) <= LARGEST_IMAGE:
        model.to_empty(device="cpu")
    size = _counted(model, shapes)
    if code or not is_own:
        sizes[key] = size
        _remember(sizes)
    return size


def network_key(config: Config, dataset: Dataset, code: str | None = None) -> str:
    """Return a hash of all that the network depends on; `code` is the hash of the user's own classes in it, if any."""
    shapes = [dataset.shape, *dataset.final_shapes]
    dependencies = [config.model, config.memory, shapes, dataset.classes, torch.__version__, _version("models/*.py")]
    return _hash(dependencies + ([code] if code else []))


def optimizer_key(config: Config) -> str | None:
    """Return a hash of all that the optimiser depends on but the network, or None if its class is the user's own."""
    if own_targets(config.optimizer):
        return None
    return _hash([config.optimizer, torch.__version__, _version("optimizer.py")])


def _hash(dependencies: list[Any]) -> str:
    return hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()[:24]


@cache
def passed() -> dict[str, int]:
    """Return what was tried without an error: {`network_key`: bytes} of networks with classes of the user's own.

    Optimisers are there too, as {`optimizer_key`: 0}.
    """
    try:
        return TypeAdapter(dict[str, int]).validate_python(read_object(own_cache() / PASSED))
    except (ValueError, OSError):  # the file is damaged: all are tried again
        return {}


def remember_passed(key: str, size: int) -> None:
    """Remember, for later commands too, that a network or an optimiser was tried without an error."""
    tried = passed()
    tried[key] = size
    for old in [*tried][:-MOST]:
        del tried[old]
    write_atomically(own_cache() / PASSED, json.dumps(tried), durable=False)


def meta_network(config: Config, dataset: Dataset) -> nn.Module:
    """Build the network on the meta device, or on the CPU if a user's own class cannot be built there.

    Raises:
        UserError: it cannot be built.
    """
    try:
        with torch.device("meta"), _NothingDrawn():
            return model_of(config, dataset.shape, dataset.classes)
    except Exception as error:
        if own_targets(config.model):
            return model_of(config, dataset.shape, dataset.classes)  # raises the class's error if it fails here too
        if isinstance(error, RuntimeError):  # a tensor would have more numbers than can be counted
            raise UserError(f"model: cannot be built: {first_line(error)}") from error
        raise


class _NothingDrawn(TorchFunctionMode):
    """Skips random numbers within its context: the meta device takes long to draw none."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return args[0] if func in DRAWS and args[0].is_meta else func(*args, **(kwargs or {}))


def try_out(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Compute the logits of one image by a model on the meta device or the CPU; leaves it in evaluation mode.

    Raises:
        UserError: the model's parts do not fit together.
    """
    try:
        device = next((parameter.device for parameter in model.parameters()), "meta")
        # Only this kernel for attention consists of products that are counted on the CPU too.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            model.eval()(torch.empty(1, *shape, device=device))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"model: its layers, shortcuts and widths do not fit together: {error}") from error


def _counted(model: nn.Module, shapes: list[tuple[int, int, int]]) -> NetworkSize:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, which no size that is remembered needs

    with FlopCounterMode(display=False) as counter:
        try_out(model, shapes[0])
    for shape in shapes[1:]:
        try_out(model, shape)
    description = re.sub(r"-?\d+\.\d+(e-?\d+)?", "", str(model))
    return NetworkSize(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        bytes=sum(parameter.nbytes for parameter in model.parameters()),
        layers=sum(any(True for _ in module.parameters(recurse=False)) for module in model.modules()),
        macs=counter.get_total_flops() // 2,
        architecture=hashlib.sha256(description.encode()).hexdigest()[:16],
    )


@cache
def _remembered() -> dict[str, NetworkSize]:
    try:
        return SIZES.validate_python(read_object(own_cache() / REMEMBERED))
    except (ValueError, ValidationError, OSError):  # the file has another version or is damaged: count again
        return {}


def _remember(sizes: dict[str, NetworkSize]) -> None:
    for key in [*sizes][:-MOST]:
        del sizes[key]
    text = json.dumps({key: asdict(size) for key, size in sizes.items()})
    write_atomically(own_cache() / REMEMBERED, text, durable=False)


@cache
def _version(files_of_code: str) -> str:
    """Return a hash of the package's files that this pattern names."""
    files = sorted(Path(PACKAGE).glob(files_of_code))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
