"""The table of states, whatever the files hold."""

from pathlib import Path

import pytest
from rich.console import Console

from deepnets.runs.contents import Result
from deepnets.runs.folder import RunFolder, run_folders
from deepnets.runs.status import table_of


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "sweep" / "[bold]row" / "seed0")
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").touch()
    return folder


def printed(folder: RunFolder) -> str:
    console = Console(width=200)
    with console.capture() as text:
        console.print(table_of(run_folders(folder.path)))
    return text.get()


@pytest.mark.parametrize(
    "reason",
    ["[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed", "[enforce fail at x.cpp:8] y"],
)
def test_brackets_are_text(folder: RunFolder, reason: str) -> None:
    Result.model_validate({"status": "failed", "reason": reason}).write(folder.path)
    text = printed(folder)
    assert reason in text
    assert "[bold]row/seed0" in text


@pytest.mark.parametrize("name", ["result.json", "status.json", "job.json"])
@pytest.mark.parametrize("content", ['{"status": "fini', "[1]", '{"test_error": 1}'])
def test_a_broken_file_is_named(folder: RunFolder, name: str, content: str) -> None:
    (folder.path / name).write_text(content)
    text = printed(folder)
    assert "1 failed" in text
    assert f"cannot be read: {name}: " in text


def test_a_result_without_an_error_shows_none(folder: RunFolder) -> None:
    (folder.path / "result.json").write_text('{"status": "finished"}')
    assert "1 finished" in printed(folder)
