"""The states of rows, as a real process leaves them and as other files make them."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deepnets.distributed.signals import Interrupted
from deepnets.errors import UserError
from deepnets.runs import status
from deepnets.runs.contents import Job, Origin, Progress, Result
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import Heartbeat, show, state_of, table_of
from deepnets.training.fit import Training
from tests.command import ENVIRONMENT, ROOT, call, row

NET = ["model.depth=8", "model.widths=[4,4,4]", "epochs=9", "device=cpu", "threads=1"]
SLOW = ["schedule=cosine", "schedule._target_=tests.paced.Paced", "+schedule.name=a"]
PROGRESS = Progress(
    epoch=3, epochs=9, iteration=40, iterations=99, test_error=5.25, images_per_second=1234.5, seconds_left=61.0
)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def in_flight(tmp_path: Path) -> Iterator[tuple[RunFolder, subprocess.Popen[bytes]]]:
    """A run that trains and does not end of itself."""
    folder = RunFolder(tmp_path / "run")
    folder.freeze(row(tmp_path, *NET, *SLOW).config, Origin())
    (tmp_path / "slow").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "deepnets.run", str(folder.path), "--trust=tests.paced.Paced"],
        env={**ENVIRONMENT, "PACE": str(tmp_path)},
        cwd=ROOT,
    )
    yield folder, process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_run_is_waiting_running_stopped_and_dead(in_flight: tuple[RunFolder, subprocess.Popen[bytes]]) -> None:
    folder, process = in_flight
    assert state_of(folder).name == "waiting"
    until(lambda: state_of(folder).progress is not None or process.poll() is not None)
    running = state_of(folder)
    assert running.name == "running"
    assert (running.progress.epochs, running.progress.iterations) == (9, 108)
    assert 0 <= running.silent < 60
    assert json.loads((folder.path / "status.json").read_text())["pid"] == process.pid
    assert state_of(folder, dead_after=running.silent / 2).name == "dead"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    stopped = state_of(folder)
    assert stopped.name == "stopped"
    assert stopped.progress.iteration >= running.progress.iteration


@pytest.mark.slow
def test_a_run_that_is_killed_is_dead_once_its_heartbeat_is_old(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    program = (
        "import sys, time; from deepnets.runs.folder import RunFolder; from deepnets.runs.status import Heartbeat\n"
        "with Heartbeat(RunFolder(sys.argv[1])):\n    print('beats', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "beats\n"
    process.kill()
    process.communicate()
    assert state_of(folder).name == "running"
    assert state_of(folder).progress is None
    earlier = datetime.now(UTC) - timedelta(seconds=61)
    folder.status.model_copy(update={"heartbeat": earlier}).write(folder.path)
    assert state_of(folder).name == "dead"
    assert state_of(folder).host == os.uname().nodename
    assert state_of(folder, dead_after=120).name == "running"


def test_the_heart_beats_while_nothing_else_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "BEAT_SECONDS", 0.02)
    folder = RunFolder(tmp_path)

    def beat() -> datetime:
        return folder.status.heartbeat

    with Heartbeat(folder) as heartbeat:
        first = beat()
        until(lambda: beat() > first)
        heartbeat.follow(lambda: PROGRESS)
        assert state_of(folder).progress == PROGRESS
        first = beat()
        until(lambda: beat() > first)
    last = beat()
    time.sleep(0.1)
    assert beat() == last


def test_a_run_that_has_ended_leaves_nothing_in_memory(tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path / name) for name in ("first", "second")]
    for folder in folders:
        folder.freeze(row(tmp_path, *NET[:2], "epochs=1", "device=cpu").config, Origin())
    run(folders[0])  # what it imports leaves tracebacks behind, which hold its frames
    gc.collect()
    gc.disable()
    try:
        run(folders[1])
        assert not [each for each in gc.get_objects() if type(each) is Training]
    finally:
        gc.enable()


def test_a_run_that_beats_without_an_iteration_stalls(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for idle, reason in ((599.0, None), (720.0, "stalled: no iteration for 12 min")):
        with Heartbeat(folder) as heartbeat:
            heartbeat.follow(lambda idle=idle: PROGRESS.model_copy(update={"seconds_idle": idle}))
            state = state_of(folder)
        assert (state.name, state.reason) == ("running", reason)
    earlier = folder.status.progress.model_dump(exclude={"seconds_idle"})
    assert Progress.model_validate(earlier).seconds_idle == 0


def test_only_a_signal_makes_a_run_stopped(tmp_path: Path) -> None:
    for error, name in (
        (Interrupted(signal.SIGUSR1), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (RuntimeError("x"), "running"),
    ):
        with pytest.raises(type(error)), Heartbeat(RunFolder(tmp_path)):
            raise error
        assert state_of(RunFolder(tmp_path)).name == name


def test_a_result_says_how_a_row_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("finished", "diverged"):
        Result.model_validate({"status": name, "test_error": None}).write(folder.path)
        assert state_of(folder).name == name
    Result.model_validate({"status": "failed", "reason": "RuntimeError: first\n  second"}).write(folder.path)
    assert (state_of(folder).name, state_of(folder).reason) == ("failed", "RuntimeError: first second")


def test_a_job_is_queued_until_it_runs_and_again_after_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    Job.model_validate({"job": "7_3", "submitted": datetime.now(UTC).isoformat()}).write(folder.path)
    assert (state_of(folder).name, state_of(folder).job) == ("queued", "7_3")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with Heartbeat(folder):
        assert (state_of(folder).name, state_of(folder).job) == ("running", "7_3")
    Result.model_validate({"status": "failed", "reason": "x"}).write(folder.path)
    assert state_of(folder).name == "failed"
    Job.model_validate({"job": "9_0", "submitted": datetime.now(UTC).isoformat()}).write(folder.path)
    assert (state_of(folder).name, state_of(folder).job) == ("queued", "9_0")


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Rows in four states, without training."""
    for number, name in enumerate(("waiting", "running", "failed", "finished")):
        folder = RunFolder(tmp_path / "sweep" / "row" / f"seed{number * 5}")
        folder.path.mkdir(parents=True)
        (folder.path / "config.yaml").touch()
        if name != "waiting":
            heartbeat = Heartbeat(folder)
            heartbeat.follow(lambda: PROGRESS)
        if name == "failed":
            Result.model_validate({"status": name, "reason": "OSError: no space left"}).write(folder.path)
        if name == "finished":
            Result.model_validate({"status": name, "test_error": 4.5}).write(folder.path)
    return tmp_path / "sweep"


def test_every_row_is_shown_with_what_it_is_doing(
    grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert show([grid], watch=False) == 0
    header, *rows, counts = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "epoch", "error", "%", "images/s", "left", "heartbeat", "remark"]
    assert [line.split()[:2] for line in rows if "seed" in line] == [
        ["seed0", "waiting"],
        ["seed5", "running"],
        ["seed10", "failed"],
        ["seed15", "finished"],
    ]
    running = next(line for line in rows if "running" in line).split()
    assert running[2:6] == ["3/9", "5.25", "1,234", "0:01:01"]
    assert next(line for line in rows if "finished" in line).split()[2:] == ["3/9", "4.50"]
    assert "OSError:" in next(line for line in rows if "failed" in line)
    assert counts.strip() == "4 runs: 1 waiting, 1 running, 1 failed, 1 finished"


def test_what_needs_somebody_is_shown_first_where_not_all_fits(grid: Path) -> None:
    table = table_of([RunFolder(path) for path in sorted(grid.glob("*/*"))], most=2)
    assert list(map(str, table.columns[1].cells)) == ["running", "failed"]
    assert table.caption.endswith("2 of them shown")


def test_watching_ends_with_the_last_row(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Result.model_validate({"status": "diverged"}).write(grid / "row" / "seed0")
    killed, earlier = RunFolder(grid / "row" / "seed5"), datetime.now(UTC) - timedelta(seconds=61)
    killed.status.model_copy(update={"heartbeat": earlier}).write(killed.path)
    assert show([grid], watch=True) == 0
    assert "4 runs: 1 dead, 1 failed, 1 diverged, 1 finished" in capsys.readouterr().out


def test_watching_ends_if_nobody_trains_what_waits(
    grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepnets.runs.status.STALLED_SECONDS", -1.0)
    Result.model_validate({"status": "diverged"}).write(grid / "row" / "seed5")
    ended = RunFolder(grid / "row" / "seed15")
    ended.status.model_copy(update={"job": "7_0"}).write(ended.path)  # a job of SLURM trained it
    assert show([grid], watch=True) == 0  # the first run waits
    assert "4 runs: 1 waiting, 1 failed, 1 diverged, 1 finished" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_shows_states(grid: Path) -> None:
    done = call("report.py", str(grid), "--status")
    assert done.returncode == 0, done.stderr
    assert "1 waiting, 1 running, 1 failed, 1 finished" in done.stdout


def test_a_place_without_runs_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder in it"):
        show([tmp_path], watch=False)


def test_a_folder_named_twice_is_shown_once_and_one_that_is_not_there_is_told(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show([grid, grid / "row"], watch=False)
    assert "4 runs:" in capsys.readouterr().out
    with pytest.raises(UserError, match="no such folder"):
        show([grid, grid / "typo"], watch=False)
