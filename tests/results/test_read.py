"""What is on disk as runs."""

import shutil
from pathlib import Path

import pytest
import yaml

from deepnets.errors import UserError
from deepnets.folder import flat
from deepnets.results.read import read_runs
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


@pytest.mark.parametrize(("name", "message"), [("absent", "no such folder"), ("empty", "no run in it")])
def test_a_folder_without_runs_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        read_runs([tmp_path / name])
