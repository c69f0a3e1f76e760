"""No value of any key of a configuration ends in anything but a run or a line that names what is wrong."""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepnets.config.build import build
from deepnets.config.compose import compose, composed
from deepnets.config.identity import flat
from deepnets.config.places import CONF
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder
from deepnets.runs.naming import folder_of
from deepnets.training.checks import check_settings
from tests.command import row

HOSTILE: list[Any] = [
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 0.5, -0.5, 1e300, 1e-300, 10**30, -(10**30), 2**63,
    "", "word", "nan", "${oc.env:HOME}", None, True,
    [], {}, [math.nan], [-1], [[]], ["a"], {"a": 1}, {"_target_": "os.abort"},
]  # fmt: skip
MODELS = [
    "digits_resnet", "highway_a", "highway_fc10", "densenet40_12", "stochastic_depth110", "vit_digits",
    "preact110_subset23", "wrn16_8", "thin_crelu",
]  # fmt: skip
OPTIONS = {group: sorted(file.stem for file in (CONF / group).glob("*.yaml")) for group in ("optimizer", "schedule")}
SHORTCUTS = sorted(file.stem for file in (CONF / "model" / "shortcut").glob("*.yaml"))
BASES = [
    [
        f"model={model}",
        "dataset=synthetic" if index % 2 else "dataset=digits",
        f"launcher={('local', 'pool', 'slurm')[index % 3]}",
        *(f"{group}={options[index % len(options)]}" for group, options in OPTIONS.items()),
    ]
    for index, model in enumerate(MODELS)
] + [["model/shortcut=" + shortcut] for shortcut in SHORTCUTS]


@cache
def text_of(base: int) -> str:
    """The configuration as it is frozen."""
    with TemporaryDirectory() as place:
        folder = RunFolder(place)
        folder.freeze(row(folder.path, *BASES[base]).config, {})
        return (folder.path / "config.yaml").read_text()


def places(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value, the inner ones included."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*above, key)
        yield from places(child, (*above, key))


def attack(bases: int, folder: Path, data: st.DataObject) -> None:
    """Change one value, however deep it lies, and do with the folder what comes before its training."""
    config = yaml.safe_load(text_of(data.draw(st.integers(0, bases - 1))))
    *path, last = way = data.draw(st.sampled_from(list(places(config))))
    node = config
    for name in path:
        node = node[name]
    node[last] = value = data.draw(st.sampled_from(HOSTILE))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    try:
        read = RunFolder(folder).config
        check_settings(read)
        build("launcher", read.launcher).check(read)
    except UserError as error:
        message = str(error)
        assert message.count("\n") <= 1
        named = (*way, value, "training set", "sbatch", "DictConfig")
        assert any(str(name) in message for name in named), (way, value, message)
    else:
        is_word = way in (("scale", "name"), ("output_root",))  # which may be nan
        assert is_word or not (isinstance(value, float) and not math.isfinite(value)), way


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hostile_value_is_refused_in_a_line(tmp_path: Path, data: st.DataObject) -> None:
    attack(len(MODELS), tmp_path, data)


@pytest.mark.nightly
@settings(max_examples=5000, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_hostile_values_are_refused_in_a_line(tmp_path: Path, data: st.DataObject) -> None:
    attack(len(BASES), tmp_path, data)


def hydra_overrides() -> list[str]:
    """Another value for each of Hydra's own keys."""
    plain = OmegaConf.to_container(composed(())[0].hydra, resolve=False)
    words = []
    for key, value in flat(plain, "hydra").items():
        if isinstance(value, bool):
            words.append(f"{key}={str(not value).lower()}")
        elif isinstance(value, int):
            words.append(f"{key}={value + 1}")
        elif value is None or isinstance(value, str):
            words.append(f"{key}=other")
    return [*words, "hydra.verbose=true", "hydra.verbose=[a]", "+hydra.job.env_set.A=b", "++hydra.run.dir=/x/${seed}"]


def check_name(words: list[str]) -> None:
    before = folder_of(compose(["epochs=2"])).path
    for word in words:
        try:
            assert folder_of(compose([word, "epochs=2"])).path == before, word
        except (HydraException, OmegaConfBaseException):  # refused
            continue


def test_hydras_own_keys_are_no_part_of_a_runs_name() -> None:
    words = [
        "hydra.run.dir=/x",
        "hydra.job.name=a",
        "hydra.verbose=true",
        "hydra.sweep.dir=a",
        "+hydra.job.env_set.A=b",
    ]
    check_name(words)


@pytest.mark.slow
def test_no_key_of_hydras_is_part_of_a_runs_name() -> None:
    assert len(hydra_overrides()) > 50
    check_name(hydra_overrides())
