"""The committed records, and outputs/records/README.md, which is written from them."""

import shutil
from pathlib import Path

import pytest

from deepnets.config.identity import identity_hash
from deepnets.errors import UserError
from deepnets.results.read import read_runs
from deepnets.results.records import records_pages, write_records
from deepnets.results.report import report
from deepnets.results.sheet import MINUS
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.weights import FILE, read_weights
from tests.command import ROOT, metrics
from tests.quoted import quoted

RECORDS = ROOT / "outputs" / "records"
RUNS = run_folders(RECORDS)
TABLE_1, PLAIN = "he2016_table1+scale=deep", "he2015_fig6+scale=deep"
WITH_WEIGHTS = {  # what analyses and claims use, one seed of each row; 10 MB at most together
    *(f"{TABLE_1}/{row}/seed0" for row in ("identity", "none", "scaled_0.5_0.5")),
    *(f"{TABLE_1}/exclusive_gating_{bias}/seed0" for bias in ("b0", "b6")),
    *(f"{PLAIN}/{row}/seed0" for row in ("plain20", "plain56")),
    "he2015_table6+precision=bf16/resnet20/seed1",
    "srivastava2015_table1+precision=bf16/highway_mnist_w16/seed1",
}
PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", "claims.md"])
def test_the_pages_are_what_the_records_say(page: str) -> None:
    assert (RECORDS / page).read_text() == records_pages(RECORDS)[page], (
        "run python scripts/report.py outputs/records --records"
    )


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder))
def test_a_record_is_of_a_run_that_has_ended_and_can_be_read(folder: RunFolder) -> None:
    assert folder.is_complete
    config, (run,) = folder.config, read_runs([folder.path])
    assert (config.output_root, config.dataset["root"]) == ("outputs", "data")
    assert run.broken == []
    assert folder.result.identity == identity_hash(config)
    errors = [epoch["test_error"] for epoch in run.history] or [None]  # none of a run that diverges in its first epoch
    assert errors[-1] == folder.result.get("last_test_error")


def test_the_weights_on_record_are_those_listed() -> None:
    files = list(RECORDS.glob(f"**/{FILE}"))
    assert {str(file.parent.relative_to(RECORDS)) for file in files} == WITH_WEIGHTS
    assert sum(file.stat().st_size for file in files) <= 10e6


@pytest.mark.parametrize("record", sorted(WITH_WEIGHTS))
def test_weights_on_record_are_of_their_run(record: str) -> None:
    model = read_weights(RECORDS / record).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == RunFolder(RECORDS / record).result.parameters


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_net_in_two_tables_was_trained_to_the_same_numbers(seed: int) -> None:
    one, other = (
        f"he2016_{place}/seed{seed}" for place in ("table1+scale=mini/identity", "table2+scale=mini/basic,original")
    )
    assert metrics(RECORDS / one) == metrics(RECORDS / other)


@pytest.mark.parametrize("file", PROSE, ids=lambda file: file.name)
def test_numbers_quoted_in_prose_are_those_on_record(file: Path) -> None:
    numbers = quoted(file.read_text(), RECORDS)
    assert numbers or file.name != "README.md"
    for shown, on_record in numbers:
        assert shown == on_record


def test_a_quoted_number_is_compared_with_the_record_that_its_mark_names() -> None:
    mark = '<!-- cell("resnet20", "published", "he2015_table6") -->'
    assert quoted(f"8.75{mark} % and **9.00**, or 8.57{mark}", RECORDS) == [("8.75", "8.75"), ("8.57", "8.75")]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """One table of two rows, without a word about it."""
    for row in ("identity", "none"):
        shutil.copytree(RECORDS / "digits_shortcuts" / row, tmp_path / "digits_shortcuts" / row)
    return tmp_path


def test_a_table_without_a_word_about_it_has_its_numbers(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_records(records) == 0
    assert "README.md" in capsys.readouterr().out
    text = (records / "README.md").read_text()
    assert text.startswith("## digits_shortcuts\n\n* Protocol: sgd (lr 0.1,")
    assert "* Runs: 10, seeds 0, 1, 2, 3, 4" in text
    assert "| identity | 1.11 | 5 |" in text


def test_runs_with_precision_typed_are_in_the_section_of_their_sweep(records: Path) -> None:
    beside = records / "digits_shortcuts+precision=bf16"
    (beside / "identity").mkdir(parents=True)
    (records / "digits_shortcuts" / "identity" / "seed1").rename(beside / "identity" / "seed1")
    text = records_pages(records)["README.md"]
    assert text.count("\n* Runs: ") == 1
    assert "* Runs: 10, seeds 0, 1, 2, 3, 4, " in text
    (beside / "about.md").write_text("## Trained anew\n\n{{ table }}\n")
    assert records_pages(records)["README.md"].count("\n* Runs: ") == 2


def test_what_a_person_writes_takes_its_numbers_from_the_files(records: Path) -> None:
    about = records / "digits_shortcuts" / "about.md"
    (records / "about.md").write_text("# All\n")
    (records / "digits_shortcuts" / "x.csv").write_text("row,error\na,1\nb,2\nb,4\nb,\n")
    about.write_text(
        'Best {{ cell("none", "best") }}, seed 1 {{ result("none", "test_error", 1)|number(1) }}: '
        '{{ column("x.csv", "error", row="b")|mean|number(3) }} {{ -1.5|number }}\n\n{{ table }}\n'
    )
    text = records_pages(records)["README.md"]
    first = RunFolder(records / "digits_shortcuts" / "none" / "seed1").result.test_error
    assert text.startswith(f"# All\n\nBest 1.39, seed 1 {first:.1f}: 3.000 {MINUS}1.50\n\n* Protocol")
    about.write_text('{{ cell("nothing", "best") }}')
    with pytest.raises(UserError, match=r"digits_shortcuts/about\.md: KeyError: 'nothing'"):
        records_pages(records)
    about.write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(UserError, match="unsafe"):
        records_pages(records)


def test_a_report_of_records_has_a_column_for_each_arithmetic(tmp_path: Path) -> None:
    """Read from the folder beside, which `precision=bf16` typed has named."""
    for name in (TABLE_1, TABLE_1.replace("+", "+precision=bf16+")):
        shutil.copytree(RECORDS / name / "identity", tmp_path / name / "identity")
    report([tmp_path / TABLE_1], tmp_path / "report", {"csv": tmp_path / "table.csv"}, False)
    table = (tmp_path / "table.csv").read_text()
    assert "scale=deep float32" in table
    assert "scale=deep bfloat16" in table


def test_a_folder_without_records_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no records"):
            records_pages(folder)
