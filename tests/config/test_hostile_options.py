"""Options that a stranger wrote, or that were damaged: two lines name the file or the key, and nothing is called."""

import copy
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepnets.config.compose import composed
from tests.config.test_every_key import HOSTILE, places
from tests.config.test_every_word import said_by

pytestmark = pytest.mark.attack

CANARY = "canary-that-no-option-may-write"
CALL = {"_target_": "os.mkdir", "path": CANARY}
SWEEP: dict[str, Any] = {
    "defaults": [{"override /dataset": "synthetic"}],
    "epochs": 1,
    "sweep": {
        "axes": ["model/shortcut"],
        "reported": {"statistic": "single", "test_error": {"identity": 3.5, "none": "fail"}},
        "claims": [{"claim": "identity is lower than none", "place": "README"}],
        "exclude": [{"model/shortcut": "none", "seed": 1}],
    },
    "hydra": {"mode": "MULTIRUN", "sweeper": {"params": {"model/shortcut": "identity,none", "seed": "0,1"}}},
}
FEWEST: dict[str, Any] = {
    "epochs": 1,
    "sweep": {
        "rows": {"model/shortcut": ["identity", "none"], "model.depth": ["range(8,9)", 14]},
        "union": [{"batch_size": [8, 16]}],
        "seeds": [3, 4],
    },
}
PARTS: list[Any] = [
    *HOSTILE, CALL, [CALL], {"a": CALL}, "${oc.create:{_target_: os.mkdir}}", "${nope}", "\\${seed}", "os.mkdir",
    ["override /hydra/callbacks: mine"], [{"/hydra/callbacks": "mine"}], [{"nope": "nope"}], ["nope"],
    "choice(1,2", {"callbacks": {"a": CALL}}, {"job_logging": {"version": 1, "handlers": {"a": {"()": "os.abort"}}}},
    "range(0,1000000000)", {"launcher": CALL}, {"sweeper": CALL}, {"mode": "RUN"}, {"searchpath": ["file:///nowhere"]},
]  # fmt: skip
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
TEXTS = ["", "[", "5", "\t", "a: 1\n- b", "[" * 100_000, "!!python/object/apply:os.mkdir [x]", "epochs: 1\nepochs: 2"]
TEXTS += ["\ufeffepochs: 1", "epochs: \udc80", "# @package hydra.callbacks\na: {_target_: os.mkdir}", BOMB]


def written(draw: random.Random) -> str:
    """A sweep's file, damaged in one of many ways."""
    if draw.random() < 0.25:
        return draw.choice(TEXTS)
    sweep = copy.deepcopy(draw.choice([SWEEP, FEWEST]))
    *path, last = draw.choice(list(places(sweep)))
    node: Any = sweep
    for name in path:
        node = node[name]
    if draw.random() < 0.2 and isinstance(node, dict):
        del node[last]
        last = draw.choice(["nope", "_target_", "seed", "callbacks", "defaults", "_self_", 5])
    node[last] = draw.choice(PARTS)
    text = f"# @package {draw.choice(['_global_'] * 9 + ['hydra'])}\n" + yaml.safe_dump(sweep)
    return text[: draw.randrange(len(text))] if draw.random() < 0.1 else text


def attack(place: Path, attempts: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    draw, file = random.Random(seed), place / "conf" / "sweep" / "mine.yaml"
    file.parent.mkdir(parents=True)
    (place / "conf" / "hydra" / "callbacks").mkdir(parents=True)
    (place / "conf" / "hydra" / "callbacks" / "mine.yaml").write_text(yaml.safe_dump({"a": CALL}))
    for number in range(attempts):
        file.write_bytes(written(draw).encode(errors="surrogateescape"))
        composed.cache_clear()
        said = said_by(["--config-dir=conf", "sweep=mine", f"epochs={number + 1}"], monkeypatch)
        assert said is None or (said.strip() and said.strip().count("\n") <= 1), (file.read_text(), said)
        assert said is None or len(said) < 1500, (file.read_text(), said)
        assert not os.path.exists(CANARY), file.read_text()


def test_a_sweeps_file_calls_nothing_and_what_is_wrong_in_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack(tmp_path, 3, 0, monkeypatch)


def test_a_sweep_of_more_runs_than_can_be_composed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep").mkdir()
    hydra = {"mode": "MULTIRUN", "sweeper": {"params": {"seed": "range(0,5000)"}}}
    (tmp_path / "sweep" / "mine.yaml").write_text(f"# @package _global_\n{yaml.safe_dump({'hydra': hydra})}")
    said = said_by(["--config-dir", str(tmp_path), "sweep=mine", "epochs=1,2,3"], monkeypatch)
    assert said == "sweep: a grid of more than 10,000 runs, the most that one command composes"


@pytest.mark.slow
def test_hostile_sweeps_call_nothing_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(tmp_path, 15, 1, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(3))
def test_many_hostile_sweeps_call_nothing_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    attack(tmp_path, 150, 2 + part, monkeypatch)


@pytest.mark.parametrize("words", [["hydra/callbacks=mine"], ["+hydra.callbacks={a:{_target_:os.mkdir}}"]])
def test_hydra_calls_nothing_that_is_typed_either(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hydra" / "callbacks").mkdir(parents=True)
    (tmp_path / "hydra" / "callbacks" / "mine.yaml").write_text(yaml.safe_dump({"a": CALL}))
    monkeypatch.chdir(tmp_path)
    assert "callbacks" in said_by(["--config-dir=.", *words], monkeypatch)
    assert not os.path.exists(CANARY)
