"""Runs on trees of real JPEGs: they memorise, and go on where a process or the whole run was killed."""

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepnets.data.class_folders import list_images
from deepnets.runs import checkpoint
from tests.command import metrics, start, train
from tests.photographs import photograph_tree

pytestmark = pytest.mark.slow

NET = ["model=imagenet_resnet18", "dataset=imagenet", "dataset.size=32", "precision=fp32", "device=cpu", "threads=1"]
RUN = [*NET, "model.widths=[4,4,8,8]", "dataset.classes=4", "dataset.workers=2", "dataset.view=ten_crop"]
RUN += ["dataset.normalization=channel", "dataset.crop=aspect_ratio", "dataset.jitter=0.4", "batch_size=10"]
RUN += ["epochs=4", "checkpoint_seconds=0", "schedule=error_plateau", "schedule.patience=1", "optimizer.lr=0.01"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photograph_tree(tmp_path_factory.mktemp("tree"), classes=4, train=32, val=4)  # 13 batches, the last of 8


def folder_in(root: Path) -> Path:
    (folder,) = root.glob("runs/*/seed0")
    return folder


@pytest.fixture(scope="module")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    done = train(*RUN, "devices=2", f"dataset.root={tree}", f"output_root={root}")
    assert done.returncode == 0, done.stderr
    return folder_in(root)


def test_the_result_is_that_of_the_view(undisturbed: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    with (undisturbed / "metrics.csv").open() as file:
        epochs = list(csv.DictReader(file))
    assert result["view"] == "ten_crop"
    assert result["test_error"] == float(epochs[-1]["ten_crop_error"])
    assert result["test_top5_error"] == 0  # of four classes
    assert [epoch["ten_crop_error"] for epoch in epochs[:-1]] == ["", "", ""]
    assert result["last_test_error"] == float(epochs[-1]["test_error"])


def wait_for(file: str, root: Path, process: subprocess.Popen[str]) -> None:
    while not list(root.glob(f"runs/*/seed0/{file}")):
        assert process.poll() is None
        time.sleep(0.02)


def children_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return list(map(int, listed.stdout.split()))


def killed_in_an_epoch(root: Path, *words: str) -> None:
    """Start the run and kill its processes when the first epoch is over."""
    process = start(*RUN, *words, f"output_root={root}")
    wait_for("metrics.csv", root, process)
    time.sleep(0.3)
    for child in children_of(process):
        os.kill(child, signal.SIGKILL)
    process.kill()
    process.communicate()


@pytest.mark.parametrize(("devices", "exact"), [(2, True), (1, False)])
@pytest.mark.nightly
def test_killed_with_workers_a_run_goes_on_within_the_epoch(
    tree: Path, undisturbed: Path, tmp_path: Path, devices: int, exact: bool
) -> None:
    killed_in_an_epoch(tmp_path, "devices=2", f"dataset.root={tree}")
    done = train(*RUN, f"devices={devices}", f"dataset.root={tree}", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "resuming at iteration" in done.stdout
    assert "resuming at iteration 0 " not in done.stdout
    ours, theirs = (metrics(folder) for folder in (folder_in(tmp_path), undisturbed))
    if exact:
        assert ours == theirs
        weights = [checkpoint.load(folder)[0]["training"]["model"] for folder in (folder_in(tmp_path), undisturbed)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    else:  # other sums, the same images
        assert [row["iteration"] for row in ours] == [row["iteration"] for row in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert float(mine["train_loss"]) == pytest.approx(float(other["train_loss"]), rel=0.02)


def test_a_signal_to_all_processes_saves_and_leaves_no_worker(tree: Path, tmp_path: Path) -> None:
    """As a scheduler sends it; a worker that ended by it would end the run with an error."""
    process = start(*RUN, f"dataset.root={tree}", f"output_root={tmp_path}")
    wait_for("checkpoint.pt", tmp_path, process)
    workers = children_of(process)
    assert workers
    for one in (*workers, process.pid):
        os.kill(one, signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    done = train(*RUN, f"dataset.root={tree}", f"output_root={tmp_path}")
    assert "resuming at iteration" in done.stdout, done.stderr


@pytest.mark.nightly
def test_resnet18_memorises_photographs(tmp_path: Path) -> None:
    """1,600 JPEGs of four sizes, half of them grey, CMYK or with EXIF tags; all are read as Pillow reads them."""
    tree = photograph_tree(tmp_path / "tree", classes=4, train=400, val=2, largest=4, mixed=True)
    images = list_images(tree / "train")
    for number in range(len(images)):
        with Image.open(images.location(number)) as file:
            assert np.array_equal(images.decoded(number).permute(1, 2, 0), file.convert("RGB"))
    words = ["model.widths=[16,32,64,128]", "dataset.classes=4", "dataset.crop=none", "dataset.flip=false"]
    words += ["dataset.lighting=0", "dataset.normalization=channel", "dataset.workers=2", "batch_size=40", "epochs=16"]
    done = train(*NET, *words, "schedule=cosine", f"dataset.root={tree}", f"output_root={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder_in(tmp_path / "out") / "result.json").read_text())["train_error"] < 2
