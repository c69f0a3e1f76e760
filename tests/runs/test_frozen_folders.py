"""Runs that were stopped half way long ago: see tests/frozen/about.md."""

import csv
import shutil
from pathlib import Path

import pytest

from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.run import load_run
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import metrics

FROZEN = Path(__file__).parents[1] / "frozen"
ALONE, OF_TWO = ["resnet", "highway", "stochastic_depth", "ghost"], ["sync"]


def copied(name: str, place: Path) -> RunFolder:
    return RunFolder(shutil.copytree(FROZEN / name, place / "runs" / name / "seed0"))


@pytest.mark.parametrize("name", [*ALONE, *(pytest.param(name, marks=pytest.mark.slow) for name in OF_TWO)])
def test_a_folder_ends_as_it_would_have_then(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    result = run(folder)
    assert (result.status, result.iterations) == ("finished", 72)
    with (FROZEN / name / "expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    found = metrics(folder.path)
    assert len(found) == len(expected) == 6
    # Where it was made they are equal to the last digit; other processors round otherwise.
    for seen, then in zip(found, expected, strict=True):
        for column in ("train_loss", "test_loss"):
            assert float(seen[column]) == pytest.approx(float(then[column]), rel=1e-3), (then["epoch"], column)


@pytest.mark.parametrize("name", [*ALONE, *OF_TWO])
def test_a_folder_loads_and_reports(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    model, config = load_run(folder.path)
    assert not model.training
    assert config.devices == (2 if name == "sync" else 1)
    (seen,) = read_runs([folder.path])
    assert seen.broken == []
    assert [epoch["test_loss"] for epoch in seen.history] == pytest.approx(
        [float(epoch["test_loss"]) for epoch in metrics(FROZEN / name)], rel=1e-12
    )
    (table,) = tables_of([seen])
    assert [column.label for column in table.columns] == ["full"]
