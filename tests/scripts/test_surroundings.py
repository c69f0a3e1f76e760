"""Full disks, closed outputs, terminals that go, signals from the first line on: one line, and nothing is lost."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepnets.runs import checkpoint
from deepnets.runs.folder import RunFolder
from tests.command import ENVIRONMENT, ROOT, TRAIN

pytestmark = [pytest.mark.slow, pytest.mark.attack]

RUN = ["model.depth=8", "model.widths=[4,8,16]", "epochs=2", "device=cpu", "threads=1"]
LONG = [*RUN[:2], "epochs=3000", *RUN[3:], "checkpoint_seconds=0.1"]
REPORT = [sys.executable, str(ROOT / "scripts" / "report.py")]
NO_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def call(
    *words: str, first: Callable[[], Any] | None = None, out: Any = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command to its end; `first` is called in its process before it."""
    return subprocess.run(
        words, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT | environment,
        preexec_fn=first, check=False,
    )  # fmt: skip


def assert_short(errors: str, most: int = 2) -> None:
    assert "Traceback" not in errors
    assert "Exception" not in errors
    assert 0 < len(errors.strip().splitlines()) <= most, errors


def folder_in(root: Path) -> RunFolder:
    (folder,) = root.glob("runs/*/seed0")
    return RunFolder(folder)


def begun(root: Path, *words: str, first: Callable[[], Any] | None = None) -> subprocess.Popen[str]:
    """A long run that has written a checkpoint."""
    process = subprocess.Popen(
        [*TRAIN, *LONG, f"output_root={root}", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT, preexec_fn=first,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(root.glob(f"runs/*/seed0/{checkpoint.LAST}")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def no_file_grows() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_disk_that_is_full_while_a_run_is_set_up_is_said(tmp_path: Path) -> None:
    done = call(*TRAIN, *RUN, f"output_root={tmp_path}", first=no_file_grows)
    assert done.returncode == 1
    assert_short(done.stderr)
    assert call(*TRAIN, *RUN, f"output_root={tmp_path}").returncode == 0  # what is left of it is in nobody's way


def test_a_place_where_no_folder_can_be_is_said(tmp_path: Path) -> None:
    done = call(*TRAIN, *RUN, "output_root=/proc/outputs")
    assert done.returncode == 1
    assert_short(done.stderr)


def test_a_full_or_closed_output_costs_no_result(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = call(*TRAIN, *RUN, f"output_root={tmp_path / 'full'}", out=full)
        assert done.returncode == 0
        assert_short(done.stderr)
        printed = call(*REPORT, str(tmp_path / "full"), out=full)
    assert printed.returncode == 1
    assert_short(printed.stderr)
    assert call(*TRAIN, *RUN, f"output_root={tmp_path / 'closed'}", first=lambda: os.close(1)).returncode == 0
    assert folder_in(tmp_path / "full").is_complete
    assert folder_in(tmp_path / "closed").is_complete


def test_a_terminal_without_utf_8_shows_what_it_can(tmp_path: Path) -> None:
    done = call(*TRAIN, *RUN, f"output_root={tmp_path}", **NO_UTF8)
    assert done.returncode == 0, done.stderr
    assert "finished: test error" in done.stdout
    printed = call(*REPORT, str(tmp_path), **NO_UTF8)
    assert printed.returncode == 0, printed.stderr


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    for command in (TRAIN, REPORT, [sys.executable, "-m", "deepnets.run", "x"]):
        gone = tmp_path / "gone"
        gone.mkdir()
        words = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *command]
        done = call(*words, PYTHONPATH=str(ROOT))
        assert done.returncode == 1
        assert done.stderr == "error: the working directory is gone; change to one that is there\n"


def test_the_end_of_the_terminal_saves_a_run_unless_it_is_ignored(tmp_path: Path) -> None:
    process = begun(tmp_path / "a")
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 128 + signal.SIGHUP
    assert "Stopped by SIGHUP" in process.stderr.read()
    assert folder_in(tmp_path / "a").status.state == "stopped"
    process = begun(tmp_path / "b", first=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    data = ["dataset=synthetic", "dataset.source.train=2000000"]  # of 6 GiB
    done = call(*TRAIN, *RUN, *data, f"output_root={tmp_path}", first=little)
    assert done.returncode == 1
    assert_short(done.stderr)
    assert "too little memory" in done.stderr


def test_a_folder_that_is_removed_ends_its_run_in_a_line(tmp_path: Path) -> None:
    process = begun(tmp_path / "outputs")
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert process.wait(60) == 1
    errors = process.stderr.read()
    assert_short(errors, most=3)
    assert checkpoint.load(folder_in(tmp_path / "elsewhere").path)[0]["training"]["iteration"] > 0


def interrupted(delay: float, *command: str) -> tuple[int, str]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT
    )
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    return process.wait(60), process.stderr.read()


@pytest.mark.nightly
def test_ctrl_c_ends_a_command_in_a_line_whenever_it_comes(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(40):
        delay = draw.uniform(0.2, 4)  # Python itself is not there before
        code, errors = interrupted(delay, *TRAIN, *LONG, f"output_root={tmp_path}")
        assert code == 130, (delay, errors)
        assert_short(errors, most=3)
