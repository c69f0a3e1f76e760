"""`report.py --keep`: records of runs."""

import csv
import os
import shutil
from pathlib import Path

import pytest

from deepnets.errors import UserError
from deepnets.results.export import to_csv
from deepnets.results.keep import keep
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.runs.contents import Result
from deepnets.runs.folder import RunFolder
from tests.command import train
from tests.trained import Trained

NUMBERS = ("n", "median", "low", "high", "mean", "std", "best", "difference", "verdict", "errors")


def numbers(folder: Path) -> dict[str, list[str]]:
    lines = csv.DictReader(to_csv(tables_of(read_runs([folder]))).splitlines())
    return {line["row"]: [line[name] for name in NUMBERS] for line in lines if int(line["n"])}


def test_records_say_what_the_runs_say(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keep([trained.path], tmp_path) == 0
    assert "12 runs in" in capsys.readouterr().out
    assert numbers(tmp_path) == numbers(trained.path)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "config.yaml",
        "metrics.csv",
        "result.json",
        "shortcuts_on_digits.yaml",  # what the paper prints, of somebody's own sweep
    }


@pytest.mark.slow
def test_a_record_names_no_folder_of_the_machine_and_counts_as_finished(tmp_path: Path) -> None:
    tiny = ["model.depth=8", "model.widths=[2,2,2]", "epochs=null", "iterations=3"]
    assert train(*tiny, f"output_root={tmp_path / 'there'}").returncode == 0
    assert keep([tmp_path / "there"], tmp_path / "records") == 0
    for file in (tmp_path / "records").glob("runs/*/seed0/*"):
        assert str(tmp_path) not in file.read_text()
    again = train(*tiny, f"output_root={tmp_path / 'records'}")
    assert "already finished" in again.stdout, again.stderr


def test_a_record_does_not_replace_that_of_another_run(trained: Trained, tmp_path: Path) -> None:
    keep([trained.path], tmp_path / "records")
    keep([trained.path], tmp_path / "records")  # of the same runs it may
    (kept,) = (tmp_path / "records").glob("*/identity/seed0/config.yaml")
    other = kept.read_text().replace("batch_size: 128", "batch_size: 64")
    kept.write_text(other)
    with pytest.raises(UserError, match=r"would replace that of another run, .*seed0"):
        keep([trained.path], tmp_path / "records")
    assert kept.read_text() == other
    with pytest.raises(
        UserError, match=r"seed0: contradicts itself: epoch 1 in metrics.csv ends at iteration 12, epoch 1 by "
    ):
        keep([kept.parent], tmp_path / "new")
    without = {name: value for name, value in RunFolder(kept.parent).result.items() if name != "identity"}
    (kept.parent / "config.yaml").write_text(other.replace("batch_size: 64", "batch_size: 128"))
    Result.model_validate(without).write(RunFolder(kept.parent).path)
    with pytest.raises(UserError, match=r"seed0: result\.json does not say of which run it is"):
        keep([kept.parent], tmp_path / "new")
    shutil.copytree(trained.path, tmp_path / "elsewhere" / trained.path.name)
    with pytest.raises(UserError, match="would replace that of another run"):
        keep([trained.path, tmp_path / "elsewhere"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.attack
@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "result.json"])
@pytest.mark.parametrize("target", ["/dev/urandom", "victim", "gone", "pipe"])
def test_only_files_of_the_run_itself_are_kept(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, target: str
) -> None:
    table, victim = tmp_path / "disk" / "table", tmp_path / "victim"
    shutil.copytree(trained.path / "identity", table / "identity")
    file = table / "identity" / "seed0" / name
    file.rename(victim)
    os.mkfifo(file) if target == "pipe" else file.symlink_to(tmp_path / target)
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")  # which a user may have
    assert keep([tmp_path / "outputs" / "table"], tmp_path / "records") == 1
    reason = "it is not a file" if target == "pipe" else "it is a link, which is not followed"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not kept")]
    assert f"seed0/{name}: {reason}" in line
    assert {path.name for path in (tmp_path / "records").glob("table/identity/*")} == {"seed1", "seed2", "seed3"}


@pytest.mark.attack
def test_a_run_without_its_metrics_is_named_and_not_kept(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "table" / "identity" / "seed0"
    shutil.copytree(trained.path / "identity" / "seed0", folder)
    (folder / "metrics.csv").unlink()
    assert keep([folder], tmp_path / "records") == 1
    assert "seed0/metrics.csv: is missing" in capsys.readouterr().out
    assert not (tmp_path / "records").exists()
