"""Damage to the files of a run that has finished: named, repaired where that is possible, never used in silence."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.config.schema import Row
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.run import load_run
from deepnets.runs import checkpoint
from deepnets.runs.contents import Result
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.naming import folder_of
from deepnets.runs.record import state_checksum
from deepnets.runs.weights import read_weights, write_weights
from tests.command import ENVIRONMENT, ROOT, TRAIN, row

pytestmark = pytest.mark.attack

RUN = ["dataset=synthetic", "dataset.source.train=64", "dataset.source.test=20", "model.widths=[2,2,2]"]
RUN += ["batch_size=16", "epochs=2", "threads=1", "device=cpu"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    assert launch([row(root, *RUN)]) == 0
    return root


@pytest.fixture
def run_row(original: Path, tmp_path: Path) -> Row:
    """A copy of a run of 8 iterations, whose previous checkpoint is of iteration 4."""
    shutil.copytree(original / "runs", tmp_path / "runs")
    copied = row(tmp_path, *RUN)
    folder = folder_of(copied)
    state, _ = checkpoint.load(folder.path)
    last = (folder.path / checkpoint.LAST).read_bytes()
    state["training"] |= {"iteration": 4, "epoch": 1}
    state["training"]["model"] = {name: tensor + 1 for name, tensor in state["training"]["model"].items()}
    checkpoint.save(folder.path, state | {"history": state["history"][:1]})
    (folder.path / checkpoint.LAST).rename(folder.path / checkpoint.PREVIOUS)
    (folder.path / checkpoint.LAST).write_bytes(last)
    return copied


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def linked(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/urandom")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(byte ^ 1 for byte in content[middle : middle + 200])  # more than padding
    file.write_bytes(content)


def call(*words: str) -> None:
    """The command within this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [f"deepnets {words[0]}", *words[1:]])
        import_module(f"deepnets.commands.{words[0]}").main()


@pytest.mark.parametrize(
    ("damage", "why"),
    [(cut, "checkpoint.pt is damaged: "), (linked, "is a link"), (Path.unlink, "checkpoint.pt is missing")],
)
def test_weights_before_the_results_are_refused_unless_asked_for(
    run_row: Row, damage: Callable[[Path], Any], why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, export = folder_of(run_row), tmp_path / "export"
    damage(folder.path / checkpoint.LAST)
    refused = rf"checkpoint.previous.pt are of iteration 4, the result is of iteration 8 .*{why}.*--allow-previous"
    for load in (
        lambda *words: load_run(folder.path, allow_previous=bool(words)),
        lambda *words: call("analyze", "evaluate", str(folder.path), "--device", "cpu", *words),
        lambda *words: call("export", str(folder.path), "--to", str(export), *words),
    ):
        with pytest.raises(UserError, match=refused):
            load()
        capsys.readouterr()
        load("--allow-previous")
        assert "weights of iteration 4; the result is of iteration 8" in capsys.readouterr().out
    assert read_weights(export).iteration == 4
    (folder.path / checkpoint.PREVIOUS).unlink()
    (folder.path / checkpoint.LAST).unlink(missing_ok=True)
    shutil.copy(export / WEIGHTS, folder.path)
    with pytest.raises(UserError, match=f"{WEIGHTS} are of iteration 4, the result is of iteration 8"):
        load_run(folder.path)


def test_weights_say_that_they_are_the_last(run_row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(run_row)
    expected = load_run(folder.path)[0].state_dict()
    assert "weights of iteration 8, the last" in capsys.readouterr().out
    shutil.copy(
        folder.path / checkpoint.LAST, folder.path / checkpoint.PREVIOUS
    )  # as a checkpoint at the end leaves it
    cut(folder.path / checkpoint.LAST)
    again = load_run(folder.path)[0].state_dict()
    assert "weights of iteration 8, the last\ncheckpoint.pt is damaged" in capsys.readouterr().out
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


def test_a_card_names_no_number_that_the_run_contradicts(
    run_row: Row, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = folder_of(run_row)
    folder.result.model_copy(update={"test_error": 1.25}).write(folder.path)
    call("export", str(folder.path), "--to", str(tmp_path / "export"))
    assert "as the run contradicts itself: test_error is 1.25" in capsys.readouterr().out
    assert not (tmp_path / "export" / "README.md").exists()


def test_other_weights_of_the_last_iteration_are_refused(run_row: Row, tmp_path: Path) -> None:
    folder = folder_of(run_row)
    record = RunFolder(tmp_path / "record")
    write_weights(read_weights(folder.path), record.path)
    shutil.copy(folder.path / "result.json", record.path)
    assert read_weights(record.path).iteration == 8
    state, _ = checkpoint.load(folder.path)
    state["training"]["model"]["head.bias"][0] += 1e-6
    checkpoint.save(folder.path, state)
    for allow_previous in (False, True):
        with pytest.raises(UserError, match=r"checkpoint.pt: the weights in it are not those of the result.*sha256"):
            load_run(folder.path, allow_previous=allow_previous)
    write_weights(read_weights(record.path), tmp_path / "other")
    folder.result.model_copy(update={"weights_sha256": "0" * 64}).write(record.path)
    with pytest.raises(UserError, match=f"{WEIGHTS}: the weights in it are not those of the result"):
        load_run(record.path)
    earlier = folder.result.model_dump(exclude={"weights_sha256"}, exclude_unset=True)  # as earlier versions wrote it
    Result.model_validate(earlier).write(folder.path)
    load_run(folder.path)


def test_the_checksum_is_of_names_types_shapes_and_bytes() -> None:
    state = {"b": torch.arange(24.0).reshape(1, 2, 3, 4), "a": torch.tensor(7)}
    checksum = state_checksum(state)
    moved = {"a": state["a"].clone(), "b": state["b"].to(memory_format=torch.channels_last)}
    assert state_checksum(moved) == checksum
    others = [
        {"c": state["b"], "a": state["a"]},
        {"a": state["a"], "b": state["b"].reshape(2, 3, 4)},
        {"a": state["a"], "b": state["b"].view(torch.int32)},
        {"a": torch.tensor(6), "b": state["b"]},
    ]
    assert len({checksum, *map(state_checksum, others)}) == 5


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "is damaged ("),
        (flipped, "is damaged ("),
        (linked, "is damaged (it is a link"),
        (Path.unlink, "is missing"),
    ],
)
def test_the_same_command_again_names_a_damaged_checkpoint(
    run_row: Row, damage: Callable[[Path], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(run_row)
    assert launch([run_row]) == 0
    assert "finished, but" not in capsys.readouterr().out
    damage(folder.path / checkpoint.LAST)
    assert launch([run_row]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "finished, but" in line]
    assert f"seed0: finished, but checkpoint.pt {said}" in line
    assert line.endswith("; overwrite=true trains the run again")
    assert "already finished" in out


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is missing"),
        (cut, "is damaged ("),
        (linked, "is damaged (it is a link"),
        (lambda file: file.write_bytes(b""), "is damaged (0 rows, 2 epochs)"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is damaged (2 rows, 2 epochs)"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b",", b",x")), "is damaged (could not convert"),
    ],
)
def test_lost_metrics_are_restored_from_the_checkpoint(
    run_row: Row, damage: Callable[[Path], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(run_row)
    file = folder.path / "metrics.csv"
    before = file.read_bytes()
    damage(file)
    assert launch([run_row]) == 0
    assert f"seed0: finished, but metrics.csv {said}" in (out := capsys.readouterr().out)
    assert "; restored from the checkpoint" in out
    assert (file.read_bytes(), file.is_symlink()) == (before, False)
    damage(file)
    (folder.path / checkpoint.LAST).unlink()  # the previous one has the first epoch only
    assert launch([run_row]) == 0
    assert "; no checkpoint has its rows; overwrite=true trains the run again" in capsys.readouterr().out
    assert not file.is_file() or file.is_symlink() or file.read_bytes() != before


def test_a_record_misses_no_checkpoint(run_row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(run_row)
    for file in folder.path.iterdir():
        if file.name not in ("config.yaml", "metrics.csv", "result.json"):
            os.unlink(file)
    assert launch([run_row]) == 0
    assert "finished, but" not in capsys.readouterr().out
    assert json.loads((folder.path / "result.json").read_text())["weights_sha256"]


@pytest.mark.slow
def test_a_finished_run_is_read_where_nothing_can_be_written(run_row: Row, tmp_path: Path) -> None:
    # To root, permissions apply only without its capabilities.
    bound = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    folder = folder_of(run_row).path

    def again(*changes: str) -> tuple[int, str]:
        words = [*bound, *TRAIN, *RUN, f"output_root={tmp_path}", *changes]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)
        return done.returncode, done.stdout + done.stderr

    (folder / "metrics.csv").unlink()
    places = [tmp_path, *(place for place in tmp_path.rglob("*") if place.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        (code, said), (other, refused) = again(), again("seed=1")
    finally:
        for place in places:
            place.chmod(0o755)
    assert code == 0, said
    assert "already finished" in said
    assert "metrics.csv is missing; cannot be restored (" in said
    assert not (folder / "metrics.csv").exists()
    assert (other, "is not a writable folder" in refused) == (1, True)
