"""scripts/train.py from the outside: what it prints, writes and refuses."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.command import ENVIRONMENT, ROOT, TRAIN, metrics, train

GHOST = "model.batchnorm_images=32"
SMALL = ["model.depth=8", "model.widths=[4,8,16]", "epochs=2"]


@pytest.mark.nightly
def test_the_default_learns_digits(tmp_path: Path) -> None:
    done = train(f"output_root={tmp_path}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "digits_resnet,digits" / "seed0"
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["test_error"] < 3
    assert result["test_error"] == result["last_test_error"] == float(metrics(folder)[-1]["test_error"])
    assert result["best_test_error"] == min(float(row["test_error"]) for row in metrics(folder))
    assert len(metrics(folder)) == result["epochs"] == 164
    assert f"finished: test error {result['test_error']:.2f}%" in done.stdout
    assert "results      runs/digits_resnet,digits/seed0" in done.stdout
    assert "tensorboard --logdir runs" in done.stdout


@pytest.mark.slow
def test_a_finished_run_says_so_and_trains_nothing(tmp_path: Path) -> None:
    assert train(*SMALL, f"output_root={tmp_path}").returncode == 0
    (folder,) = tmp_path.glob("runs/*/seed0")
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    again = train(*SMALL, f"output_root={tmp_path}", "dataset.root=/nowhere")
    assert again.returncode == 0
    assert "already finished: test error" in again.stdout
    assert "was trained on the data in" in again.stdout
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    anew = train(*SMALL, f"output_root={tmp_path}", "overwrite=true")
    assert "epoch 1/2" in anew.stdout


def test_the_folder_records_the_run(tmp_path: Path) -> None:
    done = train(*SMALL, f"output_root={tmp_path}", "precision=fp32", "threads=1", "dataset.validation=200", GHOST)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*/seed0")
    config = OmegaConf.load(folder / "config.yaml")
    assert config.model.depth == 8
    assert config.precision == "fp32"
    protocol = (
        "protocol: sgd (lr 0.1, momentum 0.9, nesterov True, weight_decay 0.0001, decayed all), "
        "learning rate x 0.1 at iterations 9 and 14, batches of 128, normalised over 32 images, "
        "20 iterations (2 epochs), scale full, result by final epoch, float32"
    )
    assert protocol in done.stdout.splitlines()
    assert json.loads((folder / "result.json").read_text())["protocol"] == protocol
    origin = json.loads((folder / "origin.json").read_text())
    assert "model.depth=8" in origin["overrides"]
    result = json.loads((folder / "result.json").read_text())
    assert result["precision"] == "float32"
    assert result["threads"] == 1
    assert result["iterations"] == 2 * 10  # 1437 - 200 images in batches of 128
    assert set(result) >= {"identity", "commit", "versions", "device", "seconds", "images_per_second", "parameters"}
    assert set(metrics(folder)[0]) == {
        "epoch", "iteration", "learning_rate", "train_loss", "train_error",
        "validation_loss", "validation_error", "test_loss", "test_error",
    }  # fmt: skip
    assert list(folder.glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_selection_by_validation_reports_that_epoch(tmp_path: Path) -> None:
    selection = ["selection=best_validation", "dataset.validation=300", "epochs=5", "optimizer.lr=0.3"]
    done = train(*SMALL[:2], *selection, f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*/seed0")
    result, rows = json.loads((folder / "result.json").read_text()), metrics(folder)
    best = min(rows, key=lambda row: float(row["validation_error"]))
    assert result["selected_epoch"] == int(best["epoch"])
    assert result["test_error"] == float(best["test_error"])
    assert result["last_test_error"] == float(rows[-1]["test_error"])


@pytest.mark.slow
def test_a_budget_in_iterations_may_end_within_an_epoch(tmp_path: Path) -> None:
    done = train(*SMALL[:2], "epochs=null", "iterations=17", "batch_size=100", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*/seed0")
    assert [row["iteration"] for row in metrics(folder)] == ["15", "17"]


@pytest.mark.slow
def test_a_diverging_run_ends_as_diverged_and_the_grid_goes_on(tmp_path: Path) -> None:
    done = train("-m", *SMALL, "optimizer.lr=1e30,0.1", "precision=fp32", f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    results = {path.parts[-3]: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/seed0/result.json")}
    assert sorted(result["status"] for result in results.values()) == ["diverged", "finished"]
    (diverged,) = [result for result in results.values() if result["status"] == "diverged"]
    assert diverged["test_error"] is None
    assert "diverged" in done.stdout
    again = train("-m", *SMALL, "optimizer.lr=1e30,0.1", "precision=fp32", f"output_root={tmp_path}")
    assert "2 of 2 runs already finished" in again.stdout


@pytest.mark.slow
def test_a_failing_row_does_not_stop_the_others(tmp_path: Path) -> None:
    grid = ["-m", *SMALL, "seed=0,1", f"output_root={tmp_path}"]
    blocked = tmp_path / "runs" / "digits_resnet,digits,epochs=2,model.widths=4,8,16" / "seed0"
    (blocked / "checkpoint.pt.new").mkdir(parents=True)
    done = train(*grid)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stderr
    assert json.loads((blocked / "result.json").read_text())["status"] == "failed"
    assert "checkpoint.pt.new" in (blocked / "log.txt").read_text()
    assert json.loads((blocked.parent / "seed1" / "result.json").read_text())["status"] == "finished"
    (blocked / "checkpoint.pt.new").rmdir()
    again = train(*grid)
    assert again.returncode == 0
    assert "1 of 2 runs already finished" in again.stdout
    assert json.loads((blocked / "result.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_an_illegal_row_stops_the_grid_before_anything_is_written(tmp_path: Path) -> None:
    done = train("-m", "model.depth=8,9,14", f"output_root={tmp_path}")
    assert done.returncode == 1
    assert "1 of 3 runs cannot start" in done.stderr
    assert "8 and 14" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_file_is_a_grid_that_any_axis_narrows(tmp_path: Path) -> None:
    command = ["sweep=digits_shortcuts", "model/shortcut=identity,none", "seed=0", *SMALL, f"output_root={tmp_path}"]
    done = train(*command)
    assert done.returncode == 0, done.stderr
    (grid,) = tmp_path.iterdir()
    assert grid.name == "digits_shortcuts+epochs=2+model.widths=4,8,16"
    assert sorted(str(path.relative_to(grid)) for path in grid.glob("*/*")) == ["identity/seed0", "none/seed0"]
    assert f"tensorboard --logdir {grid}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["epoch=3"], "epoch: no such key; the nearest: epochs"),
        (["+epoch=3"], "unknown key 'epoch'"),
        (["+scale.bugdet=1"], "unknown key 'scale.bugdet'"),
        (["-m", "sweep=digits_shortcuts,srivastava2015_fig2_mnist"], "a command trains one sweep"),
        (["-m", "--cfg", "job"], "--cfg prints one run"),
        (["dataset=image_folder", "dataset.root=~/nowhere"], os.path.expanduser("~/nowhere")),
        (["epochs=abc"], "epochs=abc: must be an integer"),
        (["model=resnet21"], "resnet20"),
        (["model/shortcut=residual"], "--help lists all"),
        (["model.depth=21"], "the nearest are 20 and 26"),
        (["dataset=image_folder"], "dataset.root"),
        (["dataset=image_folder", "dataset.root=/nowhere"], "/nowhere"),
        (["batch_size=0"], "batch_size: got 0; must be at least 1"),
        (["model._target_=os.system"], "'os.system' is not one of the classes"),
        (["output_root=/dev/null/runs"], "cannot be written"),
    ],
)
def test_a_mistake_is_told_in_a_few_lines(tmp_path: Path, overrides: list[str], message: str) -> None:
    root = [] if overrides[0].startswith("output_root") else [f"output_root={tmp_path}"]
    done = train(*overrides, *root)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_other_settings_are_refused_and_another_commit_is_said(tmp_path: Path) -> None:
    command = [*SMALL, f"output_root={tmp_path}"]
    assert train(*command).returncode == 0
    (folder,) = tmp_path.glob("runs/*/seed0")
    (folder / "result.json").unlink()
    frozen = (folder / "config.yaml").read_text()
    config = OmegaConf.load(folder / "config.yaml")
    config.optimizer.lr = 0.2
    OmegaConf.save(config, folder / "config.yaml")
    done = train(*command)
    assert done.returncode == 1
    assert "optimizer.lr: 0.2 there, 0.1 here" in done.stderr
    (folder / "config.yaml").write_text(frozen)
    origin = json.loads((folder / "origin.json").read_text())
    (folder / "origin.json").write_text(json.dumps(origin | {"commit": "0123abc"}))
    assert "the run was set up at 0123abc" in train(*command).stdout


@pytest.mark.slow
def test_code_of_ones_own_runs_only_when_trusted_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def ramp(total: int):\n    return lambda iteration: iteration / total\n")
    (tmp_path / "out").mkdir()
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    command = [*TRAIN, *SMALL, "schedule=cosine", "schedule._target_=mine.ramp", f"output_root={tmp_path}/out"]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)

    assert "add --trust mine.ramp to the command" in call(*command).stderr
    done = call(*command, "--trust", "mine.ramp")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("out/runs/*/seed0")
    (folder / "result.json").unlink()
    again = [sys.executable, "-m", "deepnets.run", str(folder)]
    assert "'mine.ramp' is not one of the classes" in call(*again).stderr
    assert call(*again, "--trust=mine.ramp").returncode == 0
    verify = [sys.executable, "scripts/report.py", str(folder), "--verify", "."]
    assert "add --trust mine.ramp to the command" in call(*verify).stderr
    verified = call(*verify, "--trust", "mine.ramp")
    assert "equal bit by bit" in verified.stdout, verified.stderr


@pytest.mark.slow
def test_a_narrow_terminal_shows_epoch_time_left_speed_and_loss(tmp_path: Path) -> None:
    shown = in_terminal([*TRAIN, *SMALL[:2], "epochs=30", f"output_root={tmp_path}"], columns=60)
    for pattern in (r"epoch \d+/30", r"\d+:\d\d left", r"[\d,]+ images/s", r"loss \d\.\d+"):
        assert re.search(pattern, shown), pattern
    assert "finished: test error" in shown


def in_terminal(command: list[str], columns: int) -> str:
    """What the command shows on a terminal that wide."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment, cwd=ROOT)
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(parent, 65536)
        except OSError:  # Linux ends a terminal so
            break
    os.close(parent)
    assert process.wait() == 0, shown
    return shown.decode()


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    command = " ".join([*TRAIN, *SMALL[:1], "epochs=4", f"output_root={tmp_path}"])
    subprocess.run(f"{command} | head -1", shell=True, check=True, env=ENVIRONMENT, capture_output=True)
    (folder,) = tmp_path.glob("runs/*/seed0")
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"


def test_help_lists_every_option(tmp_path: Path) -> None:
    done = train("--help", cwd=tmp_path)
    assert done.returncode == 0
    for words in ("model: ", "resnet1202", "model/ordering: ", "dataset: ", "cifar100", "sweep: ", "he2016_table1"):
        assert words in done.stdout
    assert done.stdout.count("python scripts/train.py") == 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_traceback_is_there_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.command

    monkeypatch.setitem(tests.command.ENVIRONMENT, "HYDRA_FULL_ERROR", "1")
    done = train("batch_size=0", f"output_root={tmp_path}")
    assert "Traceback" in done.stderr
    assert os.environ.get("HYDRA_FULL_ERROR") != "1"
