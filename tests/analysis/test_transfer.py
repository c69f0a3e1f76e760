"""The best learning rate over depth: against parabolas whose minimum is known, and runs of a sweep."""

import csv
import json
import math
import shutil
from pathlib import Path

import pytest

from deepnets.analysis.commands.transfer import best_rate, trend_of
from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.analyzing import analyze
from tests.command import row

GRID = [0.001, 0.004, 0.016, 0.064, 0.256]


def losses(best: float) -> dict[float, float]:
    return {rate: 1 + math.log2(rate / best) ** 2 for rate in GRID}


@pytest.mark.parametrize("best", [0.004, 0.01, 0.06])
def test_the_best_rate_is_found_between_those_of_the_grid(best: float) -> None:
    found, at_edge = best_rate(losses(best))
    assert found == pytest.approx(best)
    assert not at_edge


def test_an_end_of_the_grid_and_diverged_runs() -> None:
    assert best_rate(losses(1.0)) == (0.256, True)
    assert best_rate(dict.fromkeys(GRID, math.inf))[1]
    assert best_rate({**losses(0.016), 0.064: math.inf}) == (0.016, False)


@pytest.mark.parametrize("power", [0.0, -1.0])
def test_the_slope_is_the_power_of_depth(power: float) -> None:
    depths = [8, 8, 20, 20, 56, 56]
    exact = trend_of(depths, [losses(0.03 * (depth / 8) ** power) for depth in depths])
    assert exact.slope == pytest.approx(power, abs=1e-6)
    spread = trend_of(
        depths, [losses(0.03 * (depth / 8) ** power * (1.1, 0.9)[i % 2]) for i, depth in enumerate(depths)]
    )
    low, high = spread.interval
    assert low < power < high
    assert 0.05 < high - low < 1


@pytest.mark.slow
def test_equal_best_rates_have_a_slope_and_no_interval() -> None:
    trend = trend_of([8, 8, 16, 16], [{0.1: 2.0, 0.2: 1.0, 0.4: math.inf}] * 4)
    assert trend.slope == 0
    assert all(map(math.isnan, trend.interval))


def test_the_command_reads_a_sweeps_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for depth in (8, 14, 20):
        for rate in (0.0, 0.1):
            folder = RunFolder(tmp_path / "table" / f"identity,{depth},{rate or 0.001}" / "seed0")
            words = ["sweep=depth_transfer", f"model.depth={depth}", f"optimizer.lr={rate or 0.001}"]
            small = [
                "batch_size=32",
                "dataset=synthetic",
                "dataset.reduce=2",
                "dataset.source.train=64",
                "dataset.source.test=10",
            ]
            folder.freeze(row(tmp_path, *words, *small, "epochs=1", "device=cpu").config, Origin())
            run(folder)
    assert analyze("transfer", tmp_path / "table", "--output", tmp_path / "results") == 0
    with (tmp_path / "results" / "transfer_rates.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["net"], line["depth"]) for line in lines] == [
        ("identity", "8"),
        ("identity", "14"),
        ("identity", "20"),
    ]
    (finding,) = json.loads((tmp_path / "results" / "transfer.json").read_text())["findings"]
    assert finding["at_edge"] == 3
    printed = capsys.readouterr().out
    assert "3 of 3 best rates are at an end of the grid" in printed
    assert "is the same rate of the grid at every depth, which gives no interval" in printed
    shutil.rmtree(tmp_path / "table" / "identity,14,0.1")
    shutil.rmtree(tmp_path / "table" / "identity,14,0.001")
    assert analyze("transfer", tmp_path / "table", "--output", tmp_path / "results") == 0
    told = "the best learning rate has no slope yet, which takes 3 best rates, at two depths or more; 2 of 2"
    assert told in capsys.readouterr().out
    shutil.copytree(tmp_path / "table", tmp_path / "table+epochs=4")
    with pytest.raises(UserError, match="another of these runs has this net, depth, seed and learning rate"):
        analyze("transfer", tmp_path / "table", tmp_path / "table+epochs=4", "--output", tmp_path / "results")


def test_runs_of_another_sweep_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "net" / "seed0")
    folder.freeze(row(tmp_path, "epochs=1").config, Origin())
    with pytest.raises(UserError, match=r"needs the axes model\.depth and optimizer\.lr"):
        analyze("transfer", tmp_path / "net", "--output", tmp_path / "results")
