"""A run that is killed and started again ends as if nothing had happened, bit by bit."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deepnets.runs import checkpoint
from tests.command import ENVIRONMENT, ROOT, metrics, start, train

pytestmark = pytest.mark.slow

# Dropout draws from the generator whose state must come back; a checkpoint is written at every opportunity.
RUN = ["model.depth=8", "model.widths=[8,16,32]", "model/shortcut=dropout_inverted", "epochs=6", "threads=1"]
RUN += ["checkpoint_seconds=0", "evaluation_batch_size=100", "device=cpu"]
TIMES = {"seconds", "images_per_second"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    done = train(*RUN, f"output_root={root}")
    assert done.returncode == 0, done.stderr
    return folder_in(root)


def folder_in(root: Path) -> Path:
    (folder,) = root.glob("runs/*/seed0")
    return folder


def assert_equal_runs(folder: Path, reference: Path) -> None:
    assert metrics(folder) == metrics(reference)
    assert len(metrics(folder)) == 6
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (folder, reference))
    assert {key: value for key, value in ours.items() if key not in TIMES} == {
        key: value for key, value in theirs.items() if key not in TIMES
    }
    ours, theirs = (checkpoint.load(path)[0]["training"] for path in (folder, reference))
    assert ours["iteration"] == theirs["iteration"] == 72
    for name, weight in theirs["model"].items():
        assert torch.equal(ours["model"][name], weight), name
    for index, moments in theirs["optimizer"]["state"].items():
        assert torch.equal(ours["optimizer"]["state"][index]["momentum_buffer"], moments["momentum_buffer"])


def assert_each_point_is_drawn_once(folder: Path) -> None:
    events = EventAccumulator(str(folder)).Reload()
    for tag in ("loss/train", "error/train", "loss/test", "error/test"):
        assert [event.step for event in events.Scalars(tag)] == [12, 24, 36, 48, 60, 72]
    assert [event.step for event in events.Scalars("loss/iteration")] == list(range(10, 72, 10))


def wait_for(condition: object, process: subprocess.Popen[str]) -> bool:
    """Until `condition()` holds; False when the process ended first."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


@pytest.mark.nightly
def test_killed_at_random_instants(undisturbed: Path, tmp_path: Path) -> None:
    draw = random.Random(1)
    kills = 0
    for _ in range(3):
        process = start(*RUN, f"output_root={tmp_path}")
        begun = time.time()

        def saved(begun: float = begun) -> bool:
            return any(file.stat().st_mtime > begun for file in tmp_path.glob("runs/*/*/checkpoint.pt"))

        if wait_for(saved, process):
            time.sleep(draw.uniform(0, 0.4))
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills >= 2
    done = train(*RUN, f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert_equal_runs(folder_in(tmp_path), undisturbed)


def test_killed_while_a_checkpoint_is_written(undisturbed: Path, tmp_path: Path) -> None:
    for _ in range(10):
        process = start(*RUN, f"output_root={tmp_path}")
        assert wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoint.pt")), process)
        wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoint.pt.new")), process)
        process.kill()
        process.communicate()
        if list(tmp_path.glob("runs/*/*/checkpoint.pt.new")):
            break
    else:
        pytest.fail("no kill hit a checkpoint write")
    done = train(*RUN, f"output_root={tmp_path}")
    assert "resuming at iteration" in done.stdout
    assert_equal_runs(folder_in(tmp_path), undisturbed)
    assert_each_point_is_drawn_once(folder_in(tmp_path))


def stopped_in_epoch(number: int, process: subprocess.Popen[str], by: signal.Signals) -> str:
    """What it tells after the signal."""
    for line in process.stdout:
        if line.startswith(f"epoch {number}/"):
            break
    process.send_signal(by)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + by
    return told


def test_a_signal_saves_and_says_how_to_continue(undisturbed: Path, tmp_path: Path) -> None:
    process = start(*RUN, f"output_root={tmp_path}", "checkpoint_seconds=1000")
    told = stopped_in_epoch(2, process, signal.SIGINT)
    folder = folder_in(tmp_path)
    assert f"python -m deepnets.run {shlex.quote(str(folder))}" in told
    assert not (folder / "result.json").exists()
    again = [sys.executable, "-m", "deepnets.run", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT, "env": ENVIRONMENT}
    told = stopped_in_epoch(4, subprocess.Popen(again, **pipes), signal.SIGTERM)
    assert f"python -m deepnets.run {shlex.quote(str(folder))}" in told
    done = subprocess.run(again, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    assert "resuming at iteration" in done.stdout
    assert_equal_runs(folder, undisturbed)


def test_a_damaged_checkpoint_is_told_and_the_previous_one_used(undisturbed: Path, tmp_path: Path) -> None:
    process = start(*RUN, f"output_root={tmp_path}")
    for line in process.stdout:
        if line.startswith("epoch 3/"):
            break
    process.kill()
    process.communicate()
    last = folder_in(tmp_path) / checkpoint.LAST
    content = bytearray(last.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 128):  # more than the padding between two tensors
        content[place] ^= 1
    last.write_bytes(content)
    done = train(*RUN, f"output_root={tmp_path}")
    assert "checkpoint.pt is damaged" in done.stdout
    assert last.with_name("checkpoint.pt.damaged").read_bytes() == content
    assert "resuming at iteration" in done.stdout
    assert_equal_runs(folder_in(tmp_path), undisturbed)


@pytest.mark.nightly
def test_tensorboard_curves_do_not_double_where_nothing_was_saved(tmp_path: Path) -> None:
    process = start(*RUN, f"output_root={tmp_path}", "checkpoint_seconds=1000")
    for line in process.stdout:
        if line.startswith("epoch 3/"):
            break
    process.kill()
    process.communicate()
    assert train(*RUN, f"output_root={tmp_path}").returncode == 0
    assert_each_point_is_drawn_once(folder_in(tmp_path))
