"""Whatever somebody has put into a run folder: nothing outside of it is written, and nothing ends in a traceback."""

import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from deepnets.errors import UserError
from deepnets.monitor.dashboard import event_writer
from deepnets.results.columns import warnings_of
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.run import load_run
from deepnets.runs.contents import Job, Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.status import read_state
from deepnets.system.files import opened_to_append
from tests.command import row

pytestmark = pytest.mark.attack

RUN = [
    "dataset=synthetic",
    "dataset.source.train=64",
    "dataset.source.test=20",
    "model.widths=[2,2,2]",
    "batch_size=16",
]
RUN += ["epochs=2", "checkpoint_seconds=0", "threads=1", "device=cpu"]
WRITTEN = [
    "config.yaml",
    "origin.json",
    "metrics.csv",
    "result.json",
    "status.json",
    "checkpoint.pt",
    "log.txt",
    ".lock",
]
LINKS = [*WRITTEN, *(f"{name}.new" for name in WRITTEN), "checkpoint.previous.pt", "log.txt"]
CONTENTS = [b"", b"\0" * 100, b"[" * 100_000, b"\xff\xfe\x00", b"5", b"[]", b"null"]
READ = ["config.yaml", "origin.json", "metrics.csv", "result.json", "status.json", "job.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("finished")
    folder = RunFolder(root / "runs" / "row" / "seed0")
    folder.freeze(row(root, *RUN).config, Origin(command="python scripts/train.py", overrides=RUN))
    run(folder)
    Job.model_validate({"job": "7_0", "submitted": "2026-01-01T00:00:00+00:00"}).write(folder.path)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("checkpoint.pt.new", "log.txt") else pytest.param(name, marks=pytest.mark.slow)
        for name in LINKS
    ],
)
def test_no_planted_link_is_followed(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", RunFolder(tmp_path / "seed0")
    victim.write_text("theirs")
    config = row(tmp_path, *RUN, "epochs=1").config
    folder.freeze(config, Origin())
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    with suppress(UserError):  # which names the link, where a file cannot be created anew
        folder.freeze(config, Origin())
        run(folder)
    assert victim.read_text() == "theirs"


def test_a_pipe_as_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.txt")
    for _ in range(2):
        with pytest.raises(OSError, match=r"log.txt"):
            opened_to_append(tmp_path / "log.txt")
        reader = os.open(tmp_path / "log.txt", os.O_RDONLY | os.O_NONBLOCK)  # from now on, somebody reads from it
    os.close(reader)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["analysis", "report"])
def test_no_link_to_a_folder_is_followed(finished: RunFolder, tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "seed0"
    victim.mkdir()
    shutil.copytree(finished.path, folder)
    (folder / name).symlink_to(victim)
    words = {"analysis": ["analyze", "evaluate"], "report": ["report"]}[name]
    with pytest.raises(OSError, match=f"is a link, and is not followed.*{name}"):
        call([*words, str(folder)])
    assert not list(victim.iterdir())


def test_no_link_to_a_file_of_an_analysis_is_followed(finished: RunFolder, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "seed0"
    victim.write_text("theirs")
    shutil.copytree(finished.path, folder)
    files = ["evaluate.json", "evaluate.json.new", "lesion_by_unit.csv", "lesion.partial", "lesion_by_unit.png"]
    (folder / "analysis").mkdir()
    for name in files:
        (folder / "analysis" / name).symlink_to(victim)
    for what in ("evaluate", "lesion"):
        call(["analyze", what, str(folder)])
    assert victim.read_text() == "theirs"


def test_the_name_of_a_file_of_events_is_not_known_before(tmp_path: Path) -> None:
    for _ in range(2):
        event_writer(tmp_path).close()
    first, second = tmp_path.glob("events.out.tfevents.*")
    assert len({file.name.rpartition(".")[2] for file in (first, second)}) == 2
    assert len(first.name.rpartition(".")[2]) == 16


def call(words: list[str]) -> None:
    """The command within this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [f"deepnets {words[0]}", *words[1:]])
        import_module(f"deepnets.commands.{words[0]}").main()


def replaced(file: Path, draw: random.Random, victim: Path) -> str:
    """Damage the file in one of many ways; returns which."""
    content = file.read_bytes()
    values = [None, [], {}, "word", -1, 10**400, 1e308, float("nan"), True, [[1]], {"a": 1}, "${oc.env:HOME}"]

    def changed() -> None:
        if file.suffix == ".json":
            entries = json.loads(content)
            entries[draw.choice([*entries, "new"])] = draw.choice(values)
            file.write_text(json.dumps(entries))
        elif file.suffix not in (".yaml", ".csv"):
            flipped()
        else:
            lines = content.decode().splitlines()
            lines[draw.randrange(len(lines))] = draw.choice(
                ["seed: [1]", "sweep: 5", "a,b,c,d", ",,,", "\t", "model: 1"]
            )
            file.write_text("\n".join(lines))

    def directory() -> None:
        file.unlink()
        file.mkdir()

    def pipe() -> None:
        file.unlink()
        os.mkfifo(file)

    def link() -> None:
        file.unlink()
        file.symlink_to(draw.choice([victim, file]))

    def flipped() -> None:
        bits = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
        file.write_bytes(bits)

    ways: list[Callable[[], Any]] = [
        changed, changed, changed, flipped, flipped, directory, pipe, link,
        lambda: file.write_bytes(content[: draw.randrange(len(content))]),
        lambda: file.write_bytes(draw.choice(CONTENTS)),
    ]  # fmt: skip
    way = draw.choice(ways)
    way()
    return way.__name__


def again(folder: RunFolder) -> UserError | None:
    """The same command again, and its error."""
    try:
        folder.check(folder.config)
        describe_result(folder.completed or run(folder))
        load_run(folder.path)
    except UserError as error:
        return error
    return None


def check(finished: RunFolder, place: Path, attempts: int) -> None:
    draw, victim = random.Random(0), place / "victim"
    victim.write_text("theirs")
    for number in range(attempts):
        table = place / str(number) / "runs"
        for name in ("good", "bad"):
            shutil.copytree(finished.path, table / name / "seed0")
        bad = RunFolder(table / "bad" / "seed0")
        file = bad.path / draw.choice(READ)
        way = replaced(file, draw, victim)
        read_state(bad)
        runs = read_runs([table])
        tables = tables_of(runs)
        assert [each.error for each in runs if each.row == "good"] == [finished.result.test_error], (file, way)
        warnings = [warning for each in tables for column in each.columns for warning in warnings_of(column)]
        assert not any("\n" in warning for warning in warnings), (file, way)
        refused = again(bad)
        assert refused is None or str(bad) in str(refused), (file, way)
        assert "\n" not in str(refused) or "another run:" in str(refused), (file, way)
        assert victim.read_text() == "theirs"
        shutil.rmtree(table)


def test_a_damaged_file_hides_no_other_run_and_is_named(finished: RunFolder, tmp_path: Path) -> None:
    check(finished, tmp_path, attempts=10)


@pytest.mark.slow
def test_many_damaged_files_hide_no_other_run_and_are_named(finished: RunFolder, tmp_path: Path) -> None:
    check(finished, tmp_path, attempts=200)
