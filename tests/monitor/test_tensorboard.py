"""What TensorBoard shows of a sweep, asked by the protocol of its own pages."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import row

pytestmark = pytest.mark.slow

SMALL = ["sweep=digits_shortcuts", "model.depth=8", "model.widths=[4,4,4]", "epochs=2", "batch_size=512", "device=cpu"]
ROWS = {
    "identity/seed0": ["model/shortcut=identity"],
    "identity/seed1": ["model/shortcut=identity", "seed=1"],
    "exclusive_gating_b6/seed0": ["model/shortcut=exclusive_gating_b6"],
    "none/seed0": ["model/shortcut=none", "optimizer.lr=1e30", "epochs=60"],  # diverges
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a table after they have been trained."""
    root = tmp_path_factory.mktemp("sweep")
    for name, changes in ROWS.items():
        composed, folder = row(root, *SMALL, *changes), RunFolder(root / name)
        folder.freeze(composed.config, Origin(choices=composed.choices, overrides=list(composed.overrides)))
        run(folder)
    again = RunFolder(root / "exclusive_gating_b6/seed0")
    (again.path / "result.json").unlink()  # as if it had been killed just before its end, and continued
    run(again)
    return root


class Server:
    """TensorBoard, asked for JSON."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **arguments: str) -> Any:
        with urlopen(f"{self.address}data/{path}?{urlencode(arguments)}") as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{self.address}data/{path}", json.dumps(body).encode(), headers)) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def server(sweep: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(sweep), "--port", "0", "--load_fast", "false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        address = next(match[0] for line in process.stderr if (match := re.search(r"http://\S+", line)))
        yield Server(address)
    finally:
        process.terminate()
        process.wait()


def test_runs_are_rows(server: Server) -> None:
    assert sorted(server.get("runs")) == sorted(ROWS)


def test_scalars_stand_in_groups(server: Server) -> None:
    tags = server.get("plugin/scalars/tags")
    curves = {f"{what}/{split}" for what in ("error", "loss") for split in ("train", "test")}
    usual = {*curves, "schedule/learning_rate", "speed/images_per_second"}
    usual |= {"gradients/first_unit", "gradients/last_unit", "loss/iteration"}
    gates = {"gates/lowest_unit", "gates/mean", "gates/highest_unit"}
    assert set(tags["identity/seed0"]) == usual - {"loss/iteration"}  # six iterations, and every tenth is noted
    assert set(tags["exclusive_gating_b6/seed0"]) == (usual | gates) - {"loss/iteration"}


def test_pictures_are_there_for_what_has_units_gates_and_filters(server: Server, sweep: Path) -> None:
    tags = server.get("plugin/images/tags")
    pictures = {"gradients/by_unit", "weights/first_layer"}
    assert set(tags["identity/seed0"]) == pictures
    assert set(tags["exclusive_gating_b6/seed0"]) == {*pictures, "gates/by_unit"}
    assert "none/seed0" not in tags  # it diverged within its first epochs
    shown = server.get("plugin/images/images", run="exclusive_gating_b6/seed0", tag="gates/by_unit", sample="0")
    assert [picture["step"] for picture in shown] == [6]
    observed = checkpoint.load(sweep / "exclusive_gating_b6/seed0")[0]["observed"]
    assert [entry["epoch"] for entry in observed] == [1, 2]


def test_train_and_test_are_overlaid(server: Server) -> None:
    charts = {
        chart["title"]: chart["multiline"]["tag"]
        for category in server.get("plugin/custom_scalars/layout")["category"]
        for chart in category["chart"]
    }
    assert charts["error (%)"] == ["error/train", "error/validation", "error/test"]
    for tags in charts.values():
        assert any(
            server.get("plugin/custom_scalars/scalars", run="exclusive_gating_b6/seed0", tag=tag)["tag_to_events"]
            for tag in tags
        )


def test_one_table_has_the_choices_as_columns_and_the_last_errors_and_losses_as_metrics(
    server: Server, sweep: Path
) -> None:
    columns = server.post("plugin/hparams/experiment", {"experimentName": ""})
    assert [(info["name"], info["type"]) for info in columns["hparamInfos"]] == [
        ("model/shortcut", "DATA_TYPE_STRING"),
        ("seed", "DATA_TYPE_FLOAT64"),
    ]
    tags = [info["name"]["tag"] for info in columns["metricInfos"]]
    assert tags == ["error/test", "error/train", "loss/test", "loss/train"]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    body = {"experimentName": "", "allowedStatuses": statuses, "colParams": [], "startIndex": 0, "sliceSize": 100}
    groups = server.post("plugin/hparams/session_groups", body)["sessionGroups"]
    sessions = {session["name"]: (group["hparams"], session) for group in groups for session in group["sessions"]}
    assert sessions.keys() == ROWS.keys()
    for name, (choices, session) in sessions.items():
        shortcut, seed = name.split("/seed")
        assert choices == {"model/shortcut": shortcut, "seed": float(seed)}
        result = RunFolder(sweep / name).result
        assert session["status"] == {"finished": "STATUS_SUCCESS", "diverged": "STATUS_FAILURE"}[result.status]
        metrics = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
        assert result.status == "diverged" or metrics["error/test"] == pytest.approx(result.last_test_error)


def test_the_selected_error_ends_as_the_result(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    selected = ["dataset.validation=300", "selection=best_validation", "epochs=5", "optimizer.lr=0.5"]
    folder.freeze(row(tmp_path, *SMALL, *selected).config, Origin())
    result = run(folder)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("error/selected")[-1].value == pytest.approx(result.test_error)
    assert len(events.Scalars("error/validation")) == 5
