"""A checkpoint is continued by the run that wrote it and by no other."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.config.identity import identity
from deepnets.errors import UserError
from deepnets.run import load_run
from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import malformed
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import row

pytestmark = pytest.mark.attack

SMALL = [
    "dataset=synthetic",
    "dataset.source.train=64",
    "dataset.source.test=20",
    "model.widths=[2,2,2]",
    "batch_size=16",
]


def trained(root: Path, *changes: str) -> RunFolder:
    """A finished run, and its folder with the result taken away: what is left is its last checkpoint."""
    folder = RunFolder(root)
    folder.freeze(row(root.parent, *SMALL, *changes).config, Origin())
    run(folder)
    (folder.path / "result.json").unlink()
    return folder


def state_of(folder: RunFolder) -> dict[str, Any]:
    state, _ = checkpoint.load(folder.path)
    assert state is not None
    return state


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("runs") / "seed0", "epochs=2")


def copy(folder: RunFolder, to: Path, *changes: str) -> RunFolder:
    """A folder with settings of its own and the checkpoint of another."""
    other = RunFolder(to)
    other.freeze(row(to.parent, *SMALL, *changes).config, Origin())
    shutil.copy(folder.path / checkpoint.LAST, to)
    return other


@pytest.mark.parametrize(
    ("change", "named"),
    [("seed=1", "seed: 0 there, 1 here"), ("epochs=3", "epochs: 2 there, 3 here"), ("model.widths=[2,2,4]", "widths")],
)
def test_the_checkpoint_of_another_run_is_refused(first: RunFolder, tmp_path: Path, change: str, named: str) -> None:
    other = copy(first, tmp_path / "other", *(["epochs=2"] if "epochs" not in change else []), change)
    with pytest.raises(UserError, match=named):
        run(other)
    with pytest.raises(UserError, match="is of another run"):
        load_run(other.path)


def test_where_a_run_executes_does_not_make_it_another(first: RunFolder, tmp_path: Path) -> None:
    other = copy(first, tmp_path / "other", "epochs=2", "log_iterations=3", "evaluation_batch_size=7", "threads=1")
    assert run(other).iterations == 8


def adopted(folder: RunFolder, to: Path, *changes: str, **training: int) -> RunFolder:
    """A checkpoint that says it is of the run it lies beside, with some numbers changed."""
    other = copy(folder, to, *changes)
    state = state_of(other) | {"run": identity(other.config)}
    state["training"] |= training
    checkpoint.save(other.path, state)
    return other


@pytest.mark.parametrize(
    ("change", "training"),
    [
        ("epochs=1", {}),
        ("epochs=2", {"iteration": 7}),
        ("epochs=2", {"epoch": 1}),
        ("epochs=2", {"batch": -1}),
        ("epochs=3", {"iteration": 9, "batch": 1, "epoch": 1}),
    ],
)
def test_one_that_stands_where_the_budget_never_does_is_refused(
    first: RunFolder, tmp_path: Path, change: str, training: dict[str, int]
) -> None:
    with pytest.raises(UserError, match="is of another run: it stands at iteration"):
        run(adopted(first, tmp_path / "other", change, **training))


def test_one_of_another_network_is_refused(first: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is of another network"):
        run(adopted(first, tmp_path / "other", "epochs=2", "model.widths=[2,2,4]"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda model, optimizer: model.update({"head.bias": torch.zeros(10, dtype=torch.int64)}), "head.bias is of"),
        (lambda model, optimizer: optimizer["param_groups"][0].update(weight_decay=0.5), "weight_decay is 0.5 there"),
        (lambda model, optimizer: optimizer["param_groups"][0].update(maximize=True), "maximize is True there, False"),
        (lambda model, optimizer: optimizer["param_groups"][0].update(initial_lr=7.0), "initial_lr is 7.0 there, 0.1"),
        (lambda model, optimizer: optimizer["param_groups"].pop(), "zip"),
        (lambda model, optimizer: optimizer["state"][0].update(momentum_buffer=torch.zeros(3)), "momentum_buffer of a"),
        (
            lambda model, optimizer: optimizer["state"][0].update(momentum_buffer="a word"),
            "momentum_buffer of a weight",
        ),
        (lambda model, optimizer: optimizer["state"].update({999: {"a": torch.zeros(3)}}), "out of range"),
    ],
)
def test_another_optimiser_is_refused_and_not_adopted(
    first: RunFolder, tmp_path: Path, change: Callable[[dict, dict], Any], named: str
) -> None:
    other = copy(first, tmp_path / "other", "epochs=2")
    state = state_of(other)
    change(state["training"]["model"], state["training"]["optimizer"])
    checkpoint.save(other.path, state)
    with pytest.raises(UserError, match=f"is of another network or optimiser: .*{named}"):
        run(other)
    assert "Traceback" not in (other.path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"base_lrs": [1e9]}, r"base_lrs of the schedule is \[1000000000.0\] there, \[0.1\] here"),
        ({"last_epoch": "x"}, "last_epoch of the schedule is 'x' there"),
        ({"step": 5}, "a value in place of its step"),
        ({"optimizer": 5}, "a value in place of its optimizer"),
    ],
)
def test_another_schedule_is_refused_and_not_adopted(
    first: RunFolder, tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    other = copy(first, tmp_path / "other", "epochs=2")
    state = state_of(other)
    state["training"]["schedule"].update(values)
    checkpoint.save(other.path, state)
    with pytest.raises(UserError, match=f"is of another network or optimiser: .*{named}"):
        run(other)


@pytest.mark.parametrize(
    "place", ["training", "training.model", "training.iteration", "history", "frozen.precision", "run"]
)
@pytest.mark.parametrize("value", [None, "word", torch.zeros(1)])
def test_an_entry_of_another_type_is_named(first: RunFolder, place: str, value: object) -> None:
    state = state_of(first)
    assert malformed(state) is None
    *path, last = place.split(".")
    node = state
    for name in path:
        node = node[name]
    if value == "word" and place == "frozen.precision":
        return
    node[last] = value
    assert malformed(state).startswith(f"{place}: Input should be")


def without_data(state: dict) -> None:
    state["frozen"]["data"].clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.update(seconds=float("nan")), "seconds: Input should be a finite number"),
        (lambda state: state["history"][0].update(test_error="<b>"), "history.0.test_error: Input should be a valid"),
        (lambda state: state["history"][0].pop("test_error"), "epoch 1 of the history does not have .* test_error"),
        (lambda state: state["observed"][0].update(gates=[None]), "observed.0.gates.0: Input should be a valid number"),
        (lambda state: state["evidence"].update(losses=5), "evidence.losses: Input should be an instance of Tensor"),
        (lambda state: state["evidence"].update(losses=torch.zeros(2, 2)), "evidence: .*losses are not a list"),
        (lambda state: state["evidence"].update(right=torch.zeros(3)), "evidence: .*right does not say"),
        (without_data, "evidence.right is of .* test images, frozen.data.test is None"),
        (lambda state: state["frozen"].update(classes=-1), "frozen.classes: Input should be greater"),
        (lambda state: state["frozen"].update(threads=10**6), "frozen.threads: Input should be less"),
        (lambda state: state["frozen"]["processes"].clear(), "frozen.processes: Dictionary should have at least 1"),
        (lambda state: state["frozen"].update(code={"0": 5}), "frozen.code.0: Input should be a valid dictionary"),
    ],
)
def test_an_entry_that_would_stop_the_run_later_is_named(
    first: RunFolder, change: Callable[[dict], Any], said: str
) -> None:
    state = state_of(first)
    change(state)
    assert re.search(said, malformed(state))


def test_a_run_resumes_in_the_arithmetic_it_began_in(first: RunFolder, tmp_path: Path) -> None:
    """Which precision=auto means on one device and not on another."""
    state = state_of(first)
    began = state["frozen"]["precision"]
    other, name = {"float32": ("bfloat16", "bf16"), "bfloat16": ("float32", "fp32")}[began]
    checkpoint.save(
        copy(first, tmp_path / "other", "epochs=2").path, state | {"frozen": state["frozen"] | {"precision": other}}
    )
    with pytest.raises(
        UserError, match=rf"began in {other}, but precision=auto is {began} on .* with precision={name}"
    ):
        run(RunFolder(tmp_path / "other"))
