"""Signals: noted, raised before there is something to save, and not lost while nobody can note them."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepnets.distributed.signals import SIGNALS, Interrupted, Interruption, block_signals
from deepnets.runs import execute
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.training.fit import Training
from tests.command import ENVIRONMENT, ROOT, row


@pytest.fixture(autouse=True)
def hangup_acts() -> Iterator[None]:
    """As in a terminal; whoever started the tests by nohup has it ignored, and so it stays."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption() as interruption:
        assert interruption.received is None
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        assert interruption.received == number
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_second_ctrl_c_acts_as_always_except_with_a_parent() -> None:
    with Interruption():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption(has_parent=True) as interruption:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)  # after it has ended, too
    assert interruption.received == signal.SIGINT
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_ctrl_c_that_an_import_swallows_stops_the_command_before_its_next_run() -> None:
    script = """
import signal
from deepnets.command import run_command
from deepnets.distributed.signals import Interruption

def command():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("swallowed")
    with Interruption():
        print("trains")
    return 0

run_command(command)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (130, "swallowed\n")
    assert done.stderr.startswith("Stopped. ")


def test_while_there_is_nothing_to_save_a_signal_ends_the_run_at_once() -> None:
    with Interruption(at_once=True) as interruption:
        with pytest.raises(Interrupted) as stop:
            signal.raise_signal(signal.SIGUSR1)
        assert stop.value.exit_code == 138
        assert str(stop.value) == "SIGUSR1"
        interruption.at_once = False
        signal.raise_signal(signal.SIGTERM)


def test_what_was_held_back_is_noted() -> None:
    block_signals()
    signal.raise_signal(signal.SIGTERM)
    with Interruption() as interruption:
        assert interruption.received == signal.SIGTERM
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_stopped_command_says_what_is_saved_and_never_to_overwrite_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_late: bool
) -> None:
    train = execute.train

    def stopped(executions: list[execute.Execution], steps: Iterator[Training], interruption: Interruption) -> None:
        if is_late:
            train(executions, steps, interruption)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(execute, "train", stopped)
    monkeypatch.setattr(sys, "argv", ["train.py", "overwrite=true"])
    folder = RunFolder(tmp_path)
    folder.freeze(row(tmp_path, "epochs=1", "model.depth=8", "model.widths=[2,2,2]").config, Origin())
    with pytest.raises(Interrupted):
        execute.run(folder)
    again = "Run the same command again, without overwrite=true, to resume"
    said = f"{folder} is finished. {again}.\n" if is_late else f"{folder} is saved. {again}, or\npython -m deepnets.run"
    assert said in capsys.readouterr().err
    if not is_late:
        monkeypatch.setattr(sys, "argv", ["deepnets/run.py", str(folder)])
        with pytest.raises(Interrupted):
            execute.run(folder)
        assert f"{folder} is saved. To resume it, type\npython -m deepnets.run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_signal_while_torch_is_imported_ends_the_command_as_a_later_one_does(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.freeze(row(tmp_path, "epochs=1").config, Origin())
    command = [sys.executable, "-m", "deepnets.run", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
    while not is_held_back(process.pid, signal.SIGINT):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "SIGINT" in told
    assert "Traceback" not in told
    assert not (tmp_path / "result.json").exists()


def is_held_back(pid: int, number: signal.Signals) -> bool:
    """Whether the process lets the signal wait."""
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1]
    return bool(int(blocked, 16) >> (number - 1) & 1)
