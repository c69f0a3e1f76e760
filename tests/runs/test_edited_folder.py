"""What train.py refuses, `python -m deepnets.run` refuses in a folder whose config.yaml somebody has edited."""

import subprocess
import sys
from pathlib import Path

import pytest

from deepnets.errors import UserError
from deepnets.runs.contents import Origin, Result
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import ENVIRONMENT, ROOT, row

pytestmark = pytest.mark.attack

RUN = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "batch_size=32", "device=cpu", "selection=final"]
EDITS = [
    ("devices: 1", "devices: 34", "devices=34: a batch of 32 cannot be divided among them"),
    ("devices: 1", "devices: 30", "devices=30: a batch of 29 cannot be divided among them"),
    ("devices: 1", "devices: 2\nstep: compiled", "step=compiled devices=2: supports one process only"),
    ("devices: 1", "devices: 2\ndevice: cuda:1", "device=cuda:1: not on this machine"),
    ("batch_size: 32", "batch_size: 1000000", "batch_size=1000000: larger than the training set of 1437 images"),
    ("selection: final", "selection: best_validation", "selection=best_validation: needs a validation split"),
]


def edited(path: Path, before: str, after: str) -> RunFolder:
    """An unfinished run whose config.yaml has other settings by now."""
    folder = RunFolder(path)
    folder.freeze(row(path, *RUN).config, Origin())
    file = path / "config.yaml"
    keys = {line.partition(":")[0] for line in after.splitlines()}
    lines = [line for line in file.read_text().splitlines() if line.partition(":")[0] not in keys or line == before]
    assert before in lines
    file.write_text("\n".join(lines).replace(before, after))
    return folder


@pytest.mark.parametrize(("before", "after", "said"), EDITS)
def test_nothing_is_trained_of_an_edited_run(tmp_path: Path, before: str, after: str, said: str) -> None:
    folder = edited(tmp_path, before, after)
    with pytest.raises(UserError, match=said):
        run(folder)
    assert said in folder.result.reason
    assert not (tmp_path / "metrics.csv").exists()
    if "devices" in after:  # no process has begun
        assert not (tmp_path / "status.json").exists()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"iterations": 45, "identity": "0123456789ab"}, "is of another run .*identity 0123456789ab there"),
        ({}, "says that the run finished, but not after how many iterations"),
    ],
)
def test_the_result_of_another_run_skips_no_training(tmp_path: Path, result: dict, said: str) -> None:
    config = row(tmp_path, *RUN).config
    folder = RunFolder(tmp_path / "seed0")
    folder.freeze(config, Origin())
    Result.model_validate({"status": "finished", "test_error": 5.0, **result}).write(folder.path)
    for execute in (lambda: run(folder), lambda: folder.check(config)):
        with pytest.raises(UserError, match=f"result.json: {said}"):
            execute()
    assert not (folder.path / "metrics.csv").exists()
    config.overwrite = True
    assert folder.check(config) is None


@pytest.mark.slow
def test_five_hundred_processes_are_not_started(tmp_path: Path) -> None:
    folder = edited(tmp_path, "devices: 1", "devices: 500")
    done = subprocess.run(
        [sys.executable, "-m", "deepnets.run", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: devices=500: a batch of 32 cannot be divided among them")
    assert done.stderr.count("\n") == 1
