"""The report of sweeps; two runs, and two sweeps, side by side."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from statistics import fmean, median

import pytest

from deepnets.commands.report import main
from deepnets.errors import UserError
from deepnets.results.read import read_runs
from deepnets.results.report import _own_flags, command_sheet, compare, report
from deepnets.runs.contents import Code, Origin
from deepnets.system.files import check_folder
from tests.browser import console_messages, missing_browser, open_browser, requested
from tests.command import ENVIRONMENT, ROOT
from tests.trained import Trained, pretend

FIGURES = ["bars", "curves", "schedule"]


@dataclass(frozen=True)
class Written:
    folder: Path
    text: str
    csv: str


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, ROOT / "scripts" / "report.py", *words]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)


@pytest.fixture(scope="module")
def written(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("report")
    done = command(trained.path, "--output", folder, "--csv", "-", "--markdown", folder / "table.md")
    assert done.returncode == 0, done.stderr
    return Written(folder, done.stderr, done.stdout)


@pytest.mark.slow
def test_it_writes_page_and_figures_and_says_where(written: Written) -> None:
    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {file.name for file in written.folder.iterdir()} == {"report.html", "table.md", *figures}
    assert f"page         {written.folder}/report.html" in written.text
    assert "figures      3 as PNG and SVG" in written.text


def test_an_export_to_standard_output_stands_alone(written: Written) -> None:
    rows = {row["row"]: row["verdict"] for row in csv.DictReader(written.csv.splitlines())}
    assert rows["identity"] == "compatible"
    assert rows["none"] == "differs"
    assert "page  " in written.text


def test_the_folder_of_another_arithmetic_is_read_too(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path / "none", tmp_path / "shortcuts_on_digits" / "none").parent
    beside = shutil.copytree(path, tmp_path / "shortcuts_on_digits+precision=fp32")
    for file in beside.glob("*/*/result.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": "another"}))
    report([path], tmp_path / "report", {"markdown": tmp_path / "table.md"}, False)
    assert "**shortcuts_on_digits, another**" in (tmp_path / "table.md").read_text()


def test_what_cannot_be_done_is_said_in_a_line() -> None:
    done = command("nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("error: nowhere: no such folder; name a sweep's folder, as in outputs/<sweep>, or a run's\n")


def test_a_folder_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "digits+epochs=1").mkdir()
    for missing in ("digits", "digit+epochs=1"):
        done = command(str(tmp_path / missing))
        assert done.stderr.endswith(f"name a sweep's folder, the nearest: {tmp_path / 'digits+epochs=1'}\n")


def test_a_sweeps_name_alone_is_answered_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs" / "digits+epochs=1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"the nearest: outputs/digits\+epochs=1$"):
        check_folder(Path("digits"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the folder of a sweep"),
        (["--compare", "a", "b", "c"], "--compare takes two folders"),
        (["--compare", "a", "b", "--csv", "c"], "does not go with --csv"),
        (["--compare", "a", "b", "--full"], "--compare does not use --full: drop it"),
        (["--compare", "a", "b", "--whole"], "--whole goes with --verify only"),
        (["--compare", "a", "b"], "a: no such folder"),
        (["a", "--keep", "b", "--watch"], "does not go with --keep"),
        (["a", "--status", "--csv", "b"], "makes no report"),
        (["a", "--json"], "give it with --status, and without --watch"),
        (["a", "--status", "--json", "--watch"], "give it with --status, and without --watch"),
        (["a", "b", "--records"], "--records takes one folder"),
        (["a", "--config-dir", "nowhere"], "--config-dir nowhere: no such folder"),
        (["nowhere", "--records"], "nowhere: no records"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    with pytest.raises(UserError, match=message):
        main()


def test_the_status_of_a_table(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py", str(trained.path), "--status"])
    assert main() == 0
    assert "1 dead" in capsys.readouterr().out


def test_code_whose_results_are_gone_is_named_where_claims_are_tested(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "shortcuts_on_digits"
    shutil.copytree(trained.path / "none", table / "none")
    origin = Origin.read(table / "none" / "seed0")
    noted = Code(hash="b" * 16, modules={})
    origin.model_copy(update={"code": noted}).write(table / "none" / "seed0")
    for name in ("a" * 16, "b" * 16, "of another program"):
        (table / ".code" / name).mkdir(parents=True)
    for claims, is_told in (("", False), ('[{claim: "none is higher than identity"}]', True)):
        own = tmp_path / f"told_{is_told}" / "shortcuts_on_digits.yaml"
        own.parent.mkdir()
        own.write_text(f"sweep:\n  rows: {{model/shortcut: [none, identity]}}\n  claims: {claims}\n")
        assert report([table], tmp_path / "page", {}, False, own.parent) == 0
        told = f"other code of yours ({'a' * 16} in {table / '.code'}) has no result here any more"
        assert (told in capsys.readouterr().out) == is_told
        assert ("has no result here any more" in (tmp_path / "page" / "report.html").read_text()) == is_told


def test_a_report_goes_into_the_folder_of_the_table_and_can_be_written_again(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = tmp_path / "shortcuts_on_digits" / "none"
    row.parent.mkdir()
    row.symlink_to(trained.path / "none")
    single = trained.path / "none" / "seed0"
    (row.parent / "other").mkdir()
    (row.parent / "other" / "config.yaml").write_text((single / "config.yaml").read_text())
    for _ in range(2):
        assert report([row.parent], None, {}, False) == 0
        assert "1 waiting" in capsys.readouterr().out
    assert (row.parent / "report" / "report.html").is_file()


def test_a_report_removes_the_figures_of_the_one_before_but_no_others(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.path, two := tmp_path / "shortcuts_on_digits")
    shutil.copytree(trained.path, one := tmp_path / "copy" / two.name)
    config = two / "none" / "seed0" / "config.yaml"
    config.write_text(re.sub(r"(?m)^batch_size: \d+$", "batch_size: 33", config.read_text()))
    folder = tmp_path / "page"
    report([two], folder, {}, False)
    before = {file.name for file in folder.iterdir()}
    (folder / "mine.png").write_bytes(b"")
    report([one], folder, {}, False)
    left = {file.name for file in folder.iterdir()}
    assert before - left
    report([one], anew := tmp_path / "anew", {}, False)
    assert left == {file.name for file in anew.iterdir()} | {"mine.png"}


def test_many_pairs_are_tested_once_and_counted_where_they_are_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in range(26):
        for seed in range(3):
            folder = tmp_path / "table" / f"row{row}" / f"seed{seed}"
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(f"seed: {seed}\n")
            error = 5 + row / 7 + seed / 10
            (folder / "result.json").write_text(f'{{"status": "finished", "test_error": {error}}}')
    report([tmp_path / "table"], tmp_path, {}, False)
    said = capsys.readouterr().out
    assert "Welch's" not in said
    assert "lowest mean of 3 seeds or more, none diverged: 'row0'; it is not shown to differ from 'row1'" in said
    report([tmp_path / "table"], tmp_path, {}, False, full=True)
    said = capsys.readouterr().out
    assert "315 more lines not shown here. Welch's t test" in said
    page = (tmp_path / "report.html").read_text()
    assert all("lowest mean of 3 seeds or more, none diverged: 'row0'" in unescape(text) for text in (said, page))
    chosen = "Both rows are of one folder: if you chose them by their results"
    for other, is_told in (("table/row1", True), ("copy/row1", False)):
        shutil.copytree(tmp_path / "table", tmp_path / "copy", dirs_exist_ok=True)
        assert compare(tmp_path / "table" / "row0", tmp_path / other, None, False) == 0
        assert (chosen in " ".join(capsys.readouterr().out.split())) == is_told
    assert "25 more lines not shown here. Welch" in page


def test_a_place_that_cannot_be_written_is_named(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file/report: cannot be written"):
        report([trained.path], tmp_path / "file" / "report", {}, False)


@pytest.fixture(scope="module", params=[(1400, False), (390, True)], ids=["desktop-light", "phone-dark"])
def page(request: pytest.FixtureRequest, written: Written) -> Iterator[object]:
    if reason := missing_browser():
        pytest.skip(reason)
    width, dark = request.param
    with open_browser(width, 900, dark) as browser:
        browser.get((written.folder / "report.html").as_uri())
        yield browser


@pytest.mark.slow
def test_the_page_shows_the_table_and_all_figures(page: object, written: Written) -> None:
    table = page.find_element("css selector", "table")
    rows = [row.text.split("\n") for row in table.find_elements("css selector", "tbody th")]
    assert [row["row"] for row in csv.DictReader(written.csv.splitlines())] == ["".join(words) for words in rows]
    verdicts = [cell.text for cell in page.find_elements("css selector", "td.agrees, td.compatible, td.differs")]
    assert verdicts == ["compatible", "differs", "agrees"]
    figures = page.find_elements("css selector", "figure")
    assert [figure.get_attribute("id") for figure in figures] == FIGURES
    for figure in figures:
        size = figure.find_element("css selector", "svg").size
        assert size["width"] > 300
        assert size["height"] > 100
        assert figure.find_elements("css selector", "svg path")
    headings = [heading.text for heading in page.find_elements("css selector", "h2")]
    assert headings == [
        "Answer",
        "Results: shortcuts_on_digits",
        "Figures",
        "Statistics",
        "Settings that differ between rows",
        "Environment",
        "Commands",
        "Rules",
    ]


def test_a_command_of_one_row_names_the_users_own_files() -> None:
    typed = "deepnets train --project 'my project.yaml' --trust=own.py -m sweep=mine seed=0,1 launcher=pool"
    assert _own_flags(typed) == ["--project", "my project.yaml", "--trust=own.py"]
    assert _own_flags("deepnets train sweep=mine") == []


def test_a_command_to_copy_deletes_nothing(trained: Trained, tmp_path: Path) -> None:
    run = read_runs([trained.path / "none"])[0]
    again = replace(run, origin=run.origin | {"overrides": ["sweep=mine", "overwrite=true", "seed=0"]})
    assert command_sheet([again]).lines[0][1].endswith("sweep=mine seed=0")


@pytest.mark.slow
def test_the_page_fits_its_window_and_follows_the_scheme(page: object) -> None:
    inner, content = page.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert content <= inner
    paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    ink = page.execute_script("return getComputedStyle(document.querySelector('figure svg')).color")
    assert (paper, ink) == {
        1400: ("rgb(255, 255, 255)", "rgb(27, 28, 29)"),
        390: ("rgb(22, 24, 26)", "rgb(231, 232, 234)"),
    }[inner]


@pytest.mark.slow
def test_the_page_needs_nothing_else(page: object, written: Written) -> None:
    page.get((written.folder / "report.html").as_uri())
    assert console_messages(page) == []
    assert set(requested(page)) == {(written.folder / "report.html").as_uri()}


@pytest.mark.slow
def test_what_looks_like_markup_is_text(trained: Trained, tmp_path: Path) -> None:
    if reason := missing_browser():
        pytest.skip(reason)
    row = tmp_path / "table" / "<img src=x onerror=alert(1)>" / "seed0"
    row.mkdir(parents=True)
    for name in ("config.yaml", "result.json", "metrics.csv"):
        (row / name).write_text((trained.path / "none" / "seed0" / name).read_text())
    (row / "origin.json").write_text('{"command": "<script>alert(2)</script>", "overrides": ["<b>"]}')
    report([tmp_path / "table"], tmp_path, {}, False)
    with open_browser() as browser:
        browser.get((tmp_path / "report.html").as_uri())
        rows = [row.text for row in browser.find_elements("css selector", "tbody th")]
        assert "<img src=x onerror=alert(1)>" in rows
        assert browser.find_elements("css selector", "img, script, td b") == []
        assert requested(browser) == [(tmp_path / "report.html").as_uri()]


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
    assert ["settings", "seed", "0", "1"] in printed
    difference = f"{errors[1] - errors[0]:+.2f}".replace("-", "\N{MINUS SIGN}")
    result = next(line for line in printed if line[0] == "result")
    assert result[2:] == [f"{errors[0]:.2f}", f"{errors[1]:.2f}", difference]
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


def test_a_comparison_writes_only_into_a_named_folder(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [shutil.copytree(trained.path, tmp_path / name / trained.path.name) for name in "ab"]
    before = sorted(tmp_path.rglob("*"))
    assert compare(*tables, None, False) == 0
    assert "Do A and B differ?" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_that_nothing_pairs_are_named(trained: Trained, tmp_path: Path) -> None:
    other = tmp_path / "shortcuts_on_digits"
    for row in ("x", "y"):
        shutil.copytree(trained.path / "none", other / row)
    with pytest.raises(UserError, match=r"no row is in both: A has dropout, .*; B has x, y; to compare one row of"):
        compare(trained.path, other, tmp_path / "report", False)
    assert not (tmp_path / "report").exists()


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
