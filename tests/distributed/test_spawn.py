"""Several processes of this machine: which of them is named, and what ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepnets.distributed.signals import SIGNALS
from deepnets.distributed.spawn import Forked, ForkServer, ServerEnded, how_it_ended, processes

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


# Notes what the process is, and then does as its argument says. It counts its threads after a product, for which OpenMP
# starts as many as it may.
FORKED = """
import json, os, signal, sys, time
import numpy as np
import torch
from deepnets.distributed import spawn
from deepnets.distributed.signals import SIGNALS
server = os.getpid()
if sys.argv[1] == spawn.SERVE:
    sys.argv[1:] = spawn.serve(*sys.argv[2:])
torch.rand(1000, 1000) @ torch.rand(1000, 1000)
print(json.dumps({
    "arguments": sys.argv[1:], "server": server, "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(),
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": torch.get_num_threads(), "drawn": np.random.rand(),
    "processors": len(os.listdir("/proc/self/task")),
    "blocked": set(SIGNALS) <= signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "files": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
}), flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
if sys.argv[1] == "wait":
    time.sleep(600)
os.kill(os.getpid(), -int(sys.argv[1])) if sys.argv[1].startswith("-") else sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer([sys.executable, "-c", FORKED], {**os.environ, "OMP_NUM_THREADS": "2"}) as server:
        yield server


def forked(server: ForkServer, output: Path, *arguments: str, **variables: str) -> tuple[Forked, dict]:
    """Starts a process and waits until it has noted what it is."""
    process = server.start(arguments, variables, output)
    wait_for(output)
    return process, json.loads(output.read_text().splitlines()[0])


def test_a_fork_is_like_a_new_process(tmp_path: Path, server: ForkServer) -> None:
    process, fork = forked(server, tmp_path / "a", "0", "word", CUDA_VISIBLE_DEVICES="7")
    assert process.wait() == process.returncode == 0
    assert (fork["pid"], fork["parent"]) == (process.pid, fork["server"])
    assert fork["arguments"] == ["0", "word"]
    assert fork["group"] == process.pid
    assert fork["gpus"] == "7"
    assert fork["blocked"]
    assert fork["files"] == ["/dev/null", *[str(tmp_path / "a")] * 2]
    assert fork["threads"] == fork["processors"] == 2
    _, other = forked(server, tmp_path / "b", "0")
    assert other["server"] == fork["server"]
    assert other["gpus"] == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert other["drawn"] != fork["drawn"]
    assert len(os.listdir(f"/proc/{fork['server']}/task")) == 1


def test_a_fork_with_other_threads_than_its_server_begins_anew(tmp_path: Path, server: ForkServer) -> None:
    process, fork = forked(server, tmp_path / "a", "3", OMP_NUM_THREADS="1")
    assert process.wait() == 3
    assert fork["server"] == fork["pid"] == process.pid != fork["parent"]
    assert fork["threads"] == fork["processors"] == 1
    assert fork["arguments"] == ["3"]


def test_a_fork_that_crashes_or_is_killed_leaves_the_others(tmp_path: Path, server: ForkServer) -> None:
    living, _ = forked(server, tmp_path / "living", "wait")
    killed, _ = forked(server, tmp_path / "killed", "wait")
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.send_signal(signal.SIGTERM)  # too late, and no error
    assert forked(server, tmp_path / "crashed", f"-{int(signal.SIGSEGV)}")[0].wait() == -signal.SIGSEGV
    assert living.poll() is None
    living.send_signal(signal.SIGTERM)
    assert living.wait() == 143


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    with pytest.raises(OSError, match="symbolic link"):
        server.start(["0"], {}, tmp_path / "a")


def test_a_server_that_is_killed_ends_its_forks_and_is_named(tmp_path: Path) -> None:
    with ForkServer([sys.executable, "-c", FORKED], os.environ) as server:
        process, fork = forked(server, tmp_path / "a", "wait")
        os.kill(fork["server"], signal.SIGKILL)
        with pytest.raises(ServerEnded, match=r"killed by SIGKILL.*the runs in flight save"):
            process.wait()
        wait_until_gone(process.pid)


@pytest.mark.slow
def test_the_death_of_the_command_ends_server_and_forks(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from deepnets.distributed.spawn import ForkServer
server = ForkServer([sys.executable, "-c", Path({str(tmp_path / "program")!r}).read_text()], os.environ)
server.start(["wait"], {{}}, Path({str(tmp_path / "a")!r})).wait()
"""
    (tmp_path / "program").write_text(FORKED)
    command = subprocess.Popen([sys.executable, "-c", program])
    wait_for(tmp_path / "a")
    fork = json.loads((tmp_path / "a").read_text())
    command.kill()
    command.wait()
    wait_until_gone(fork["server"])
    wait_until_gone(fork["pid"])


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while (status := Path(f"/proc/{pid}/stat")).exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
