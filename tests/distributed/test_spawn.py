"""Several processes of this machine: which of them is named, and what ends them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from deepnets.distributed.signals import SIGNALS
from deepnets.distributed.spawn import how_it_ended, processes

# Each writes its number; SIGTERM, which comes held back, ends it with exit code 143.
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(str(os.getpid()))
while os.environ["RANK"] != sys.argv[2]:
    time.sleep(0.01)
os._exit(int(sys.argv[3]))
"""


def words(place: Path, ends: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(place), ends, str(code)]


def wait_for(*files: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(file.is_file() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(file: Path) -> bool:
    return Path(f"/proc/{file.read_text()}").exists()


def test_the_first_that_fails_is_named_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepnets.distributed.spawn.GRACE_SECONDS", 0.5)
    with processes(words(tmp_path, "1", 3), 3, threads=1) as group:
        failure = group.first_failure()
    assert failure == (1, 3)
    assert group.stopped_by(failure) is None
    wait_for(tmp_path / "1")
    assert [process.returncode for process in group.started] == [-signal.SIGKILL, 3, -signal.SIGKILL]


def test_a_signal_is_passed_on_to_all(tmp_path: Path) -> None:
    with processes(words(tmp_path, "none"), 2, threads=1) as group:
        wait_for(tmp_path / "0", tmp_path / "1")
        os.kill(os.getpid(), signal.SIGTERM)
        failure = group.first_failure()
    assert group.stopped_by(failure) == signal.SIGTERM
    assert [process.returncode for process in group.started] == [143, 143]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(SIGNALS)


def test_an_exception_meanwhile_leaves_none(tmp_path: Path) -> None:
    def fail_among_others() -> None:
        with processes(words(tmp_path, "none"), 2, threads=1):
            wait_for(tmp_path / "0", tmp_path / "1")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail_among_others()
    assert not any(map(is_alive, tmp_path.iterdir()))


def test_an_end_is_named_by_its_signal_or_its_code() -> None:
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert "memory" in how_it_ended(-signal.SIGKILL)
