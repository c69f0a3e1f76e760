"""Results as pandas DataFrames."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deepnets.errors import UserError
from deepnets.results.frame import load_results
from tests.command import ROOT

RECORDS = ROOT / "outputs" / "records"


def test_a_row_per_run_with_figures_and_settings() -> None:
    results = load_results(RECORDS / "digits_shortcuts")
    assert len(results) == 20
    assert set(results["row"]) == {"identity", "none", "scaled_0.5_0.5", "exclusive_gating_b6"}
    assert sorted(results["seed"].unique()) == [0, 1, 2, 3, 4]
    best = results.groupby("row")["test_error"].median()
    assert best["identity"] < best["none"]
    assert set(results["model.depth"]) == {8}
    assert set(results["status"]) == {"finished"}
    assert results["commit"].notna().all()
    assert Path(results["folder"].iloc[0], "result.json").is_file()


def test_curves_are_those_of_the_chosen_runs() -> None:
    results = load_results(RECORDS / "digits_shortcuts")
    chosen = results[(results["row"] == "identity") & (results["seed"] == 1)]
    curves = chosen.curves
    assert list(curves["epoch"]) == list(range(1, 11))
    assert curves["test_error"].iloc[-1] == chosen["test_error"].iloc[0]
    assert len(results.curves) == 200


def test_claims_are_tested_and_a_projects_own_are_read(tmp_path: Path) -> None:
    shutil.copytree(RECORDS / "digits_shortcuts", tmp_path / "outputs" / "mine")
    assert load_results(tmp_path / "outputs").claims.empty
    sweep = {"axes": ["model/shortcut"], "claims": [{"claim": "identity is lower than none", "place": "README"}]}
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(yaml.safe_dump({"sweep": sweep}))
    (tmp_path / "project.yaml").write_text("options: conf")
    claims = load_results(tmp_path / "outputs", project=tmp_path / "project.yaml").claims
    assert list(claims["claim"]) == ["identity is lower than none"]
    assert claims["seeds"].iloc[0] == (5, 5)
    assert claims["difference"].iloc[0] < 0
    assert claims["low"].iloc[0] is None  # no look at runs that were seen before
    assert claims["seen_before"].iloc[0] == 10


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder in it"):
        load_results(tmp_path)


@pytest.mark.slow
def test_a_thousand_runs_take_less_than_two_seconds(tmp_path: Path) -> None:
    source = RECORDS / "digits_shortcuts" / "none" / "seed0"
    config = (source / "config.yaml").read_text()
    for seed in range(1000):
        folder = tmp_path / "many" / "none" / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config.replace("\nseed: 0\n", f"\nseed: {seed}\n"))
        for name in ("metrics.csv", "result.json"):
            (folder / name).symlink_to(source / name)
    program = """
import sys, time
from deepnets.results import load_results
load_results
started = time.process_time()
results = load_results(sys.argv[1])
seconds = time.process_time() - started
assert results["seed"].nunique() == 1000
assert seconds < 2, seconds
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True)
