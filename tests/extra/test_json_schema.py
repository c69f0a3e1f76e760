"""The schemas of conf/: as the constructors are now, named in every file, true of every file, and strict."""

import json
import re
from pathlib import Path

import pytest
import yaml

from deepnets.config.build import TARGETS
from deepnets.config.project import CONF, SCHEMAS
from deepnets.config.safe_yaml import LOADER
from deepnets.extra.json_schema import schemas, text_of

FILES = sorted(CONF.rglob("*.yaml"))


def test_the_schemas_are_those_of_the_constructors() -> None:
    committed = {file.stem: file.read_text() for file in SCHEMAS.iterdir()}
    fresh = schemas()
    assert committed == {name: text_of(schema) + "\n" for name, schema in fresh.items()}, (
        "constructors, types or ranges have changed: python -m deepnets.extra.json_schema"
    )
    assert fresh["train"]["definitions"].keys() >= TARGETS


def named_schema(file: Path) -> Path:
    """As YAML's language server reads it, in a comment at the top; Hydra's package stands above it."""
    lines = [line for line in file.read_text().splitlines()[:2] if not line.startswith("# @package")]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", lines[0])
    assert found, f"{file} does not name its schema"
    return (file.parent / found[1]).resolve()


def errors_of(schema: str, text: str) -> list[str]:
    """What is wrong with a file of this content."""
    jsonschema = pytest.importorskip("jsonschema")
    run = json.loads((SCHEMAS / "train.json").read_text())
    root = run if schema == "train" else {"$ref": f"#/definitions/{schema}", "definitions": run["definitions"]}
    errors = jsonschema.Draft7Validator(root).iter_errors(yaml.load(text, LOADER) or {})
    return [f"{error.json_path}: {error.message}" for error in errors]


def test_every_file_suits_the_schema_that_it_names() -> None:
    named = {file: named_schema(file) for file in FILES}
    assert {schema.parent for schema in named.values()} == {SCHEMAS}
    for file, schema in named.items():
        assert errors_of(schema.stem, file.read_text()) == [], file


@pytest.mark.parametrize(
    ("schema", "text", "wrong"),
    [
        ("model", "dept: 110", "'dept' was unexpected"),
        ("model", "depth: 0", "0 "),
        ("model", "shortcut: {bias: low}", "{'bias': 'low'}"),
        ("model", "_target_: deepnets.models.resnet.ResNet\nheads: 4", "'heads' was unexpected"),
        ("model", "_target_: deepnets.models.resnet.ResNat", "'deepnets.models.resnet.ResNat' "),
        ("model", "widths: [16, 32.5]", r"\[16, 32.5\] "),
        ("model", "survival: {_target_: deepnets.models.survival.Uniform, probability: 2}", "survival"),
        ("dataset", "source: {_target_: deepnets.data.sources.synthetic, classes: 1}", "source"),
        ("optimizer", "lr: 0", "0 "),
        ("schedule", "factor: 1.5", "1.5 "),
        ("scale", "budget: 0", "0 "),
        ("train", "epoch: 3", "'epoch' was unexpected"),
        ("train", "precision: fp16", "'fp16' "),
        ("train", "optimizer: {momentum: 1}", "optimizer"),
        ("train", "sweep: {axis: [model]}", "sweep"),
    ],
)
def test_a_wrong_key_or_value_is_refused(schema: str, text: str, wrong: str) -> None:
    (error,) = errors_of(schema, text)
    assert re.search(wrong, error)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("model", "depth: ${at_scale:110,20}\nwidths: [16, '${model.width}']"),
        ("model", "depth: ???\nunits: null"),
        ("model", "shortcut: {_target_: my_project.LearnedMix, _partial_: true, start: 0.5}"),
        ("dataset", "defaults: [digits]\nsource: {_target_: my_project.stripes}"),
        ("train", "defaults: [train, {override dataset: stripes}, _self_]\nepochs: 20"),
        ("train", "sweep: {axes: [model], zip: [[model, seed]], exclude: [{seed: 1}]}\nhydra: {mode: MULTIRUN}"),
    ],
)
def test_what_is_composed_or_a_users_own_is_legal(schema: str, text: str) -> None:
    assert errors_of(schema, text) == []
