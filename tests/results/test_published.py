"""Published numbers are those of the sweep file when a report is made."""

from pathlib import Path

import pytest
import yaml

from deepnets.config.places import CONF
from deepnets.errors import UserError
from deepnets.results.published import PublishedRow, published_of
from deepnets.results.read import read_runs
from deepnets.results.sheets import result_sheets
from deepnets.results.table import tables_of
from tests.command import ROOT
from tests.trained import Trained


def frozen(**numbers: object) -> dict[str, object]:
    return {"statistic": "single", "test_error": numbers}


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
        named = [warning for warning in table.warnings if "published" in warning]
        assert len(named) == (number == "7.50")
    assert named == [
        "published numbers are those of conf/sweep/he2015_table6.yaml: "
        "resnet20 (test_error) 7.5, frozen in 1 run as 8.75"
    ]


def test_a_number_that_the_file_no_longer_prints_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"sweep": {"axes": ["model"]}}))
    assert published_of("t", [frozen(a=1.0)], tmp_path).rows == {}


def test_without_a_file_the_first_frozen_number_counts_and_others_are_named(tmp_path: Path) -> None:
    published = published_of("t", [frozen(a=1.0, b="fail"), {}, frozen(a=2.0), frozen(a=2.0, c=3.0)], tmp_path)
    errors = {"a": 1.0, "b": "fail", "c": 3.0}
    assert published.rows == {row: PublishedRow(error) for row, error in errors.items()}
    assert published.statistic == "single"
    (warning,) = published.warnings
    assert warning.endswith("published numbers are those of the first run: a (test_error) 1.0, frozen in 2 runs as 2.0")


def test_runs_of_another_name_keep_what_they_froze(trained: Trained, tmp_path: Path) -> None:
    (table,) = tables_of(read_runs([trained.path]))
    assert table.published.rows["scaled_0.5_0.5"].test_error == 10.0
    assert table.published.warnings == ()


def test_rows_are_named_as_folders_are(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sweep: {reported: {test_error: {'a/b': 1.5}, best: {'a/b': 1}}}")
    assert published_of("t", [], tmp_path).rows == {"a.b": PublishedRow(1.5, best=1)}


def test_a_sweep_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sweep: [")
    with pytest.raises(UserError, match=r"t\.yaml: cannot be read as YAML"):
        published_of("t", [], tmp_path)


@pytest.mark.parametrize("file", sorted((CONF / "sweep").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_sweep_file_is_read_as_it_is_composed(file: Path) -> None:
    published = published_of(file.stem, [])
    numbers = [row.test_error for row in published.rows.values()]
    assert all(error is None or error == "fail" or 0 < error < 100 for error in numbers)
