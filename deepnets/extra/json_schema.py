"""JSON schemas of the files in conf/, with which an editor completes keys and marks wrong ones.

`python -m deepnets.extra.json_schema` writes the schemas to conf/schema.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import TypeAdapter

from deepnets.config.build import TARGETS, annotations_of, signature_of
from deepnets.config.project import CONF, SCHEMAS
from deepnets.config.safe_yaml import LOADER
from deepnets.config.schema import DEFAULTS, Config, Scale

Schema = dict[str, Any]
Targets = Mapping[str, set[str]]  # the classes that the files of conf/ name, by the key of the node

WIDTH = 100
DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
TEXT = {"type": "string"}
COMPOSED = TEXT | {"pattern": r"\$\{|^\?\?\?$"}  # an interpolation, or ??? where another file sets the value
OWN = TEXT | {"not": {"pattern": r"^deepnets\."}}  # the user's own class, whose arguments are unknown here
LIST_OF_DEFAULTS = {"type": "array", "items": {"type": ["string", "object"]}}

# The arguments that only the program may set, by the key of the node.
PASSED = {"model": ["shape", "classes"], "optimizer": ["model"], "schedule": ["total"], "shortcut": ["ends"]}
PASSED |= {"source": ["root"]}


def schemas() -> dict[str, Schema]:
    """Return all schemas by name: `train` for files that are a run or part of one, and one for each group of nodes."""
    targets: dict[str, set[str]] = {}
    for file in CONF.rglob("*.yaml"):
        for key, target in _targets_in(file.relative_to(CONF).parts[0], yaml.load(file.read_text(), LOADER)):
            targets.setdefault(key, set()).add(target)
    definitions: dict[str, Schema] = {"composed": COMPOSED, "scale": _settings(Scale, targets)}
    for key in sorted(targets):
        definitions |= _node(key, targets)
    keys = annotations_of(Config)
    run = _object({"defaults": LIST_OF_DEFAULTS, "hydra": {}} | _values(keys, targets))
    groups = {key: DRAFT | _reference(key, f"{DEFAULTS}.json") for key in keys if key in definitions}
    return {DEFAULTS: DRAFT | run | {"definitions": definitions}, **groups}


def text_of(node: Any, indent: str = "") -> str:
    """Return the text of a schema's file; a value that fits into one line is written in one."""
    line = json.dumps(node)
    if len(indent + line) <= WIDTH or not isinstance(node, dict | list):
        return line
    inner = f"{indent} "
    if isinstance(node, list):
        first, last, parts = "[", "]", [text_of(value, inner) for value in node]
    else:
        first, last, parts = "{", "}", [f"{json.dumps(key)}: {text_of(value, inner)}" for key, value in node.items()]
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{last}"


def _targets_in(key: str, node: Any) -> Iterator[tuple[str, str]]:
    """Yield each class that a node or a node inside it names, with the key of the node that names it.

    Nodes in a list have the key of the list.
    """
    if isinstance(node, list):
        for value in node:
            yield from _targets_in(key, value)
    if isinstance(node, dict):
        if node.get("_target_") in TARGETS:
            yield key, node["_target_"]
        for name, value in node.items():
            yield from _targets_in(name, value)


def _node(key: str, targets: Targets) -> dict[str, Schema]:
    """Return the definitions of a node and of its classes; the class that a node names decides the legal arguments.

    If a file names no class, another file names the node's class; so the arguments of every class are legal.
    """
    control: dict[str, Schema] = {"defaults": LIST_OF_DEFAULTS, "_target_": TEXT, "_partial_": {"type": "boolean"}}
    cases = [{"if": {"not": {"required": ["_target_"]}}, "then": _reference(f"any {key}")}]
    definitions: dict[str, Schema] = {}
    every: dict[str, Schema] = {}
    for target in sorted(targets[key]):
        parameters, annotations = signature_of(target)
        settable = {name: annotations[name] for name in parameters if name not in PASSED.get(key, ())}
        arguments = _values(settable, targets)
        every |= {name: _any_of([every.get(name, value), value]) for name, value in arguments.items()}
        definitions[target] = _object(control | arguments)
        has_target = {"required": ["_target_"], "properties": {"_target_": {"const": target}}}
        cases.append({"if": has_target, "then": _reference(target)})
    definitions[f"any {key}"] = _object(control | every)
    named = {"anyOf": [{"enum": sorted(targets[key])}, OWN]}
    return {key: {"type": "object", "properties": {"_target_": named}, "allOf": cases}} | definitions


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _values(annotations: Mapping[str, Any], targets: Targets) -> dict[str, Schema]:
    return {name: _value(name, annotation, targets) for name, annotation in annotations.items()}


def _value(name: str, annotation: Any, targets: Targets) -> Schema:
    """Return the schema of the values that a file may give to an argument of this name and type."""
    if name == "own_layers":  # by their names in the network
        node = {"type": "object", "properties": {"_target_": TEXT}, "required": ["_target_"]}
        return _any_of([{"type": ["object", "null"], "additionalProperties": node}, _reference("composed")])
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if name in targets:
        is_list = any(get_origin(part) is list for part in parts)
        node = {"type": "array", "items": _reference(name)} if is_list else _reference(name)
        options = [node, *(_plain(part) for part in parts if part in (str, NoneType))]
    else:
        options = [_settings(part, targets) if is_dataclass(part) else _plain(part) for part in parts]
    return _any_of([*options, _reference("composed")])


def _settings(schema: Any, targets: Targets) -> Schema:
    return _object(_values(annotations_of(schema), targets))


def _plain(annotation: Any) -> Schema:
    return _with_composed(TypeAdapter(annotation).json_schema())


def _with_composed(schema: Schema) -> Schema:
    """Change pydantic's schema of a type so that each value inside may also be an interpolation."""
    schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    for inside in ("items", "additionalProperties"):
        if schema.get(inside) not in (None, True):
            schema[inside] = _any_of([_with_composed(schema[inside]), _reference("composed")])
    if "anyOf" in schema:
        schema["anyOf"] = [_with_composed(option) for option in schema["anyOf"]]
    return schema


def _any_of(options: Sequence[Schema]) -> Schema:
    """Return the schema that allows each of the options and lists none twice."""
    flat: list[Schema] = []
    for option in options:
        flat += [each for each in option.get("anyOf", [option]) if each not in flat]
    if {} in flat:
        return {}
    if TEXT in flat:
        flat = [each for each in flat if each != _reference("composed")]
    return {"anyOf": flat} if len(flat) > 1 else flat[0]


def _reference(name: str, file: str = "") -> Schema:
    return {"$ref": f"{file}#/definitions/{name}"}


if __name__ == "__main__":
    SCHEMAS.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (SCHEMAS / f"{name}.json").write_text(text_of(schema) + "\n")
