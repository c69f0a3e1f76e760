"""A grid over a pool of devices: real processes, of which some are stopped and some are killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from deepnets.config.trust import trusting
from deepnets.distributed.spawn import ForkServer
from deepnets.errors import UserError
from deepnets.launch.grid import OUTPUT, launch
from deepnets.launch.pool import Pool, Slots, devices_of, note_crash
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin
from deepnets.runs.execute import COMMAND, arguments_of
from deepnets.runs.folder import RunFolder
from deepnets.runs.naming import folders_of
from deepnets.runs.status import show, state_of
from tests.command import ENVIRONMENT, ROOT, TRAIN, metrics, row
from tests.paced import TRUST

pytestmark = pytest.mark.slow

GRID = ["-m", "seed=range(8)", "model.depth=8", "model.widths=[4,4,4]", "epochs=3", "device=cpu", "precision=fp32"]
GRID += ["schedule=cosine", "schedule._target_=tests.paced.Paced", "+schedule.name=a"]
GRID += ["launcher=pool", "launcher.runs_per_device=2"]


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


class Grid:
    """The same command again and again, and the folders it fills; its rows do not end while `slow` is there."""

    def __init__(self, root: Path) -> None:
        self.root, self.slow = root, root / "slow"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        self.slow.touch()
        # Two threads for two slots; a group of its own, as a terminal gives it.
        environment = {**ENVIRONMENT, "PACE": str(self.root), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
        self.process = subprocess.Popen(
            [*TRAIN, TRUST, *GRID, f"output_root={self.root / 'outputs'}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            process_group=0,
        )
        return self.process

    def folder(self, seed: int) -> RunFolder:
        (folder,) = self.root.glob(f"outputs/runs/*/seed{seed}")
        return RunFolder(folder)

    def states(self) -> list[str]:
        return [state_of(self.folder(seed)).name for seed in range(8)]

    def in_flight(self, count: int) -> dict[int, int]:
        """Waits until so many rows train; the process of each by its seed."""

        def training() -> dict[int, int]:
            found = {}
            for path in self.root.glob("outputs/runs/*/*"):
                status = RunFolder(path).status
                if status and status.state == "running" and is_alive(status.pid):
                    found[int(path.name.removeprefix("seed"))] = status.pid
            return found

        until(lambda: len(training()) == count or self.process.poll() is not None)
        return training()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    grid = Grid(tmp_path_factory.mktemp("pool"))
    yield grid
    if grid.process and grid.process.poll() is None:
        grid.process.kill()
        grid.process.communicate()


@pytest.mark.nightly
def test_a_grid_is_stopped_killed_and_continued(grid: Grid) -> None:
    one_ctrl_c_saves_the_rows_in_flight_and_starts_no_other(grid)
    a_row_that_is_killed_fails_alone_and_the_others_finish(grid)
    the_death_of_the_pool_ends_its_rows_which_save(grid)


def one_ctrl_c_saves_the_rows_in_flight_and_starts_no_other(grid: Grid) -> None:
    process = grid.start()
    pids = grid.in_flight(2)
    assert sorted(pids) == [0, 1], process.communicate()
    assert grid.states() == ["running"] * 2 + ["waiting"] * 6
    os.killpg(process.pid, signal.SIGINT)
    told, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert grid.states() == ["stopped"] * 2 + ["waiting"] * 6
    assert not any(map(is_alive, pids.values()))
    assert "SIGINT" in errors
    assert "Traceback" not in told + errors + (grid.folder(0).path / "output.txt").read_text()
    assert re.findall(r"^seed\d +(\w+)", told.replace(" seed", "seed"), re.MULTILINE) == grid.states()


def a_row_that_is_killed_fails_alone_and_the_others_finish(grid: Grid) -> None:
    process = grid.start()
    pids = grid.in_flight(2)
    assert sorted(pids) == [0, 1], process.communicate()
    assert Path(f"/proc/{pids[0]}/environ").read_bytes().split(b"\0").count(b"OMP_NUM_THREADS=1") == 1
    os.kill(pids[0], signal.SIGKILL)
    grid.slow.unlink()
    told, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    assert grid.states() == ["failed"] + ["finished"] * 7
    result = grid.folder(0).result
    assert (result.status, result.reason) == ("failed", "killed by SIGKILL, as the system does when memory runs out")
    assert (grid.folder(0).path / "log.txt").read_text().endswith(result.reason + "\n")
    assert "1 of 8 runs failed" in errors
    assert f"{grid.folder(0)}: killed by SIGKILL" in errors
    for seed in (0, 1):
        assert "resuming at iteration" in (grid.folder(seed).path / "output.txt").read_text()
    for seed in range(1, 8):
        assert grid.folder(seed).result.threads == 1
    # Never more than two at once: a third starts when one has ended.
    starts = [line for line in told.splitlines() if line.startswith("[") or ": finished" in line]
    running = 0
    for line in [*starts[:2], "killed", *starts[2:]]:
        running += 1 if line.startswith("[") else -1
        assert 0 <= running <= 2, told
    assert Counter(line.startswith("[") for line in starts) == {True: 8, False: 7}


def the_death_of_the_pool_ends_its_rows_which_save(grid: Grid) -> None:
    process = grid.start()
    pids = grid.in_flight(1)
    assert sorted(pids) == [0], process.communicate()  # the failed row is tried again, the finished ones are not
    process.kill()
    told, _ = process.communicate()
    assert "7 of 8 runs already finished" in told
    until(lambda: not is_alive(pids[0]))
    assert grid.states() == ["stopped"] + ["finished"] * 7


def test_fail_fast_stops_the_rows_in_flight_and_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "slow").touch()
    (tmp_path / "broken_b").touch()
    settings = [word for word in GRID[2:] if "schedule.name" not in word]
    rows = [row(tmp_path / "outputs", *settings, f"+schedule.name={name}", "fail_fast=true") for name in "abc"]
    # The check of row b passes, as that of a row does which fails only where it runs.
    monkeypatch.setattr("tests.paced.Paced.__call__", lambda schedule, iteration: 1.0)
    assert launch(rows) == 1
    states = [state_of(folder) for folder in folders_of(rows)]
    assert (states[1].name, states[1].reason) == ("failed", "RuntimeError: b is broken")
    assert states[0].name in ("stopped", "waiting")  # as far as it had come
    assert states[2].name == "waiting"
    assert "1 of 3 runs failed" in capsys.readouterr().err


def test_runs_of_a_pool_have_the_bits_and_threads_of_runs_alone(tmp_path: Path) -> None:
    words = ["model.depth=8", "model.widths=[4,4,4]", "model/shortcut=dropout_inverted", "epochs=3", "device=cpu"]
    rows = [row(tmp_path, *words, f"seed={seed}", "launcher=pool", "launcher.runs_per_device=2") for seed in range(3)]
    assert launch(rows) == 0
    alone = [RunFolder(tmp_path / f"alone{seed}") for seed in range(3)]
    for each, folder in zip(rows, alone, strict=True):
        folder.freeze(each.config, Origin())
        subprocess.run([*COMMAND, str(folder)], check=True, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    pooled = folders_of(rows)
    assert [folder.result.threads for folder in pooled] == [1] * 3
    weights = [folder.result.weights_sha256 for folder in pooled]
    assert weights == [folder.result.weights_sha256 for folder in alone]
    assert len(set(weights)) == 3
    assert [metrics(folder.path) for folder in pooled] == [metrics(folder.path) for folder in alone]


def test_what_the_server_imports_asks_cuda_for_nothing_and_starts_no_thread() -> None:
    """Otherwise its forks could not use a GPU, nor choose one."""
    program = """
import os, torch
from importlib import import_module
torch._C._cuda_getDeviceCount = torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = None
from deepnets.launch.pool import ALWAYS, HEAVY
for module in ("deepnets.run", *ALWAYS, *HEAVY):
    import_module(module)
assert len(os.listdir("/proc/self/task")) == 1
"""
    subprocess.run([*COMMAND[:1], "-c", program], check=True, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})


def test_runs_of_two_devices_are_the_runs_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the same names, with the status and in the column of the sweep's own protocol."""
    words = ["sweep=digits_shortcuts", "model/shortcut=identity", "launcher=pool", "device=cpu", "threads=2"]
    rows = [row(tmp_path, *words, f"devices={devices}", f"seed={seed}") for seed, devices in enumerate((2, 1))]
    for each in rows:  # as the sweep's file would set it: what is typed would be part of the name
        each.config.model |= {"depth": 8, "widths": [4, 4, 4]}
        each.config.epochs = 2
    assert launch(rows) == 0
    folders = folders_of(rows)
    assert {folder.path.parent for folder in folders} == {tmp_path / "digits_shortcuts" / "identity"}
    file = tmp_path / "digits_shortcuts" / "digits_shortcuts.yaml"
    file.write_text(file.read_text().replace("epochs: 10", "epochs: 2"))
    assert [folder.result.processes for folder in folders] == [{"0": 2}, {"0": 1}]
    assert show([tmp_path], watch=False) == 0
    assert capsys.readouterr().out.count("finished") >= 2
    (table,) = tables_of(read_runs([tmp_path]), project_sweeps=file.parent)
    (column,) = table.columns
    assert (column.label, column.is_published_protocol) == ("full", True)
    assert len(table.cells["identity", 0].errors) == 2


@pytest.mark.nightly
def test_runs_of_two_devices_are_stopped_and_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """By Ctrl-C, then by SIGTERM to the pool alone; what waits meanwhile is trained in the end."""
    words = ["model.depth=8", "model.widths=[4,4,4]", "epochs=60", "device=cpu", "devices=2", "threads=2"]
    words += ["model/shortcut=dropout_inverted", "checkpoint_seconds=1000", "launcher=pool"]
    assert launch([row(tmp_path / "undisturbed", *words)]) == 0
    (twin,) = (tmp_path / "undisturbed").glob("runs/*/seed0")
    folders = [tmp_path / "stopped" / twin.relative_to(tmp_path / "undisturbed").with_name(f"seed{n}") for n in (0, 1)]
    command = [*TRAIN, "-m", "seed=0,1", *words, f"output_root={tmp_path / 'stopped'}"]
    for number in (signal.SIGINT, signal.SIGTERM):
        stopped_after_an_epoch(command, folders[0], number)
        assert [state_of(RunFolder(folder)).name for folder in folders] == ["stopped", "waiting"]
    process = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert process.returncode == 0, process.stderr
    assert (folders[0] / "output.txt").read_text().count("resuming at iteration") == 2
    assert [RunFolder(folder).result.processes for folder in folders] == [{"0": 2}] * 2
    assert metrics(folders[0]) == metrics(twin)
    assert len(metrics(folders[1])) == 60
    weights, expected = (checkpoint.load(folder)[0]["training"]["model"] for folder in (folders[0], twin))
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


def stopped_after_an_epoch(command: list[str], folder: Path, number: signal.Signals) -> None:
    """`command`, stopped when the run in `folder` has completed an epoch more than before."""
    before = epochs_of(folder)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT, process_group=0
    )
    until(lambda: process.poll() is not None or epochs_of(folder) > before)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + number, told
    assert "Traceback" not in told + (folder / "output.txt").read_text()
    assert before < epochs_of(folder) < 60


def epochs_of(folder: Path) -> int:
    """How many are written down."""
    return len(metrics(folder)) if (folder / "metrics.csv").is_file() else 0


def test_a_run_of_several_gpus_takes_a_share_of_each() -> None:
    slots = Slots(["3", "5", "7"], per_device=1)
    first, second = slots.take(2), slots.take(1)
    assert (first, second) == (["3", "5"], ["7"])
    assert slots.environment(first)["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert slots.take(1) == slots.take(3) == []
    slots.release(second)
    assert slots.take(2) == []
    slots.release(first)
    assert sorted(slots.take(3)) == ["3", "5", "7"]


def test_only_gpus_that_cuda_shows_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for shown, expected in (("0,1,7", ["0", "1"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"]), (None, ["0", "1"])):
        if shown:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        else:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert devices_of("auto") == expected


def test_code_is_compiled_with_the_threads_of_the_run() -> None:
    slots = Slots(["0", "1"], per_device=1)
    environment = slots.environment(slots.take(1))
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == environment["OMP_NUM_THREADS"]


def test_several_runs_share_a_device_and_the_least_used_comes_first() -> None:
    slots = Slots(["0", "1"], per_device=2)
    assert [slots.take(1) for _ in range(4)] == [["0"], ["1"], ["0"], ["1"]]
    assert slots.take(1) == []


def test_a_cpu_trains_a_run_for_each_of_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    slots = Pool(runs_per_device=None, retry=None).slots("cpu")
    taken = [slots.take(1) for _ in range(4)]
    assert taken == [[None], [None], [None], []]
    assert slots.environment(taken[0])["OMP_NUM_THREADS"] == "1"
    few = Pool(runs_per_device=2, retry=None).slots("cpu")
    assert [few.take(1) for _ in range(3)] == [[None], [None], []]


def test_what_a_pool_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device=cuda:7: not on this machine"):
        Pool(runs_per_device=1, retry=None).check(row(tmp_path, "device=cuda:7").config)
    Pool(runs_per_device=1, retry=None).check(row(tmp_path, "device=cpu", "devices=2").config)


def test_output_of_a_run_that_dies_early_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.freeze(row(tmp_path, "device=cpu").config, Origin())
    (folder.path / "config.yaml").write_text("epochs: [")
    with ForkServer(COMMAND, os.environ) as server:
        status = server.start(arguments_of(folder), {}, folder.path / OUTPUT).wait()
    assert status == 1
    reason = note_crash(folder, status)
    assert reason.startswith("ended with exit code 1: ")
    assert json.loads((folder.path / "result.json").read_text()) == {"status": "failed", "reason": reason}


@pytest.mark.nightly
def test_rows_go_on_when_the_reader_of_the_output_leaves(tmp_path: Path) -> None:
    short = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "device=cpu", "precision=fp32", "seed=range(3)"]
    command = shlex.join([*TRAIN, "-m", *short, "launcher=pool", f"output_root={tmp_path}"])
    subprocess.run(f"{command} | head -1", shell=True, check=True, env=ENVIRONMENT, capture_output=True)
    states = [state_of(RunFolder(path)).name for path in tmp_path.glob("runs/*/seed*")]
    assert states == ["finished"] * 3
