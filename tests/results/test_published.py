"""Published numbers are those of the sweep file when a report is made."""

from pathlib import Path

import pytest

from deepnets.config.project import CONF
from deepnets.errors import UserError
from deepnets.results.published import PublishedRow, published_of
from deepnets.results.read import read_runs
from deepnets.results.sheets import result_sheets
from deepnets.results.table import tables_of
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
