"""What is on disk as runs."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from deepnets.config.identity import flat
from deepnets.errors import UserError
from deepnets.results.columns import columns_of, frame_of, warnings_of
from deepnets.results.read import read_runs
from deepnets.results.report import report
from deepnets.runs.status import show
from tests.trained import SEEDS, Trained


def test_every_run_is_read_once_with_its_state(trained: Trained) -> None:
    runs = read_runs([trained.path, trained.path / "none", trained.path / "none" / "seed0"])
    states = {}
    for run in runs:
        states.setdefault(run.row, []).append((run.seed, run.state.name))
    assert states == {
        **{row: [(seed, "finished") for seed in range(seeds)] for row, seeds in SEEDS.items()},
        "projection": [(seed, "diverged") for seed in range(3)],
        "dropout": [(0, "failed")],
        "exclusive_gating_b6": [(0, "dead")],
        "scaled_0.5_1": [(0, "waiting")],
    }


def test_a_configuration_is_read_as_yaml_reads_it(trained: Trained) -> None:
    for run in read_runs([trained.path]):
        config = yaml.safe_load((run.folder.path / "config.yaml").read_text())
        assert run.config == config
        assert run.settings["model.widths"] == [4, 4, 4]
        assert run.settings.keys() < flat(config).keys()
        assert not {"seed", "device", "output_root", "dataset.root", "launcher._target_"} & run.settings.keys()


def test_the_history_is_metrics_csv(trained: Trained) -> None:
    (run,) = read_runs([trained.path / "identity" / "seed1"])
    assert [epoch["epoch"] for epoch in run.history] == [1, 2]
    assert run.history[-1]["test_error"] == run.error == trained.errors("identity")[1]


def test_one_broken_file_does_not_hide_the_other_rows(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path / "none", tmp_path / "table" / "none")
    for seed, text in enumerate(("model: [", "", "a word")):
        shutil.copytree(path / "seed0", tmp_path / "table" / "broken" / f"seed{seed}")
        (tmp_path / "table" / "broken" / f"seed{seed}" / "config.yaml").write_text(text)
    shutil.copytree(path / "seed0", tmp_path / "table" / "halved" / "seed0")
    (tmp_path / "table" / "halved" / "seed0" / "result.json").write_text('{"status": "fini')
    runs = read_runs([tmp_path])
    states = [(run.row, run.state.name) for run in runs]
    assert states == [("broken", "failed")] * 3 + [("halved", "failed")] + [("none", "finished")] * 3
    assert all(run.state.reason.startswith("cannot be read: ") for run in runs[:4])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"status": "finished", "test_err', "Unterminated string"),
        ('{"test_error": 5.0}', "status: Field required"),
        ("[1, 2]", "a list instead of an object"),
        ('{"status": "finished", "test_error": "low"}', "test_error: Input should be a valid number"),
    ],
)
def test_a_broken_result_is_a_failure_that_names_its_file(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    table = tmp_path / "table"
    for seed in (0, 1):
        shutil.copytree(trained.path / "none" / f"seed{seed}", table / "none" / f"seed{seed}")
    file = table / "none" / "seed1" / "result.json"
    file.write_text(text)
    good, broken = read_runs([table])
    assert good.error == trained.errors("none")[0]
    assert (broken.error, broken.state.name, broken.seed, len(broken.history)) == (None, "failed", 1, 2)
    assert f"result.json: {reason}" in broken.state.reason
    (column,) = columns_of(frame_of([good, broken]))
    (warning,) = [warning for warning in warnings_of(column) if warning.startswith("cannot be read")]
    assert warning.startswith(f"cannot be read: {file}: {reason}")
    assert report([table], tmp_path, {}, False) == 0
    assert show([table], False) == 0
    assert "2 runs:" in capsys.readouterr().out


def test_the_good_epochs_of_a_broken_history_are_kept(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path / "none" / "seed0", tmp_path / "table" / "none" / "seed0")
    header, *epochs = (path / "metrics.csv").read_text().splitlines()
    third = epochs[1].replace("2,", "3,", 1)
    wrong = ",".join("x.5" for _ in header.split(","))
    (path / "metrics.csv").write_text("\n".join([header, epochs[0], wrong, wrong, third + ",7", third, "4,"]) + "\n")
    (run,) = read_runs([path])
    assert [epoch["epoch"] for epoch in run.history] == [1, 3, 4]
    first, more = run.broken
    assert first.startswith(f"{path}/metrics.csv, epoch 2: could not convert string to float")
    assert more.endswith("metrics.csv: 2 more epochs")
    assert report([path], tmp_path / "report", {}, False) == 0
    (path / "metrics.csv").write_bytes(b"\xff\x00,epoch\n1,2\n")
    assert [run.broken[0].split(": ")[0] for run in read_runs([path])] == [f"{path}/metrics.csv"]


def test_a_broken_origin_leaves_the_result(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path / "none" / "seed0", tmp_path / "table" / "none" / "seed0")
    (path / "origin.json").write_text(json.dumps(["a"]))
    (run,) = read_runs([path])
    assert (run.error, run.origin) == (trained.errors("none")[0], {})
    assert run.broken == [f"{path}/origin.json: a list instead of an object"]


@pytest.mark.parametrize(("name", "message"), [("absent", "no such folder"), ("empty", "no run folder in it")])
def test_a_folder_without_runs_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        read_runs([tmp_path / name])
