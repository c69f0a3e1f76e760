"""Several machines on one folder: `flock` does nothing, what another machine has written is seen late."""

import errno
import fcntl
import json
import os
import random
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from deepnets.runs import owner
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.owner import TakenOver, owned, owner_elsewhere

pytestmark = pytest.mark.attack

# A machine: its flock does nothing, and it lists and reads the folder as that was LATE ago, but for its own last file.
MACHINE = """
import fcntl, os, sys, threading, time
from pathlib import Path
from typing import Any, NoReturn
from datetime import UTC, datetime
from deepnets.runs import contents, owner
from deepnets.runs.folder import RunFolder
from deepnets.runs.owner import TakenOver, owned

folder, name, late, wait, work, dies = Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:6]), sys.argv[6] == "dies"
fcntl.flock = lambda *_: None
owner.LATE_SECONDS, owner.GONE_SECONDS = late, 3 * late
owner._me = lambda: {"host": name, "boot": name, "pid": os.getpid(), "job": None}
seen = []

def look():
    while True:
        files = {}
        for path in folder.glob("*"):
            try:
                files[path.name] = path.read_text()
            except OSError:
                pass
        for path in folder.glob(".owner.*"):
            try:
                files[path.name] = path.read_text()
            except OSError:
                pass
        seen.append((time.time(), files))
        time.sleep(0.01)

def past():
    then = time.time() - late
    return next((files for at, files in reversed(seen) if at <= then), {})

def read(path):
    import json
    text = past().get(path.name, "")
    return json.loads(text) if text else {}

owner.read_object = contents.read_object = read
numbers = lambda: [int(each[7:]) for each in past() if each[:7] == owner.OWNER and each[7:].isdecimal()]
owner._last = lambda where: max(numbers(), default=0)
threading.Thread(target=look, daemon=True).start()
time.sleep(late * 1.5 + wait)
with owned(folder) as mine:
    if mine and "result.json" not in past():
        record = open(folder / "trained", "a", buffering=1)
        end = time.time() + work
        while time.time() < end:
            record.write(f"{name} {time.time()}\\n")
            beat = datetime.now(UTC).isoformat()
            owner.write_atomically(folder / "status.json", '{"state": "running", "heartbeat": "%s"}' % beat)
            if dies and time.time() > end - work / 2:
                os._exit(9)
            time.sleep(0.02)
        (folder / "result.json").write_text("done")
"""
LATE = 1.2  # seconds, for a minute: longer than a loaded machine keeps a thread waiting


def race(folder: Path, draw: random.Random) -> None:
    """Two machines begin at any distance in time; now and then one dies, and a third comes."""
    dies = draw.random() < 0.3
    waits = [0.0, draw.uniform(0, 5 * LATE), 10 * LATE]
    machines = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                MACHINE,
                str(folder),
                name,
                str(LATE),
                str(wait),
                str(2 * LATE),
                "dies" if dies and name == "a" else "",
            ]
        )
        for name, wait in zip("abc", waits, strict=True)
    ]
    for machine in machines:
        machine.wait(60)
    times: dict[str, list[float]] = {}
    for line in (folder / "trained").read_text().splitlines():
        name, at = line.split()
        times.setdefault(name, []).append(float(at))
    spans = sorted((min(at), max(at)) for at in times.values())
    assert all(first[1] < second[0] for first, second in pairwise(spans)), times.keys()
    assert (folder / "result.json").exists()
    assert len(times) <= 1 + dies


@pytest.mark.nightly
def test_a_run_is_trained_by_one_machine_at_a_time_and_once(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        race(folder, draw)


def on_another(monkeypatch: pytest.MonkeyPatch, **facts: str) -> None:
    monkeypatch.setattr(owner, "_me", lambda: {"host": "b", "boot": "b", "pid": 7, "job": None} | facts)


def test_another_machine_is_told_who_trains_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    with owned(folder.path) as mine:
        assert owner_elsewhere(folder.path) is None
        on_another(monkeypatch)
        with (
            pytest.raises(Locked, match=r"another process \(process \d+ on .*, last heard of 0 s ago\)"),
            folder.hold(),
        ):
            pass
        on_another(monkeypatch, job="5_1")
        assert owner_elsewhere(folder.path)
        monkeypatch.setattr(owner, "GONE_SECONDS", -1.0)
        with owned(folder.path) as later:
            with pytest.raises(TakenOver, match="taken over by process 7 on b"):
                mine.check()
            later.check()


def test_an_earlier_life_of_a_machine_or_of_a_job_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_another(monkeypatch, job="5_1")
    with owned(tmp_path):
        for facts in ({"boot": "other"}, {"host": "c", "boot": "c", "job": "5_1"}):
            on_another(monkeypatch, **facts)
            assert owner_elsewhere(tmp_path) is None
        on_another(monkeypatch, host="c", boot="c")
        assert "process 7 on b" in owner_elsewhere(tmp_path)


def test_what_another_machine_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with owned(tmp_path):
        pass
    monkeypatch.setattr(owner, "LATE_SECONDS", 0.5)
    began = time.monotonic()
    with owned(tmp_path):  # this machine's own can be seen at once
        pass
    assert time.monotonic() - began < 0.4
    on_another(monkeypatch)
    with owned(tmp_path) as mine:
        assert mine.number == 3
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 64, b'{"host": "b", "bo', b"[]", b"\xff", b'{"since": "x"}', b'{"released": null}'],
)
def test_an_owner_file_without_valid_content_is_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".owner.3").write_bytes(content)
    assert owner_elsewhere(tmp_path) is None
    with RunFolder(tmp_path).hold(), owned(tmp_path) as mine:
        assert mine.number == 4


def test_a_full_disk_leaves_no_owner(tmp_path: Path) -> None:
    """A file that may have no bytes fails as one on a full disk does."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        with pytest.raises(OSError, match="too large"), owned(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_where_files_have_no_links_an_owner_is_known_before_its_file_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> NoReturn:
        raise OSError(errno.EPERM, "no links here")

    def looked(content: dict[str, Any], file: Any) -> None:
        """Another machine looks when the file has been created and holds nothing."""
        assert (tmp_path / ".owner.1").stat().st_size == 0
        with monkeypatch.context() as elsewhere:
            on_another(elsewhere)
            seen.append(owner_elsewhere(tmp_path))
            with owned(tmp_path) as second:
                assert second is None
        file.write(json.dumps(content))

    seen: list[str | None] = []
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(json, "dump", looked)
    with owned(tmp_path) as mine:
        assert f"process {os.getpid()}" in seen[0]
        mine.check()


def test_a_lock_file_that_a_killed_machine_left_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `flock` is not there at all: then the file is the lock, and nobody removes that of a killed process."""

    def missing(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSYS, "no flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    file, folder = tmp_path / ".lock", RunFolder(tmp_path)
    file.write_text("4242\nnode7\n")
    with pytest.raises(Locked), folder.hold():
        pass
    monkeypatch.setattr(owner, "GONE_SECONDS", -1.0)
    with folder.hold():
        assert "node7" not in file.read_text().split()
        with pytest.raises(Locked), folder.hold():
            pass
    assert not file.exists()
