"""Checks each node of a configuration against the signature of its `_target_`, and calls the target to build it."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from hydra._internal.utils import _locate  # hydra.utils.get_object, which also prints its errors
from pydantic import ConfigDict, TypeAdapter, ValidationError

from deepnets.config.schema import Config, Row
from deepnets.config.trust import is_trusted, to_trust, trusted, why_refused
from deepnets.errors import UserError, brief, first_line, own_code_message

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Exact names only: a prefix such as `torch.optim` also admits `torch.optim.optimizer.torch.hub.load`.
TARGETS = frozenset(
    f"deepnets.{module}.{name}"
    for module, names in {
        "data.augmentation": ("Cutout", "Mixup"),
        "data.dataset": ("Dataset",),
        "data.imagenet": ("ImageNet",),
        "data.sources": ("cifar10", "cifar100", "digits", "image_folder", "mnist", "svhn", "synthetic"),
        "launch.local": ("Local",),
        "launch.pool": ("Pool",),
        "launch.slurm": ("Slurm",),
        "loss": ("CrossEntropy",),
        "models.densenet": ("DenseNet",),
        "models.fully_connected": ("FullyConnected",),
        "models.gates": ("Concatenated", "Delta", "Orthogonal", "SeparatelyGated"),
        "models.highway": ("Highway",),
        "models.initialization": ("DeltaOrthogonal", "Orthogonal", "TruncatedNormal"),
        "models.resnet": ("ResNet",),
        "models.scales": ("DeepNormed", "DepthScaled", "LayerScale", "PerUnit", "ScaledBranch"),
        "models.shortcuts": ("Dropped", "Gated", "Identity", "Projected", "Scaled"),
        "models.survival": ("LinearDecay", "RandomSubset", "Uniform"),
        "models.transformer": ("Transformer",),
        "optimizer": ("adam", "adamw", "caffe_sgd", "scalar_sgd", "sgd"),
        "schedule": ("Cosine", "ErrorPlateau", "Exponential", "Plateau", "Step", "WarmupCosine"),
    }.items()
    for name in names
)

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # *args, **kwargs
PASSED_LATER = {"loss": 2}  # how many arguments a node above all others may leave open: logits and targets
LARGEST = 2**63  # torch's integers are smaller
LONGEST_TARGET = 200  # characters
PLAINER_WORDS = {  # from words in pydantic's messages to ours
    "Input should be": "must be",
    "an instance of Sequence": "a list, as in [1,2]",
    "String should match pattern '^[^\\x00-\\x1f\\x7f]+$'": "must be a text of one line, and not empty",
    "String should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def build(where: str, node: dict[str, Any], **runtime: Any) -> Any:
    """Call the target of `node` with the node's arguments and `runtime`, and return the object; messages name `where`.

    Raises:
        UserError: as `check_node`; or the target raises a ValueError, or the node has a class of the user's own and
            any error is raised.
    """
    check_node(where, node, runtime)
    try:
        return _built(node, runtime)
    except UserError:
        raise
    except Exception as error:
        reason = own_code_message(error) or (str(error) if isinstance(error, ValueError) else None)
        if reason is None and not own_targets(node):
            raise
        raise UserError(f"{where}: {reason or f'{type(error).__name__}: {first_line(error)}'}") from error


def check_node(where: str, node: dict[str, Any], runtime: Collection[str]) -> None:
    """Check that `build` can call the node, with `runtime` as the names of further arguments.

    Raises:
        UserError: the target is not allowed, an argument is unknown, missing or of another type than annotated; or the
            target does not take an argument that deepnets passes.
    """
    if not isinstance(node, dict):
        raise UserError(f"{where}={brief(node)}: choose one of its options")
    _check(where, node, runtime)


def check_ranges(settings: "DataclassInstance", prefix: str = "") -> None:
    """Check that each value of `settings`, and of the dataclasses in it, is in the range that its type declares.

    Raises:
        UserError: names the first value out of range.
    """
    for key, annotation in annotations_of(type(settings)).items():
        value = getattr(settings, key)
        if is_dataclass(value) and not isinstance(value, type):
            check_ranges(value, f"{prefix}{key}.")
        else:
            _check_type(f"{prefix}{key}", value, annotation)


def check_types(settings: dict[str, Any]) -> None:
    """Check the types and ranges of settings that were read from YAML, where keys may be missing.

    Raises:
        UserError: names the first key whose value is of another type or out of range.
    """
    for key, annotation in annotations_of(Config).items():
        if key in settings:
            _check_type(key, settings[key], annotation, strict=False)


def check_early(rows: Sequence[Row]) -> None:
    """Refuse a grid if all of its runs have the same error; other errors are reported later, for each row.

    Raises:
        UserError: the error that all runs have.
    """
    message = None
    for row in rows:
        try:
            check_plain_settings(row.config)
            return
        except UserError as error:
            if message not in (None, str(error)):
                return
            message = str(error)
    raise UserError(message)


def check_plain_settings(config: Config) -> None:
    """Check that numbers are in their ranges, that one budget is set, and that the schedule can be built.

    Raises:
        UserError: names the first thing that is wrong.
    """
    check_ranges(config)
    check_budget(config)
    build("schedule", config.schedule, total=1)


def check_budget(config: Config) -> None:
    """Check that the budget is either in epochs or in iterations.

    Raises:
        UserError: not exactly one of `epochs` and `iterations` is set.
    """
    if (config.epochs is None) == (config.iterations is None):
        either = f"'epochs={config.epochs or 164} iterations=null'"
        other = f"'epochs=null iterations={config.iterations or 64000}'"
        raise UserError(
            f"epochs={config.epochs} and iterations={config.iterations}: set one of them, and the other to null: "
            f"{either} or {other}"
        )


def targets_in(node: Any) -> Iterator[str]:
    """Yield every `_target_` of a node and of the nodes in it."""
    if isinstance(node, dict):
        if isinstance(target := node.get("_target_"), str):
            yield target
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from targets_in(value)


def own_targets(node: Any) -> set[str]:
    """Return every `_target_` of a node, and of the nodes in it, that names a class or function of the user's own."""
    return {*targets_in(node)} - TARGETS


def takes(settings: Any, key: str, value: Any) -> bool:
    """Return whether a dotted key in the configuration `settings` accepts `value`, by its type and range.

    A key of unknown type accepts every value. The user's own classes are not imported for this: a key of theirs that
    has a value now accepts lists only if it has a list.
    """
    *path, last = key.split(".")
    annotations, is_own = annotations_of(Config), False
    for name in path:
        settings = settings.get(name) if isinstance(settings, dict) else None
        target = settings.get("_target_") if isinstance(settings, dict) else None
        is_own = isinstance(target, str) and target not in TARGETS
        annotations = signature_of(target)[1] if isinstance(target, str) and not is_own else {}
    if is_own and settings.get(last) is not None and "${" not in str(settings[last]):
        return isinstance(settings[last], list) == isinstance(value, list)
    try:
        _adapter(annotations.get(last, Any)).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@cache
def annotations_of(schema: type) -> dict[str, Any]:
    return get_type_hints(schema, include_extras=True)


def _built(node: Any, runtime: dict[str, Any]) -> Any:
    """Build a node that `_check` has accepted; values other than nodes stay as they are."""
    if isinstance(node, list):
        return [_built(value, {}) for value in node]
    if not isinstance(node, dict):
        return node
    if "_target_" not in node:
        return {key: _built(value, {}) for key, value in node.items()}
    called = _locate(node["_target_"])
    arguments = {key: _built(value, {}) for key, value in node.items() if key not in ("_target_", "_partial_")}
    if node["_target_"] not in TARGETS:
        arguments |= _floats(node["_target_"], arguments)
    return partial(called, **arguments) if node.get("_partial_") else called(**arguments, **runtime)


def _floats(target: str, arguments: dict[str, Any]) -> dict[str, float]:
    """Return as floats the integers that a class of the user's own annotates as `float`, such as `start=1`."""
    annotations = signature_of(target)[1]
    return {
        key: float(value)
        for key, value in arguments.items()
        if type(value) is int and isinstance(_adapter(annotations.get(key, Any)).validate_python(value), float)
    }


def _check(
    where: str, node: dict[str, Any], runtime: Collection[str], nested: bool = False, is_called: bool = False
) -> None:
    """Check a node; if deepnets calls the object later (`is_called`), a message may suggest `_partial_: true`."""
    target = node.get("_target_")
    if not isinstance(target, str) or (target not in TARGETS and not is_trusted(target)):
        message = f"{where}._target_: {brief(target)} is not one of the classes a configuration may name."
        if isinstance(target, str) and (reason := why_refused(target)):
            raise UserError(f"{where}._target_: {reason}")
        if isinstance(target, str) and re.fullmatch(r"\w+(\.\w+)+", target) and len(target) < LONGEST_TARGET:
            message += (
                f" If it is your own and you trust it, add --trust {to_trust(target)} to the "
                f"""command, or --trust and the name of its module or file; in Python, trust="{target}"."""
            )
            if names := trusted():
                message += f" Trusted are {', '.join(names)}, without a module {target.rpartition('.')[0]}."
        raise UserError(message)
    is_partial = node.get("_partial_", False)
    if not isinstance(is_partial, bool):
        raise UserError(f"{where}._partial_: got {brief(is_partial)}; must be true or false")
    later = PASSED_LATER.get(where, 1 if nested else 0) if is_partial else 0
    if is_partial and not later:
        raise UserError(f"{where}._partial_: only a nested node, or the loss, may leave arguments open")
    arguments = {key: value for key, value in node.items() if key not in ("_target_", "_partial_")}
    try:
        parameters, annotations = signature_of(target)
    except Exception as error:
        if target not in TARGETS:  # the user's own module may raise anything while it is imported
            reason = " ".join(str(error.__cause__ or error).split())  # Hydra's message has four lines
            raise UserError(f"{where}: {target} cannot be imported: {reason}") from error
        raise
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [key for key in arguments if key in runtime or (key not in parameters and not takes_any)]
    if unknown:
        allowed = ", ".join(name for name in parameters if name not in runtime) or "none"
        raise UserError(f"{where}: unknown key {brief(unknown[0])}; {target} takes: {allowed}")
    for key, value in arguments.items():
        annotation = annotations.get(key)
        if isinstance(value, dict) and _maps_to_nodes(annotation):
            _check_named(f"{where}.{key}", value)
            continue
        _check_nested(f"{where}.{key}", value, get_origin(annotation) is Callable)
        if key in annotations and not (isinstance(value, dict) and "_target_" in value):
            _check_type(f"{where}.{key}", value, annotations[key])
    if not takes_any and not parameters.keys() >= {*runtime}:
        takes = f"it takes {', '.join(parameters) or 'nothing'}"
        raise UserError(f"{where}: {target} must take {' and '.join(runtime)}, which deepnets passes; {takes}")
    if is_partial and parameters.keys() <= arguments.keys():
        raise UserError(f"{where}: {target} must take one more argument, which deepnets passes later")
    present = {*arguments, *runtime}
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in _VARIABLE and name not in present
    ]
    if len(missing) > later:
        needs = f"{target} needs {f'all but {later} of them' if is_partial else 'them'}"
        if is_called and not is_partial:
            needs = "add `_partial_: true`, with which deepnets passes a shortcut's ends or a layer's channels later"
        elif not nested and inspect.isfunction(_locate(target)):
            needs += f"; deepnets calls it once, with the values of this node, and it must return the {where}"
            if where in PASSED_LATER:
                needs += ", or with `_partial_: true` be the loss of logits and targets itself"
        raise UserError(f"{where}: missing: {', '.join(missing)}; {needs}")


def _maps_to_nodes(annotation: Any) -> bool:
    """Return whether the annotation is a mapping of names to callables, or this or None."""
    is_mapping = get_origin(annotation) is Mapping and len(get_args(annotation)) == 2
    return (is_mapping and get_origin(get_args(annotation)[1]) is Callable) or (
        get_origin(annotation) in (Union, UnionType) and any(map(_maps_to_nodes, get_args(annotation)))
    )


def _check_named(where: str, nodes: dict[str, Any]) -> None:
    """Check a mapping of names to nodes, such as `own_layers`."""
    for name, node in nodes.items():
        if not isinstance(name, str):
            raise UserError(f"{where}: got the name {brief(name)}; must be text")
        if not isinstance(node, dict) or "_target_" not in node:
            lacks = f"; its file lacks the first line `# @package {where.rpartition('.')[0]}`"
            form = f"must be as in {{{name.strip('_') or 'name'}: {{_target_: MODULE.CLASS}}}}"
            raise UserError(f"{where}.{name}: got {brief(node)}; {form}{lacks * where.endswith(f'.{name}')}")
        _check(f"{where}.{name}", node, (), nested=True, is_called=True)


def _check_nested(where: str, value: Any, is_called: bool = False) -> None:
    """Check every node inside a value, also in nested lists and dictionaries, because `build` calls all of them."""
    if isinstance(value, dict) and "_target_" in value:
        _check(where, value, (), nested=True, is_called=is_called)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_nested(f"{where}.{key}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_nested(f"{where}[{index}]", inner)
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise UserError(f"{where}: got {brief(value)}; must be below {LARGEST}")


def _check_type(where: str, value: Any, annotation: Any, strict: bool = True) -> None:
    try:
        _adapter(annotation).validate_python(value, strict=strict)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))  # the longest path: an element's error
        path = "".join(f"[{index}]" for index in first["loc"] if isinstance(index, int))
        is_option = first["type"] == "callable_type"
        inner = where.rpartition(".")[2]
        if is_option and isinstance(first["input"], dict) and inner in first["input"]:
            reason = f"its file lacks the first line `# @package {where.rpartition('.')[0]}`"
        else:
            reason = f"choose an option by {where.replace('.', '/')}=NAME" if is_option else _plainer(first["msg"])
        raise UserError(f"{where}{path}: got {brief(first['input'])}; {reason}") from None


def _plainer(message: str) -> str:
    """Rewrite pydantic's message about a value in this project's words."""
    for word, plainer in PLAINER_WORDS.items():
        message = message.replace(word, plainer)
    return message[0].lower() + message[1:]


@cache
def _adapter(annotation: Any) -> TypeAdapter:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
    except Exception:  # an annotation with a schema of its own takes no config
        return TypeAdapter(annotation)


@cache
def signature_of(target: str) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    called: Callable[..., Any] = _locate(target)
    parameters = dict(inspect.signature(called).parameters)
    annotated = called.__init__ if inspect.isclass(called) else called
    return parameters, get_type_hints(annotated, include_extras=True)
