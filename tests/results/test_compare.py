"""Two runs, and two sweeps, side by side."""

import re
import shutil
from pathlib import Path
from statistics import fmean, median

import pytest

from deepnets.results.compare import compare
from tests.trained import Trained, pretend


def lines_of(text: str) -> list[list[str]]:
    """The cells of what was printed as a table."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_two_runs_of_a_row_differ_in_their_seed(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (trained.path / "none" / f"seed{seed}" for seed in (0, 1))
    assert compare(first, second, tmp_path, False) == 0
    printed = lines_of(capsys.readouterr().out)
    errors = trained.errors("none")
    start = printed.index(["setting", "A", "B", "rows"])
    assert printed[start + 1 : start + 3] == [["seed", "0", "1", "all"], [""]]
    difference = f"{errors[0] - errors[1]:+.2f}".replace("-", "\N{MINUS SIGN}")
    row = next(line for line in printed if line[0] == "none")
    assert row[1:6] == ["1", f"{errors[0]:.2f}", "1", f"{errors[1]:.2f}", difference]
    assert ["1 pair not tested: fewer than 3 seeds."] in printed
    assert {file.name for file in tmp_path.iterdir()} == {"compare.html", "compare.png", "compare.svg"}


def test_two_rows(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(trained.path / "identity", trained.path / "none", tmp_path, True)
    printed = lines_of(capsys.readouterr().out)
    shortcuts = ("deepnets.models.shortcuts.Identity", "deepnets.models.shortcuts.Scaled")
    assert ["model.shortcut._target_", *shortcuts, "all"] in printed
    test = next(line for line in printed if line[:2] == ["identity, A", "4, 3"])
    ours, theirs = trained.errors("identity"), trained.errors("none")
    assert float(test[2].replace("\N{MINUS SIGN}", "-")) == pytest.approx(fmean(ours) - fmean(theirs), abs=0.005)
    assert f"{median(ours):.2f}" in next(line for line in printed if line[0] == "identity | none")


def test_rows_of_no_common_name_are_not_called_alike(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "shortcuts_on_digits"
    for row in ("x", "y"):
        shutil.copytree(trained.path / "none", other / row)
    compare(trained.path, other, tmp_path / "report", False)
    text = capsys.readouterr().out
    assert "No row is in both: nothing to compare." in text
    assert "No setting differs." not in text
    assert "only in B: x, y" in text


def test_protocols_are_never_averaged(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a" / "shortcuts_on_digits", tmp_path / "b" / "shortcuts_on_digits"
    for table in (first, second):
        shutil.copytree(trained.path / "none", table / "none")
    for seed in (1, 2):
        pretend(second / "none" / f"seed{seed}", "batch_size: 128", "batch_size: 64")
    a, b = f"{median(trained.errors('none')):.2f}", [f"{error:.2f}" for error in trained.errors("none")]
    late = f"{median(trained.errors('none')[1:]):.2f}"
    compare(first, second, tmp_path / "one", False)
    lines = lines_of(capsys.readouterr().out)
    results = {line[0]: line[1:5] for line in lines if line[0].startswith("none (") and len(line) > 5}
    assert results == {"none (batch_size=128)": ["3", a, "1", b[0]], "none (batch_size=64)": ["3", a, "2", late]}
    compare(second, second, tmp_path / "two", False)
    lines = lines_of(capsys.readouterr().out)
    results = {line[0]: line[1:5] for line in lines if line[0].startswith("none (") and len(line) > 5}
    assert results == {"none (batch_size=128)": ["1", b[0], "1", b[0]], "none (batch_size=64)": ["2", late, "2", late]}


def test_two_sweeps_row_by_row(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "shortcuts_on_digits"
    for row in ("identity", "none"):
        shutil.copytree(trained.path / row, other / row)
    for folder in other.glob("none/seed*"):
        pretend(folder, "momentum: 0.9", "momentum: 0.5")
    compare(trained.path, other, tmp_path / "report", False)
    text = capsys.readouterr().out
    assert ["optimizer.momentum", "0.9", "0.5", "none"] in lines_of(text)
    assert "only in A: dropout, exclusive_gating_b6, projection, scaled_0.5_0.5, scaled_0.5_1" in text
    page = (tmp_path / "report" / "compare.html").read_text()
    assert page.count("<svg") == 1
    assert "optimizer.momentum" in page
