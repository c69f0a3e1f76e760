"""The committed records, and the tables in outputs/records/README.md that are made from them."""

from pathlib import Path

import pytest

from deepnets.folder import RunFolder, run_folders
from deepnets.results.export import to_markdown
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from tests.command import ROOT

RECORDS = ROOT / "outputs" / "records"
TABLES = sorted(path for path in RECORDS.iterdir() if path.is_dir())
RUNS = run_folders(RECORDS)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_the_page_shows_what_report_makes_of_the_records(table: Path) -> None:
    assert to_markdown(tables_of(read_runs([table]))) in (RECORDS / "README.md").read_text()


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder))
def test_a_record_is_of_a_run_that_has_ended_and_can_be_read(folder: RunFolder) -> None:
    assert folder.is_complete
    config, (run,) = folder.config, read_runs([folder.path])
    assert (config.output_root, config.dataset["root"]) == ("outputs", "data")
    assert run.broken == []
    assert run.history[-1]["test_error"] == folder.result["last_test_error"]
