"""Runs in MLflow and in Weights & Biases, where these are installed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from deepnets.errors import UserError
from deepnets.extra.trackers import KEY, TRACKERS, export
from tests.command import ENVIRONMENT, ROOT

RECORDS = ROOT / "outputs" / "records" / "digits_shortcuts"
PATIENCE = 120  # seconds until the server answers


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs that have ended, one with a figure of an analysis, and one that has not."""
    sweep = tmp_path / "digits_shortcuts+scale=mini"
    for row in ("identity", "none", "scaled_0.5_0.5"):
        shutil.copytree(RECORDS / row / "seed0", sweep / row / "seed0")
    (sweep / "none" / "seed0" / "analysis").mkdir()
    shutil.copy(RECORDS / "curves.png", sweep / "none" / "seed0" / "analysis" / "lesion.png")
    (sweep / "scaled_0.5_0.5" / "seed0" / "result.json").unlink()
    return sweep


def exported(runs: Path, kind: str, **variables: str) -> str:
    """What `report.py --export` prints, called in the folder above that of the runs."""
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), str(runs), "--export", kind]
    done = subprocess.run(command, cwd=runs.parent, env=ENVIRONMENT | variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def train_again(folder: Path) -> None:
    """As `overwrite=true` does: with other times."""
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"seconds": 3.21}))


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_library_that_is_not_installed_is_named(kind: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(UserError, match=rf"{kind} is not installed: pip install 'deepnets\[{kind}\]'"):
        export([runs], kind)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server with a database of SQLite."""
    pytest.importorskip("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = [f"--backend-store-uri=sqlite:///{tmp_path}/mlflow.db", f"--artifacts-destination={tmp_path}/artifacts"]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--host=127.0.0.1", f"--port={port}", "--workers=1"]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    try:
        while True:
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            try:
                urlopen(f"{address}/health", timeout=5).close()
                break
            except (URLError, OSError):
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_mlflow_has_each_run_once(runs: Path, server: str) -> None:
    client = pytest.importorskip("mlflow").MlflowClient(server)

    def found() -> list:
        experiment = client.get_experiment_by_name(runs.name)
        return sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)

    said = exported(runs, "mlflow", MLFLOW_TRACKING_URI=server)
    assert said.split("; ") == [f"mlflow       2 runs in {server}", "0 there before, 1 not ended\n"]
    identity, none = found()
    assert (identity.info.run_name, identity.info.status) == ("identity/seed0", "FINISHED")
    assert identity.data.params["model.depth"] == "8"
    assert identity.data.tags["row"] == "identity"
    last = json.loads((runs / "identity" / "seed0" / "result.json").read_text())["last_test_error"]
    assert identity.data.metrics["last_test_error"] == last
    curve = client.get_metric_history(identity.info.run_id, "curves/test_error")
    assert [point.step for point in curve] == list(range(1, 11))
    assert curve[-1].value == last
    figures = [file.path for file in client.list_artifacts(none.info.run_id, "figures")]
    assert figures == ["figures/curves.png", "figures/lesion.png"]

    assert "0 runs in" in exported(runs, "mlflow", MLFLOW_TRACKING_URI=server)
    client.update_run(none.info.run_id, "RUNNING")  # as an export that was killed leaves it
    train_again(runs / "identity" / "seed0")
    assert "2 runs in" in exported(runs, "mlflow", MLFLOW_TRACKING_URI=server)
    assert [run.info.run_name for run in found()] == ["identity/seed0", "identity/seed0", "none/seed0"]
    assert none.info.run_id not in [run.info.run_id for run in found()]


@pytest.mark.slow
def test_wandb_has_each_run_once_without_a_network(runs: Path) -> None:
    pytest.importorskip("wandb")
    assert "2 runs in" in exported(runs, "wandb", WANDB_MODE="offline")
    folders = {file.parent for file in runs.parent.glob(f"wandb/offline-run-*/{KEY}")}
    assert len(folders) == 2
    for folder in folders:
        (file,) = folder.glob("run-*.wandb")
        for said in (b"model.depth", b"curves/test_error", b"figures/curves", runs.name.encode(), b"/seed0"):
            assert said in file.read_bytes()
    assert len(list(runs.parent.glob("wandb/offline-run-*/files/media/images/figures/lesion*.png"))) == 1
    train_again(runs / "identity" / "seed0")
    said = exported(runs, "wandb", WANDB_MODE="offline")
    assert said.startswith("wandb        1 run in")
    assert "1 there before" in said
