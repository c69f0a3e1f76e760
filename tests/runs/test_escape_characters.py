"""Names, hosts and reasons with characters that a terminal obeys, or rich reads as markup: each command prints text."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepnets.errors import UNPRINTABLE
from deepnets.launch.grid import Tally
from deepnets.launch.plan import show_plan
from deepnets.runs.contents import Origin, Result, Status
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import ENVIRONMENT, ROOT, row
from tests.runs.test_planted import RUN, call

pytestmark = pytest.mark.attack

HOSTILE = "=\x1b]0;t\x07\x9b31m[red]\u202e"
SHOWN = r"=\x1b]0;t\x07\x9b31m[red]\u202e"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row of that name which ended, one that failed for such a reason, and one that died on such a host."""
    table = tmp_path_factory.mktemp("outputs") / HOSTILE
    for name in (HOSTILE, "failed", "dead"):
        folder = RunFolder(table / name / "seed0")
        folder.freeze(row(table.parent, *RUN).config, Origin(command=HOSTILE, overrides=[HOSTILE]))
        if name == HOSTILE:
            run(folder)
    Result.model_validate({"status": "failed", "reason": HOSTILE}).write(RunFolder(table / "failed" / "seed0").path)
    beat = {"state": "running", "heartbeat": "2026-01-01T00:00:00+00:00", "host": HOSTILE, "job": HOSTILE}
    Status.model_validate(beat).write(RunFolder(table / "dead" / "seed0").path)
    return table


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is broken over two lines."""
    monkeypatch.setenv("COLUMNS", "300")


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "report": lambda table, out: ["report", str(table), "--output", str(out)],
    "csv": lambda table, out: ["report", str(table), "--output", str(out), "--csv", "-"],
    "latex": lambda table, out: ["report", str(table), "--output", str(out), "--latex", "-"],
    "status": lambda table, out: ["report", str(table), "--status"],
    "keep": lambda table, out: ["report", str(table), "--keep", str(out)],
    "compare": lambda table, out: ["report", "--output", str(out), "--compare", str(table), str(table)],
    "evaluate": lambda table, out: ["analyze", "evaluate", str(table / HOSTILE / "seed0"), "--output", str(out)],
    "predict": lambda table, out: ["predict", str(table / HOSTILE / "seed0"), HOSTILE, "--to", str(out / "a.csv")],
    "weights": lambda table, out: ["export", str(table / HOSTILE / "seed0"), "--to", str(out / HOSTILE)],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_them_as_text(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    call(COMMANDS[name](table, tmp_path / HOSTILE))
    said = "".join(capsys.readouterr())
    assert SHOWN in said.replace(r"\textbackslash{}", "\\"), said
    assert not UNPRINTABLE.search(said)


def test_the_reason_and_the_host_are_printed_whole(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(["report", str(table), "--status"])
    lines = {line.split("/")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert f"job {SHOWN} on {SHOWN}" in lines["dead"]
    assert SHOWN in lines["failed"]


def test_plan_and_ending_print_them_as_text(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = row(table.parent, *RUN, f"output_root={json.dumps(str(table))}")
    show_plan([planned])
    folders = [RunFolder(table / name / "seed0") for name in (HOSTILE, "failed")]
    Tally(folders, {folders[1]: HOSTILE}).print()
    said = "".join(capsys.readouterr())
    assert said.count(SHOWN) >= 4, said
    assert not UNPRINTABLE.search(said)


def test_an_error_prints_them_as_text() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), f"/nowhere/{HOSTILE}"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: /nowhere/{SHOWN}: no such folder")
    assert not UNPRINTABLE.search(done.stderr)


def test_a_formula_in_csv_is_text_and_a_number_is_none(table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "table"
    names = ["=1+1", "+1", "-1", "@a", "a=1"]
    for number, name in enumerate(names):
        shutil.copytree(table / HOSTILE / "seed0", copy / name / f"seed{number}")
    call(["report", str(copy), "--output", str(tmp_path / "out"), "--csv", str(tmp_path / "a.csv")])
    with (tmp_path / "a.csv").open() as file:
        assert {line["row"] for line in csv.DictReader(file)} == {"'=1+1", "'+1", "'-1", "'@a", "a=1"}
