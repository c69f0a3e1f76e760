"""One bad record, or a name like a formula, is named or drawn as it is: the other rows are reported all the same."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepnets.errors import UserError, printable
from deepnets.monitor.style import new_panels, styled
from deepnets.results.export import load_results
from deepnets.results.page import Picture
from deepnets.results.published import published_of
from deepnets.results.read import read_runs
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.system.printing import Sheet, latex_table
from tests.command import row
from tests.runs.test_planted import RUN, call

pytestmark = [pytest.mark.attack, pytest.mark.slow]

SWEEP = "sweep: {{axes: [optimizer.lr], reported: {{test_error: {{good: 7.5, bad: {}}}}}}}\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two rows that ended, whose file lies beside them."""
    root = tmp_path_factory.mktemp("finished") / "records"
    for number, name in enumerate(("good", "bad"), 1):
        folder = RunFolder(root / "table" / name / "seed0")
        folder.freeze(row(root, *RUN, f"optimizer.lr=0.{number}").config, Origin())
        run(folder)
        file = folder.path / "config.yaml"
        file.write_text(file.read_text().replace("sweep: null", "sweep: {axes: [optimizer.lr], deep: false}"))
    (root / "table" / "table.yaml").write_text(SWEEP.format("fail"))
    return root


def in_json(name: str, entry: str, value: str) -> Callable[[Path], None]:
    """Write a value, in JSON, into a file of the bad row."""

    def spoil(table: Path) -> None:
        file = table / "bad" / "seed0" / name
        text, changes = re.subn(rf'"{entry}": [^,\n]+', f'"{entry}": {value}', file.read_text())
        assert changes
        file.write_text(text)

    return spoil


def running(heartbeat: str) -> Callable[[Path], None]:
    """The bad row has no result yet, and its last heartbeat is this."""

    def spoil(table: Path) -> None:
        (table / "bad" / "seed0" / "result.json").unlink()
        in_json("status.json", "heartbeat", heartbeat)(table)

    return spoil


def waiting(table: Path) -> None:
    """The bad row has no result yet, and is said to need this time."""
    (table / "bad" / "seed0" / "result.json").unlink()
    in_json("status.json", "seconds_left", "-1e308")(table)


def dated(table: Path) -> None:
    file = table / "bad" / "seed0" / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.2", "lr: 2026-01-01"))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "an error that is no number": (in_json("result.json", "test_error", "NaN"), "NaN is not a finite number"),
    "a number too large": (in_json("result.json", "test_error", "1e999"), "1e999 is not a finite number"),
    "a word for a number": (in_json("result.json", "test_error", '"9"'), "test_error: Input should be a valid number"),
    "a date": (dated, "2026-01-01: a date; if you mean a text, write it in quotes"),
    "a heartbeat without a zone": (running('"2026-01-01T00:00:00"'), "heartbeat: Input should have timezone info"),
    "a time that is none": (waiting, "progress.seconds_left: Input should be greater than or equal to 0"),
    "a heartbeat in seconds": (running("5"), "heartbeat: Value error, is no date and time"),
}  # fmt: skip
PUBLISHED = {".nan": "should be a finite number", "[1, 2]": "should be a valid number"}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_record_is_named_and_the_rest_reported(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    spoil, reason = BAD[what]
    spoil(records / "table")
    said = outputs(records, capsys)
    if spoil is dated:
        del said["status"]  # which reads no configuration
    for text in said.values():
        assert [line for line in text.splitlines() if reason in line], text
    results = load_results(records).set_index("row")
    assert reason in results.reason["bad"]
    good = json.loads((finished / "table" / "good" / "seed0" / "result.json").read_text())
    assert results.test_error["good"] == good["test_error"]
    assert list(results.status[["good", "bad"]]) == ["finished", "failed"]


def test_a_result_without_a_configuration_is_named(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    (records / "table" / "bad" / "seed0" / "config.yaml").unlink()
    told = "bad/seed0: has a result but no config.yaml, and is left out"
    assert told in outputs(records, capsys)["report"]


@pytest.mark.parametrize("value", PUBLISHED)
def test_a_bad_published_number_is_named_and_the_others_compared(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    file = records / "table" / "table.yaml"
    file.write_text(SWEEP.format(value))
    published = published_of("table", file.parent)
    assert {row: printed.test_error for row, printed in published.rows.items()} == {"good": 7.5}
    (problem,) = published.problems
    assert (
        problem
        == f"{file}: sweep.reported.test_error.bad: Input {PUBLISHED[value]}, not {value.strip('.')}; it is left out"
    )
    said = outputs(records, capsys)
    for name in ("report", "records"):
        assert problem in said[name], said[name]
    assert len(load_results(records).claims) == 0


@pytest.mark.parametrize("reported", ["5", "{test_error: 5}", "{test_error: {a: {b: 1}}, view: [1]}", "{best: {a: x}}"])
def test_reported_numbers_of_another_shape_are_left_out(tmp_path: Path, reported: str) -> None:
    (tmp_path / "t.yaml").write_text(f"sweep: {{reported: {reported}}}")
    published = published_of("t", tmp_path)
    assert not published.rows
    assert published.problems
    assert not any("\n" in problem for problem in published.problems)


@pytest.mark.parametrize("name", [b"a$b_{$c^^", b"a\xff\xfe", b"\x1b[31m$x$", "\u202edab".encode()])
def test_a_name_is_data(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: bytes) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    (records / "table" / "bad").rename(records / "table" / os.fsdecode(name))
    said = outputs(records, capsys)
    shown = printable(os.fsdecode(name))
    for text in (*said.values(), (records / "table" / "report" / "report.html").read_text()):
        assert shown in text
    assert os.fsdecode(name) in set(load_results(records).row)


def test_a_name_in_markdown_is_no_markup(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    names = ["<img src=x onerror=f()>", "[a](javascript:f())", "a\\|0.01"]
    for number, name in enumerate(names):
        shutil.copytree(records / "table" / "bad", records / "table" / name)
        in_json("result.json", "device", f'"{number}<script>"')(records / "table")
    outputs(records, capsys)
    call(["report", str(records / "table"), "--output", str(tmp_path / "o"), "--markdown", str(tmp_path / "a.md")])
    for text in ((records / "README.md").read_text(), (tmp_path / "a.md").read_text()):
        assert not re.search("<(img|script)|]\\(javascript", text)
        assert "| &lt;img src=x onerror=f()> |" in text
        assert "| [a]&#40;javascript:f()) |" in text
        assert r"| a\\\|0.01 |" in text


def test_a_row_of_latex_begins_with_no_argument() -> None:
    text = latex_table(Sheet("a\nb", ("row",), (("[1cm]",), ("*",))))
    assert text.splitlines()[0] == "% a b. "
    assert "  {[}1cm] \\\\\n  {*} \\\\\n" in text


def test_a_page_about_a_table_is_not_read_from_elsewhere(finished: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    shutil.copytree(finished, records)
    (tmp_path / "secret").write_text("secret")
    (records / "table" / "about.md").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"about\.md: ValueError: it is a link, which is not followed"):
        call(["report", str(records), "--records"])


def test_only_powers_of_ten_are_drawn_as_formulas() -> None:
    dollar = "DejaVuSans-7"  # its glyph
    for title, is_there in (("a$b$", True), ("ab", False)):
        with styled():
            figure, (axes,) = new_panels(3)
            axes.plot([1, 1000], [1, 1000], label=title)
            axes.set(yscale="log", title=title)
            figure.legend()
        svg = Picture("a", "", figure)._drawn("path")
        assert (dollar in svg) == is_there
        assert "mathdefault" in svg  # of a tick, whose formula begins with a dollar that is not drawn
        assert ("a$b$" in Picture("a", "", figure).inline()) == is_there


def outputs(records: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What report, --status and --records say, each of which ends without an error."""
    said = {}
    table = str(records / "table")
    for name, words in {
        "report": [table],
        "status": [table, "--status"],
        "records": [str(records), "--records"],
    }.items():
        call(["report", *words])
        said[name] = capsys.readouterr().out
    said["records"] += (records / "README.md").read_text()
    return said


def test_a_million_epochs_are_refused_in_a_line_and_what_is_read_takes_seconds(finished: Path, tmp_path: Path) -> None:
    table = tmp_path / "records" / "table"
    shutil.copytree(finished / "table", table)
    file = table / "bad" / "seed0" / "metrics.csv"
    header, line, *_ = file.read_text().splitlines()
    rest = line.split(",", 1)[1]
    for epochs, is_read in ((1_000_000, False), (90_000, True)):
        file.write_text("\n".join([header, *(f"{epoch},{rest}" for epoch in range(1, epochs + 1))]))
        begun = time.monotonic()
        (bad,) = (each for each in read_runs([table]) if each.row == "bad")
        assert time.monotonic() - begun < 20
        if is_read:
            assert "selected_epoch is 2 in result.json, 90000.0 by metrics.csv" in bad.contradiction
        else:
            assert bad.broken == [f"{bad.folder}/metrics.csv: more than 10000000 bytes"]
