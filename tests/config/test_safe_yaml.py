"""What is read from a run folder is data: hostile configurations call nothing, resolve nothing and end in one line."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from deepnets.config.build import build
from deepnets.config.safe_yaml import DEEPEST, LONGEST, plain_yaml, read_frozen
from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from tests.command import row

pytestmark = pytest.mark.attack

CANARY = "canary-that-no-configuration-may-write"
CALLS = [
    {"_target_": "pathlib.Path.touch", "self": {"_target_": "pathlib.Path", "_args_": [CANARY]}},
    {"_target_": "os.mkdir", "path": CANARY},
    {"_target_": "os.system", "command": f"touch {CANARY}"},
    {"_target_": "subprocess.run", "args": ["touch", CANARY]},
    {"_target_": "builtins.exec", "_args_": [f"open('{CANARY}', 'w')"]},
    {"_target_": "torch.optim.optimizer.torch.hub.load", "repo_or_dir": "."},
    {"_target_": "deepnets.schedule.bisect_right.__class__"},
    {"_target_": "hydra.utils.instantiate", "config": {"_target_": "os.mkdir", "path": CANARY}},
]
STRINGS = [
    "${oc.create:{_target_: os.mkdir, path: " + CANARY + "}}",
    "\\${oc.create:{_target_: os.mkdir, path: " + CANARY + "}}",
    "${oc.env:HOME}",
    "${hydra:runtime.cwd}",
    "a${seed}b",
]
TAGS = [
    f"!!python/object/apply:os.mkdir ['{CANARY}']",
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    "!!python/name:os.system",
    "&a [*a, *a]",
    "&a {b: &c [1], d: *c}",
]
PLACES = ["model", "dataset", "dataset.source", "dataset.root", "optimizer", "schedule", "schedule.milestones"]


def wrapped(call: dict[str, Any], depth: int, key: str) -> Any:
    """The call below lists and nodes, where a shallow look does not see it."""
    for level in range(depth):
        call = [call] if level % 2 else {key: call}
    return call


hostile = st.one_of(
    st.builds(
        wrapped, st.sampled_from(CALLS), st.integers(0, 4), st.sampled_from(["a", "_args_", "_target_", "widths"])
    ),
    st.builds(wrapped, st.sampled_from(STRINGS), st.integers(0, 4), st.sampled_from(["a", "_target_", "root"])),
    st.sampled_from(TAGS).map(lambda tag: {"tag": tag}),
)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration of a run as it is frozen."""
    run = row(tmp_path_factory.mktemp("root"), "epochs=1").config
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.freeze(run, Origin())
    return yaml.safe_load((folder.path / "config.yaml").read_text())


def build_all(folder: RunFolder) -> None:
    """What an execution of the folder reads and builds of its configuration."""
    config = folder.config
    build("model", config.model, shape=(1, 8, 8), classes=10)
    build("dataset", config.dataset)
    build("optimizer", config.optimizer, model=nn.Linear(1, 1))
    build("schedule", config.schedule, total=100)


def test_what_a_run_has_frozen_is_built(frozen: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(frozen))
    build_all(RunFolder(tmp_path))


@settings(max_examples=320, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.sampled_from(PLACES), part=hostile, replaces=st.booleans())
@pytest.mark.slow
def test_no_hostile_configuration_is_called_or_resolved(
    frozen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, part: Any, replaces: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load(yaml.safe_dump(frozen))
    *path, last = place.split(".")
    node = config
    for name in path:
        node = node[name]
    tag = part.get("tag") if isinstance(part, dict) else None
    whole = replaces or not isinstance(node[last], dict)
    node[last] = "TAG" if tag else part if whole else {**node[last], "extra": part}
    text = yaml.safe_dump(config)
    (tmp_path / "config.yaml").write_text(text.replace("TAG", tag) if tag else text)
    with pytest.raises(UserError) as refused:
        build_all(RunFolder(tmp_path))
    assert "\n" not in str(refused.value)
    assert not os.path.exists(CANARY)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [1, 2]\nb: *x\n", "line 2: an alias"),
        ("a: " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested deeper"),
        ("a: " + "b" * LONGEST, "characters"),
        ("a: '${b}'\n", "an interpolation"),
        ("'${b}': 1\n", "an interpolation"),
    ],
)
def test_yaml_that_is_no_configuration_is_refused_before_it_costs_anything(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        plain_yaml(text)


@pytest.mark.parametrize("text", ["", "[1, 2]", "word", "1: 2"])
def test_settings_have_names(text: str) -> None:
    with pytest.raises(ValueError, match="does not map names to settings"):
        read_frozen(text)
