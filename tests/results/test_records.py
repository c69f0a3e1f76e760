"""Records: their page and `report.py --keep`."""

import csv
import os
import shutil
from pathlib import Path

import pytest

from deepnets.config.identity import identity_hash
from deepnets.errors import UserError
from deepnets.results.export import to_csv
from deepnets.results.read import read_runs
from deepnets.results.records import keep, records_pages, write_records
from deepnets.results.report import report
from deepnets.results.table import tables_of
from deepnets.results.verify import Verification, Verifications
from deepnets.runs.contents import Result
from deepnets.runs.folder import WEIGHTS, RunFolder, run_folders
from deepnets.runs.weights import read_weights
from deepnets.system.printing import MINUS
from tests.command import ROOT, metrics, train
from tests.quoted import quoted
from tests.trained import Trained

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


@pytest.mark.slow
def test_the_pages_are_what_the_records_say() -> None:
    for page, text in records_pages(RECORDS).items():
        assert (RECORDS / page).read_text() == text, f"{page}: run python scripts/report.py outputs/records --records"


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder))
def test_a_record_is_of_a_run_that_has_ended_and_can_be_read(folder: RunFolder) -> None:
    assert folder.is_complete
    config, (run,) = folder.config, read_runs([folder.path])
    assert (config.output_root, config.dataset["root"]) == ("outputs", "data")
    assert run.broken == []
    assert folder.result.identity == identity_hash(config)
    errors = [epoch["test_error"] for epoch in run.history] or [None]  # none of a run that diverges in its first epoch
    assert errors[-1] == folder.result.last_test_error


def test_the_weights_on_record_are_those_listed() -> None:
    files = list(RECORDS.glob(f"**/{WEIGHTS}"))
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
    for name in ("identity", "none"):
        shutil.copytree(RECORDS / "digits_shortcuts" / name, tmp_path / "digits_shortcuts" / name)
    return tmp_path


def test_the_page_says_how_the_protocol_of_a_row_differs(records: Path) -> None:
    for file in records.glob("digits_shortcuts/none/seed*/result.json"):
        file.write_text(file.read_text().replace(", batches of", ", gradient norm at most 5, batches of"))
    line = next(line for line in records_pages(records)["README.md"].splitlines() if line.startswith("* Protocol"))
    assert line.endswith("; none: gradient norm at most 5")


def test_a_table_without_a_word_about_it_has_its_numbers(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (records / "claims.md").write_text((RECORDS / "claims.md").read_text())  # of records that were there before
    assert write_records(records) == 0
    assert "README.md" in capsys.readouterr().out
    text = (records / "README.md").read_text()
    assert text.startswith("# Results on record\n\n* 95% interval: a bootstrap interval of the median")
    assert "\n\n## digits_shortcuts\n\n* Protocol: sgd (lr 0.1," in text
    assert not (records / "claims.md").exists()  # no claim is about them
    assert "* Runs: 10, seeds 0, 1, 2, 3, 4" in text
    assert "| identity | 1.94 | 5 |" in text


def test_runs_with_precision_typed_are_in_the_section_of_their_sweep(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = records / "digits_shortcuts+precision=bf16"
    (beside / "identity").mkdir(parents=True)
    (records / "digits_shortcuts" / "identity" / "seed1").rename(beside / "identity" / "seed1")
    text = records_pages(records)["README.md"]
    assert text.count("\n* Runs: ") == 1
    assert "* Runs: 10, seeds 0, 1, 2, 3, 4, " in text
    (beside / "about.md").write_text("## Trained anew\n\n{{ table }}\n")
    page = records_pages(records)["README.md"]
    assert page.count("\n* Runs: ") == 2
    monkeypatch.chdir(records.parent)
    assert records_pages(Path(records.name))["README.md"] == page


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
    assert text.startswith("# All\n\n* 95% interval")
    assert f"\n\nBest 1.11, seed 1 {first:.1f}: 3.000 {MINUS}1.50\n\n* Protocol" in text
    about.write_text('{{ cell("nothing", "best") }}')
    with pytest.raises(UserError, match=r"digits_shortcuts/about\.md: KeyError: 'nothing'"):
        records_pages(records)
    about.write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(UserError, match="unsafe"):
        records_pages(records)


@pytest.mark.slow
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


def test_records_keep_notes_of_verifications_and_those_that_they_have(trained: Trained, tmp_path: Path) -> None:
    runs = shutil.copytree(trained.path, tmp_path / trained.path.name)
    facts = {"commit": None, "versions": {}, "device": "CPU", "result": "0" * 16, "compared": 1, "is_equal": True}
    first, second = (Verification(date=date, passed=date == "2026", **facts) for date in ("2026", "2027"))
    noted = RunFolder(runs / "identity" / "seed0").path
    Verifications(verifications=(first,)).write(noted)
    keep([runs], tmp_path / "records")
    (kept,) = (file.parent for file in (tmp_path / "records").rglob(Verifications.FILE))
    assert Verifications.read(kept).verifications == (first,)
    Verifications(verifications=(second,)).write(kept)
    keep([runs], tmp_path / "records")
    assert Verifications.read(kept).verifications == (second, first)
    (noted / Verifications.FILE).write_text("[")
    assert keep([runs], tmp_path / "records") == 1


def test_sweeps_whose_claims_are_not_counted_are_named(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep([trained.path], tmp_path / "records")
    (file,) = (tmp_path / "records").glob("*/shortcuts_on_digits.yaml")
    write_records(tmp_path / "records")
    assert "lacks the claims" not in capsys.readouterr().out
    file.write_text("sweep: {claims: [{claim: identity is lower than none, place: here}]}\n")
    write_records(tmp_path / "records")
    told = "claims.md lacks the claims of shortcuts_on_digits: --project FILE or --config-dir DIR adds"
    assert told in capsys.readouterr().out
    assert told in (tmp_path / "records" / "claims.md").read_text()
    write_records(tmp_path / "records", file.parent)
    assert "lacks the claims" not in capsys.readouterr().out


def test_a_record_does_not_replace_that_of_another_run(trained: Trained, tmp_path: Path) -> None:
    keep([trained.path], tmp_path / "records")
    keep([trained.path], tmp_path / "records")  # of the same runs it may
    (kept,) = (tmp_path / "records").glob("*/identity/seed0/config.yaml")
    other = kept.read_text().replace("batch_size: 128", "batch_size: 64")
    kept.write_text(other)
    with pytest.raises(UserError, match=r"would replace the record of another run, .*seed0"):
        keep([trained.path], tmp_path / "records")
    assert kept.read_text() == other
    with pytest.raises(
        UserError, match=r"seed0: contradicts itself: epoch 1 in metrics.csv ends at iteration 12, epoch 1 by "
    ):
        keep([kept.parent], tmp_path / "new")
    without = RunFolder(kept.parent).result.model_dump(exclude={"identity"}, exclude_unset=True)
    (kept.parent / "config.yaml").write_text(other.replace("batch_size: 64", "batch_size: 128"))
    Result.model_validate(without).write(kept.parent)
    with pytest.raises(UserError, match=r"seed0: result\.json does not say which run it belongs to"):
        keep([kept.parent], tmp_path / "new")
    shutil.copytree(trained.path, tmp_path / "elsewhere" / trained.path.name)
    with pytest.raises(UserError, match="would replace the record of another run"):
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


@pytest.mark.attack
@pytest.mark.parametrize("content", [b"\xff\xfe", b"a" * 1_000_001])
def test_a_sweep_file_that_cannot_be_kept_is_named(trained: Trained, tmp_path: Path, content: bytes) -> None:
    table = tmp_path / "table"
    shutil.copytree(trained.path / "identity" / "seed0", table / "identity" / "seed0")
    (table / "table.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"table\.yaml: cannot be kept"):
        keep([table], tmp_path / "records")
