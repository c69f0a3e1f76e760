"""Published numbers are those of the sweep file when a report is made; the verdict on them, drawn by chance too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deepnets.config.project import CONF
from deepnets.config.sweep import check_file
from deepnets.errors import UserError
from deepnets.results.published import (
    AGREES,
    COMPATIBLE,
    DIFFERS,
    Printed,
    PublishedRow,
    printed_of,
    published_of,
    true_difference,
    verdict_of,
)
from deepnets.results.read import read_runs
from deepnets.results.table import result_sheets, tables_of
from tests.command import ROOT
from tests.trained import Trained


def test_a_corrected_number_shows_in_the_next_report(tmp_path: Path) -> None:
    runs = read_runs([ROOT / "outputs" / "records" / "he2015_table6"])
    sweep = (CONF / "sweep" / "he2015_table6.yaml").read_text()
    for number in ("8.75", "7.50"):
        (tmp_path / "he2015_table6.yaml").write_text(sweep.replace("resnet20: 8.75", f"resnet20: {number}"))
        (table,) = tables_of(runs, tmp_path)
        (sheet,) = result_sheets(table)
        assert dict(zip(sheet.header, sheet.lines[0], strict=True))["published"] == number
        difference = table.cells["resnet20", 0].median - float(number)
        assert table.cells["resnet20", 0].difference == pytest.approx(difference)


def test_without_a_file_nothing_is_published(tmp_path: Path) -> None:
    assert published_of("t", tmp_path).rows == {}


def test_the_copy_of_a_sweeps_file_beside_its_runs_is_read(trained: Trained) -> None:
    (table,) = tables_of(read_runs([trained.path]))
    assert table.published.rows["scaled_0.5_0.5"].test_error == 10.0


def test_rows_are_named_as_folders_are(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sweep: {reported: {test_error: {'a/b': 1.5}, best: {'a/b': 1}}}")
    assert published_of("t", tmp_path).rows == {"a.b": PublishedRow(1.5, best=1)}


def test_a_sweep_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sweep: [")
    with pytest.raises(UserError, match=r"t\.yaml: cannot be read as YAML"):
        published_of("t", tmp_path)


@pytest.mark.parametrize("file", sorted((CONF / "sweep").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_sweep_file_is_read_as_it_is_composed(file: Path) -> None:
    published = published_of(file.stem)
    numbers = [row.test_error for row in published.rows.values()]
    assert all(error is None or error == "fail" or 0 < error < 100 for error in numbers)


OURS = (8.8, 9.0, 9.2)  # their standard deviation is 0.2


def test_three_seeds_tell_little_of_a_single_run_and_more_of_a_median() -> None:
    assert true_difference(OURS, Printed(9.0)) == pytest.approx((-0.99, 0.99), abs=0.005)
    assert true_difference(OURS, Printed(8.5)) == pytest.approx((-0.49, 1.49), abs=0.005)
    assert true_difference(OURS, Printed(9.0, "median", 5)) == pytest.approx((-0.68, 0.68), abs=0.005)
    assert true_difference(OURS, Printed(9.0, "mean", 5)) == pytest.approx((-0.63, 0.63), abs=0.005)
    assert true_difference(OURS[:2], Printed(9.0)) is None


@pytest.mark.parametrize("statistic", ["mean", "median", "best"])
@pytest.mark.parametrize(("seeds", "runs"), [(3, 1), (3, 5), (5, 5), (10, 4)])
def test_the_interval_holds_the_true_difference_19_times_of_20(statistic: str, seeds: int, runs: int) -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(50, 1, (4000, seeds)), random.normal(48, 1, (4000, runs))
    numbers = {"mean": theirs.mean(1), "median": np.median(theirs, 1), "best": theirs.min(1)}[statistic]
    held = []
    for errors, number in zip(ours, numbers, strict=True):
        low, high = true_difference(tuple(errors), Printed(float(number), statistic, runs))
        held.append(low <= 2 <= high)
    assert 0.935 < np.mean(held) < (0.965 if statistic == "mean" else 0.975)  # of a median or best one: no less


def test_a_verdict_needs_a_margin_to_agree() -> None:
    row = PublishedRow(test_error=9.0, statistic="median of 5")
    assert verdict_of(OURS, row, is_fail=False) == COMPATIBLE
    assert verdict_of(OURS, replace(row, margin=0.6), is_fail=False) == COMPATIBLE
    assert verdict_of(OURS, replace(row, margin=0.7), is_fail=False) == AGREES
    assert verdict_of(OURS, replace(row, test_error=8.3, margin=9.0), is_fail=False) == DIFFERS


@pytest.mark.parametrize(
    ("sweep", "row", "printed"),
    [
        ("he2016_table1", "identity", Printed(6.61, "median", 5)),
        ("he2015_table6", "resnet20", Printed(8.75)),
        ("he2015_table6", "resnet110", Printed(6.61, "mean", 5)),
        ("srivastava2015_table1", "highway_mnist_w16", Printed(0.60, "mean", 5)),
        ("he2016_table1", "none", None),
    ],
)
def test_what_a_row_is_compared_with(sweep: str, row: str, printed: Printed | None) -> None:
    assert printed_of(published_of(sweep).rows[row]) == printed


@pytest.mark.parametrize(
    ("sweep", "accuracies"),
    [
        ("srivastava2015_table1", {"Maxout": 99.55, "DSN": 99.61}),
        ("srivastava2015_table2", {"Teacher": 90.18, "FitnetA": 89.01, "FitnetB": 91.61}),
        ("srivastava2015_table3", {"cifar10,Maxout": 90.62, "cifar10,dasNet": 90.78, "cifar10,NiN": 91.19}),
        ("srivastava2015_table3", {"cifar10,DSN": 92.03, "cifar10,All-CNN": 92.75, "cifar100,Maxout": 61.42}),
        ("srivastava2015_table3", {"cifar100,dasNet": 66.22, "cifar100,NiN": 64.32, "cifar100,DSN": 65.43}),
        ("srivastava2015_table3", {"cifar100,All-CNN": 66.29}),
    ],
)
def test_rows_of_other_papers_are_their_accuracies(sweep: str, accuracies: dict[str, float]) -> None:
    rows = published_of(sweep).rows
    assert {name: rows[name].test_error for name in accuracies} == pytest.approx(
        {name: 100 - accuracy for name, accuracy in accuracies.items()}, abs=1e-9
    )
    assert all(rows[name].is_literature for name in accuracies)


def test_what_the_report_cannot_use_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("sweep: {reported: {statistik: mean of 3, statistic: mean of three seeds}}")
    unknown, unclear = published_of("mine", tmp_path).problems
    assert "sweep.reported.statistik: no such key; reported has test_error," in unknown
    assert "sweep.reported.statistic is 'mean of three seeds', but must begin with single" in unclear
    with pytest.raises(UserError, match=r"mine\.yaml: sweep\.reported\.statistic is 'mean of three seeds'"):
        check_file(write(tmp_path, "mean of three seeds"))
    check_file(write(tmp_path, "mean of 5, a replication"))


def write(folder: Path, statistic: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(f"# @package _global_\nsweep: {{reported: {{statistic: '{statistic}'}}}}")
    return file
