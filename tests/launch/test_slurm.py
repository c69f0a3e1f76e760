"""Grids on a real SLURM, which runs on this machine alone: see one_node_slurm.sh."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from deepnets.config.compose import register
from deepnets.config.schema import Row
from deepnets.config.trust import trusting
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.launch.slurm import Slurm
from deepnets.results.read import read_runs
from deepnets.results.table import tables_of
from deepnets.runs import checkpoint, jobs
from deepnets.runs.contents import FAILED, Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import DEAD, STOPPED, read_states, show, state_of
from tests.command import ROOT, metrics, row
from tests.paced import TRUST
from tests.slurm import (
    NET,
    PATIENCE,
    SLURM,
    answer,
    ending,
    folder_of,
    job,
    launched,
    once,
    queue,
    slurm,
    start_again,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


OPTIONS = {"partition": None, "account": None, "time": None, "nodes": 1, "gpus": None, "cpus": None}
OPTIONS |= {
    "runs_per_task": None,
    "setup": None,
    "at_once": None,
    "warning": 120,
    "options": None,
    "wait": False,
    "retry": None,
    "report": False,
}


TWINS = {1: "t", 2: "s"}  # undisturbed, by the number of devices: sums of two processes round otherwise


def six_rows(root: Path, pace: Path) -> dict[str, Any]:
    """A grid is submitted, its YAML edited, and the command repeated while it is held, after a failure, and at once."""
    facts: dict[str, Any] = {}
    for part in ("conf", "deepnets", "scripts"):
        shutil.copytree(ROOT / part, root / "tree" / part)
    answer("sbatch", "--hold", "--wrap=true")  # not one of ours
    outputs, grid = root / "outputs", "abcdef"
    changes = ["epochs=2", f"output_root={outputs}", f"+schedule.name={','.join(grid)}", "launcher.options={hold:true}"]
    command = [sys.executable, "scripts/train.py", TRUST, "-m", *NET, *SLURM, *changes]
    master = subprocess.Popen(
        [*command, "launcher.wait=true"],
        cwd=root / "tree",
        env={**os.environ, "PYTHONPATH": f"{root / 'tree'}:{ROOT}"},  # the jobs take it over
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [*takewhile(lambda line: not line.startswith("status"), master.stdout), master.stdout.readline()]
    master.send_signal(signal.SIGINT)
    facts["waiting"] = "".join(lines) + master.communicate(timeout=PATIENCE)[0]
    facts["waiting_code"] = master.returncode
    facts["held"] = queue()
    facts["held_states"] = [state_of(RunFolder(folder_of(outputs, name))).name for name in grid]

    optimizer = root / "tree" / "conf" / "optimizer" / "sgd.yaml"
    optimizer.write_text(optimizer.read_text().replace("lr: 0.1", "lr: 0.2"))
    register()
    with initialize_config_dir(str(root / "tree" / "conf"), version_base="1.3"):
        facts["edited"] = compose("train").optimizer.lr

    facts["again"] = launched(outputs, grid, "epochs=2")
    (pace / "broken_f").touch()
    array = job(folder_of(outputs, "a")).split("_")[0]
    answer("scontrol", "release", array)
    facts["followed"] = launched(outputs, grid, "epochs=2", "launcher.wait=true")
    facts["endings"] = [ending(job(folder_of(outputs, name))) for name in grid]
    facts["log_of_f"] = (folder_of(outputs, "f") / "log.txt").read_text()

    (pace / "broken_f").unlink()
    facts["failed"] = launched(outputs, grid, "epochs=2")
    folders = [RunFolder(folder_of(outputs, name)) for name in grid]
    config = row(outputs, *NET, *SLURM, "launcher.retry=failed").config
    options = {key: value for key, value in config.launcher.items() if key != "_target_"}
    with ThreadPoolExecutor() as parents, redirect_stdout(StringIO()) as printed:
        both = [parents.submit(Slurm(**options).execute, dict.fromkeys(folders, config)) for _ in range(2)]
        facts["two_codes"] = [parent.result() for parent in both]
    facts["two_parents"] = printed.getvalue()
    facts["retried"] = launched(outputs, grid, "epochs=2", "launcher.wait=true")

    launched(outputs, "i", "epochs=2", "launcher.options={hold:true}")
    unreadable = folder_of(outputs, "i")
    first = job(unreadable)
    answer("scancel", first)
    until(lambda: first not in queue(), "it is cancelled")
    jobs.forget_answers()
    (cancelled,) = read_states([RunFolder(unreadable)]).values()
    facts["cancelled"] = [cancelled.name, cancelled.reason]
    Result(status=FAILED, reason="of an earlier attempt", job=first).write(unreadable)
    launched(outputs, "i", "epochs=2", "launcher.retry=failed", "launcher.options={hold:true}")
    i = job(unreadable)
    (unreadable / "config.yaml").write_text("")
    answer("scontrol", "release", i)
    (pace / "broken_g").touch()
    facts["fail_fast"] = launched(
        outputs, "gh", "epochs=2", "launcher.at_once=1", "fail_fast=true", "launcher.wait=true", "launcher.gpus=2"
    )
    task = job(folder_of(outputs, "h"))
    until(lambda: not queue(), "all end")
    state = state_of(RunFolder(unreadable))
    facts["i"] = [ending(i), state.name, state.reason]
    facts["h"] = [ending(task), answer("scontrol", "show", "job", task)]
    return facts


EXTRAS = {"k": ["checkpoint_seconds=1"], "m": ["devices=2"], "r": ["devices=2"]}  # of w, p and l none
EXTRAS["n"] = ["devices=2", "launcher.nodes=2", "launcher.partition=two"]


def stopped(root: Path, pace: Path, names: str, twins: str) -> dict[str, Any]:
    """Warned (w, r), preempted (p, n), at the time limit (l, m), killed (k), all slowly; and undisturbed."""
    run = ["epochs=12", "batch_size=256", "checkpoint_seconds=1000"]  # a slow machine takes long to start them
    train = [sys.executable, "scripts/train.py", TRUST, *NET, *run, f"output_root={root}"]
    environment = {**os.environ, "PACE": str(root)}
    undisturbed = [
        subprocess.Popen([*train, f"+schedule.name={name}", f"devices={devices}"], cwd=ROOT, env=environment)
        for devices, name in TWINS.items()
        if name in twins
    ]
    (pace / "slow").touch()
    for name in names:
        launched(root, name, *run, *EXTRAS.get(name, []))
    folders = {name: folder_of(root, name) for name in names}
    saved = {name: folder for name, folder in folders.items() if name != "k"}
    facts: dict[str, Any] = {}

    for folder in folders.values():
        until(lambda folder=folder: (folder / "metrics.csv").is_file(), f"{folder} has an epoch")
    for name, folder in saved.items():
        if name in "lm":  # in one to two minutes, of which the warning comes two before
            elapsed = time.time() - (folder / "job.json").stat().st_mtime
            answer("scontrol", "update", f"jobid={job(folder)}", f"TimeLimit={int(elapsed / 60) + 2}")
        elif name in "wr":
            answer("scancel", "--batch", "--signal=USR1", job(folder))
        else:
            answer("scontrol", "requeue", job(folder))  # what SLURM does when another job takes the node
    if killed := folders.get("k"):
        until((killed / "checkpoint.pt").is_file, "the first checkpoint")
        os.kill(json.loads((killed / "status.json").read_text())["pid"], signal.SIGKILL)
        until(lambda: job(killed) not in queue(), "the killed one ends")
        facts["killed"] = [ending(job(killed)), state_of(RunFolder(killed), dead_after=0).name]
        facts["resubmitted"] = launched(root, "k", *run, *EXTRAS["k"])
    for folder in saved.values():
        until(lambda folder=folder: state_of(RunFolder(folder)).name == STOPPED, f"{folder} is saved")
    (pace / "slow").unlink()
    for name, folder in saved.items():
        if name == "r":
            facts["reduced"] = launched(root, "r", *run, "devices=auto")
        start_again(job(folder), "TimeLimit=10")
    until(lambda: not queue(), "all end")
    facts["endings"] = [ending(job(folder)) for folder in saved.values()]
    assert {process.wait(timeout=PATIENCE) for process in undisturbed} == {0}
    return facts


def stopped_by_hand(root: Path, pace: Path) -> dict[str, Any]:
    return stopped(root, pace, "wpk", "t")


def stopped_by_the_clock_or_on_two_devices(root: Path, pace: Path) -> dict[str, Any]:
    return stopped(root, pace, "lmnr", "ts")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, six_rows)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, stopped_by_hand)


@pytest.fixture(scope="module")
def by_clock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, stopped_by_the_clock_or_on_two_devices)


def test_a_grid_becomes_one_array_and_ctrl_c_leaves_it(grid: dict[str, Any]) -> None:
    assert grid["waiting_code"] == 130
    array = next(iter(grid["held"])).split("_")[0]
    assert "6 of 6 runs submitted; 0 already in the queue" in grid["waiting"]
    assert f"cancel  scancel {array}\n" in grid["waiting"]
    assert f"cancel them: scancel {array}\n" in grid["waiting"]
    assert grid["held"] == {f"{array}_{task}": "PENDING JobHeldUser" for task in range(6)}
    assert grid["held_states"] == ["queued"] * 6


def test_a_cancelled_run_is_not_queued(grid: dict[str, Any]) -> None:
    assert grid["cancelled"] == ["cancelled", "before it began"]


def test_yaml_edited_meanwhile_does_not_reach_queued_rows(grid: dict[str, Any]) -> None:
    assert grid["edited"] == 0.2
    assert str(grid["root"] / "outputs/runs/.code/deepnets-") in grid["log_of_f"]  # a copy is what the jobs ran
    for name in "abcdef":
        assert [epoch["learning_rate"] for epoch in metrics(folder_of(grid["root"] / "outputs", name))] == [
            "0.1",
            "0.1",
        ]


def test_a_row_that_fails_fails_in_slurm_and_only_it(grid: dict[str, Any]) -> None:
    code, printed = grid["followed"]
    assert code == 1
    assert "1 of 6 runs failed" in printed
    assert "RuntimeError: f is broken" in printed
    assert grid["endings"] == ["COMPLETED 0:0 0"] * 5 + ["FAILED 1:0 0"]
    assert "Traceback" in grid["log_of_f"]


def test_the_same_command_again_leaves_alone_what_is_queued_complete_or_failed(grid: dict[str, Any]) -> None:
    code, printed = grid["again"]
    assert code == 0
    assert "0 of 6 runs submitted; 6 already in the queue" in printed
    code, printed = grid["failed"]
    assert code == 1
    assert "0 of 6 runs submitted; 0 already in the queue, 0 running elsewhere, 1 failed before, 5 complete" in printed


def test_of_two_parents_at_once_one_submits_what_failed(grid: dict[str, Any]) -> None:
    assert grid["two_codes"] == [0, 0]
    assert grid["two_parents"].count("1 of 6 runs submitted; 0 already in the queue") == 1
    assert grid["two_parents"].count("0 of 6 runs submitted; 1 already in the queue") == 1
    assert grid["retried"][0] == 0
    assert len(metrics(folder_of(grid["root"] / "outputs", "f"))) == 2


def test_fail_fast_cancels_what_has_not_started(grid: dict[str, Any]) -> None:
    code, printed = grid["fail_fast"]
    assert code == 1
    assert "g is broken" in printed
    assert re.search("2 of 2 runs failed\n.*: RuntimeError: g is broken\n.*: cancelled", printed)
    assert grid["h"][0].startswith("CANCELLED")


def test_a_row_that_cannot_even_start_is_noted_as_failed(grid: dict[str, Any]) -> None:
    assert grid["i"] == ["FAILED 1:0 0", FAILED, "exit code 1; see output.txt"]


def test_a_row_asks_for_gpus(grid: dict[str, Any]) -> None:
    assert "TresPerNode=gres:gpu:2" in grid["h"][1]


def assert_resumed_as_undisturbed(root: Path, name: str, devices: int) -> None:
    folder, twin = (folder_of(root, which) for which in (name, TWINS[devices]))
    assert "resuming at iteration" in (folder / "log.txt").read_text()
    assert metrics(folder) == metrics(twin)
    assert len(metrics(folder)) == 12
    ours, theirs = (checkpoint.load(path)[0]["training"]["model"] for path in (folder, twin))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["w", "p", "k"], ids=["warned", "preempted", "killed"])
def test_a_row_that_was_stopped_ends_bit_by_bit_as_undisturbed(by_hand: dict[str, Any], name: str) -> None:
    assert_resumed_as_undisturbed(by_hand["root"], name, 1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "devices"),
    [("l", 1), ("m", 2), ("n", 2)],
    ids=["time limit", "time limit, two devices", "two nodes"],
)
def test_a_row_at_its_limit_or_on_two_devices_does_too(by_clock: dict[str, Any], name: str, devices: int) -> None:
    assert_resumed_as_undisturbed(by_clock["root"], name, devices)


@pytest.mark.nightly
def test_a_row_that_is_queued_again_goes_on_with_fewer_devices(by_clock: dict[str, Any]) -> None:
    """As the same command with devices=auto, one on a CPU, says while it is queued; it ends as undisturbed."""
    assert "0 of 1 runs submitted; 1 already in the queue" in by_clock["reduced"][1]
    folder, twin = RunFolder(folder_of(by_clock["root"], "r")), folder_of(by_clock["root"], TWINS[1])
    processes = folder.result.processes
    assert list(processes.values()) == [2, 1]
    _, since = processes
    assert f"number of processes: 2 from iteration 0, 1 from iteration {since}" in (folder.path / "log.txt").read_text()
    for epoch, expected in zip(metrics(folder.path)[:8], metrics(twin)[:8], strict=True):  # later, rounding grows
        assert float(epoch["train_loss"]) == pytest.approx(float(expected["train_loss"]), rel=0.02)
    assert by_clock["endings"] == ["COMPLETED 0:0 1"] * 4


def test_what_saved_itself_is_queued_again_and_what_was_killed_is_submitted_again(by_hand: dict[str, Any]) -> None:
    assert by_hand["endings"] == ["COMPLETED 0:0 1"] * 2
    assert by_hand["killed"] == ["FAILED 137:0 0", DEAD]
    assert "1 of 1 runs submitted" in by_hand["resubmitted"][1]


def of_sweep(root: Path, seed: int, *changes: str) -> Row:
    """A run of a sweep; what its file would set is set here, as what is typed would be part of the name."""
    words = ["sweep=digits_shortcuts", "model/shortcut=identity", "device=cpu", "devices=2", f"seed={seed}"]
    each = row(root, *words, "checkpoint_seconds=1000", *changes)
    each.config.model |= {"depth": 8, "widths": [4, 4, 4]}
    each.config.epochs, each.config.batch_size = 8, 256
    each.config.schedule = {"_target_": "tests.paced.Paced", "name": "sweep"}
    return each


@pytest.mark.nightly
def test_a_sweep_of_two_devices_has_the_names_states_data_and_report_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, local = tmp_path / "slurm", tmp_path / "local"
    with slurm() as pace:
        (pace / "slow").touch()
        rows = [of_sweep(root, seed, *SLURM, "launcher.options={hold:true}") for seed in (0, 1)]
        assert launch(rows) == 0
        stopped, other = (RunFolder(root / "digits_shortcuts" / "identity" / f"seed{seed}") for seed in (0, 1))
        assert [state_of(folder).name for folder in (stopped, other)] == ["queued"] * 2
        answer("scontrol", "release", job(stopped.path).split("_")[0])
        until((stopped.path / "metrics.csv").is_file, "an epoch")
        assert state_of(stopped).name == "running"
        answer("scancel", "--batch", "--signal=USR1", job(stopped.path))
        until(lambda: state_of(stopped).name == STOPPED, "it is saved")
        (pace / "slow").unlink()
        start_again(job(stopped.path))
        until(lambda: not queue(), "all end")
        assert launch([of_sweep(local, 0)]) == 0
    capsys.readouterr()
    assert show([root], watch=False) == 0
    assert capsys.readouterr().out.count("finished") >= 2
    assert stopped.result.processes == {"0": 2}
    assert "resuming at iteration" in (stopped.path / "log.txt").read_text()
    assert metrics(stopped.path) == metrics(local / "digits_shortcuts" / "identity" / "seed0")
    (table,) = tables_of(read_runs([root]))
    (column,) = table.columns
    assert (column.label, column.is_published_protocol) == ("full", True)
    assert len(table.cells["identity", 0].errors) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": -1}, "launcher.gpus=-1: devices=4 needs 4 on each node, or 0"),
        ({"nodes": 3}, "devices=4: cannot be divided among launcher.nodes=3"),
        ({"gpus": 2}, "launcher.gpus=2: devices=4 needs 4 on each node"),
        ({"time": 2}, "launcher.time=2: leaves no time to train"),
        ({"time": "2:59"}, "launcher.time=2:59: leaves no time to train"),
        ({"time": "0:02:59"}, "launcher.time=0:02:59: leaves no time to train"),
        ({"time": "0-0:02"}, "launcher.time=0-0:02: leaves no time to train"),
        (
            {"options": {"mem": "1G\nrm -r ."}},
            "launcher.options: 'mem=1G\\nrm -r .': a line break cannot be part of it",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    config = row(tmp_path, "devices=4").config
    with pytest.raises(UserError, match=re.escape(words)):
        Slurm(**{**OPTIONS, **options}).check(config)


def test_without_slurm_the_grid_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for limit in (3, "3:00", "0:03:00", "1-0", "UNLIMITED"):
        with pytest.raises(UserError, match="no sbatch on this machine"):
            Slurm(**{**OPTIONS, "time": limit}).check(row(tmp_path).config)


def test_what_a_row_needs_is_asked_of_slurm(tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    several = Slurm(**{**OPTIONS, "nodes": 2, "cpus": 6, "at_once": 3, "options": {"mem": "16G", "exclusive": True}})
    asked = several.directives(grid / ".slurm" / "1", 10, row(tmp_path, "devices=8").config)
    expected = {"--job-name=grid:deepnets", "--array=0-9%3", "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=6"}
    expected |= {"--gpus-per-node=4", "--mem=16G", "--exclusive", "--requeue", "--open-mode=append"}
    assert expected < set(asked)
    auto = Slurm(**{**OPTIONS, "nodes": 2, "gpus": 4}).directives(
        grid / ".slurm" / "1", 10, row(tmp_path, "devices=auto").config
    )
    assert {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"} < set(auto)
    one = Slurm(**{**OPTIONS, "cpus": 6}).directives(grid / ".slurm" / "1", 1, row(tmp_path, "devices=8").config)
    assert {"--array=0-0", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=48", "--gpus-per-node=8"} < set(one)
