"""Submissions to a real SLURM that takes few tasks: several runs a task, several arrays, and what is refused."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.config.trust import trusting
from deepnets.errors import UserError
from deepnets.launch.grid import OUTPUT, launch
from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import STOPPED, read_states, state_of
from tests.command import ENVIRONMENT, metrics, row
from tests.slurm import NET, SLURM, answer, ending, folder_of, job, launched, once, queue, start_again, until

pytestmark = pytest.mark.slow

FEW = ("MaxArraySize=4", "MaxJobCount=20")
RUN = ["epochs=3", "batch_size=256", "checkpoint_seconds=1000"]
HELD = "launcher.options={hold:true}"


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


def refused(root: Path, names: str, *changes: str) -> str:
    with pytest.raises(UserError) as error:
        launched(root, names, *changes)
    return str(error.value)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def many_runs(root: Path, pace: Path) -> dict[str, Any]:
    """Ten runs in arrays of at most four tasks, alone and in the queue; two that differ; and what cannot be."""
    facts: dict[str, Any] = {}
    names, outputs = "abcdefghij", root / "outputs"
    facts["too_few"] = [refused(outputs, names, *RUN, "launcher.runs_per_task=2"), files(outputs)]
    facts["submitted"] = launched(outputs, names, *RUN, HELD, "launcher.at_once=2")
    facts["jobs"] = [job(folder_of(outputs, name)) for name in names]
    facts["shown"] = answer("scontrol", "show", "job", facts["jobs"][0].split("_")[0])
    facts["again"] = launched(outputs, names, *RUN)

    for last in (3, 3, 3, 2):
        answer("sbatch", "--hold", f"--array=0-{last}", "--wrap=true")
    facts["full"] = refused(outputs, "xy", *RUN)
    answer("scancel", "--name=wrap")

    bad = root / "bad"
    (broken := folder_of(outputs, "j") / "result.json").write_text('{"status": "failed", "reason": "before"}')
    answer("scancel", facts["jobs"][9])
    until(lambda: facts["jobs"][9] not in queue(), "it is cancelled")
    wrong = "launcher.options={partition:nope}"
    before = {path: path.read_bytes() for path in outputs.rglob("*") if path.is_file()}
    facts["wrong"] = [refused(outputs, "j", *RUN, wrong, "launcher.retry=failed"), refused(bad, "a", *RUN, wrong)]
    changed = {path for path in outputs.rglob("*") if path.is_file() and before.get(path) != path.read_bytes()}
    facts["changed"] = [path.name for path in changed]
    facts["bad"] = [name for name in files(bad) if "/.slurm" in name or "slurm/" in name or "job.json" in name]
    broken.unlink()

    launched(outputs, "j", *RUN, HELD)
    answer("scontrol", "release", facts["jobs"][0].split("_")[0], job(folder_of(outputs, "j")).split("_")[0])
    until(lambda: not queue(), "all end")
    facts["endings"] = sorted({ending(job(folder_of(outputs, name))) for name in names})

    (pace / "broken_p").touch()
    rows = [
        row(outputs, *NET, *SLURM, *RUN, f"+schedule.name={name}", f"devices={devices}", *changes)
        for name, devices in {"p": 1, "q": 2, "r": 2}.items()
        for changes in [("launcher.at_once=1", "fail_fast=true", 'launcher.setup=["touch $PACE/set_up"]')]
    ]
    facts["two_arrays"] = launch(rows)
    tasks = {name: job(folder_of(outputs, name)) for name in "pqr"}
    facts["dependency"] = re.search(r"Dependency=(\S+)", answer("scontrol", "show", "job", tasks["q"]))[1]
    until(lambda: not queue(), "all end")
    arrays = {name: task.split("_")[0] for name, task in tasks.items()}
    facts["two"] = {name: [array, ending(array)] for name, array in arrays.items()}
    facts["not_begun"] = [(folder_of(outputs, name) / "output.txt").exists() for name in "qr"]
    facts["set_up"] = (pace / "set_up").is_file()

    launched(outputs, "uv", *RUN, 'launcher.setup=[":","false","touch $PACE/never"]', "launcher.runs_per_task=2")
    until(lambda: not queue(), "all end")
    facts["not_set_up"] = [[state_of(RunFolder(folder_of(outputs, name))).reason for name in "uv"]]
    facts["not_set_up"] += [(pace / "never").exists(), ending(job(folder_of(outputs, "u")))]
    return facts


def a_task_of_several_runs(root: Path, pace: Path) -> dict[str, Any]:
    """Of five runs one fails, one is killed and one warned; the others do not notice. Two more are on two nodes."""
    facts: dict[str, Any] = {}
    names, outputs = "abcde", root / "outputs"
    (pace / "broken_b").touch()
    launched(outputs, names, *RUN, "launcher.runs_per_task=5", "launcher.cpus=1")
    folders = {name: RunFolder(folder_of(outputs, name)) for name in names}
    task = job(folders["a"].path)
    until(lambda: folders["b"].result, "b fails")
    (pace / "slow").touch()
    until(lambda: (folders["c"].path / "metrics.csv").is_file(), "c has an epoch")
    facts["pids"] = [folders[name].status.pid for name in "ab"]
    facts["in_queue"] = launched(outputs, names, *RUN)
    os.kill(folders["c"].status.pid, signal.SIGKILL)
    until(lambda: (folders["d"].path / "metrics.csv").is_file(), "d has an epoch")
    answer("scancel", "--batch", "--signal=USR1", task)
    until(lambda: state_of(folders["d"]).name == STOPPED, "d is saved")
    (pace / "slow").unlink()
    facts["then"] = [state.name for state in read_states(list(folders.values())).values()]
    start_again(task)
    until(lambda: not queue(), "all end")
    facts["jobs"] = [task, *(job(folder.path) for folder in folders.values())]
    facts["ending"] = ending(task)
    facts["states"] = [state_of(folder, dead_after=0).name for folder in folders.values()]
    facts["reason"], facts["job_of_b"] = folders["b"].result.reason, folders["b"].result.job
    facts["output"] = {name: (folder.path / "output.txt").read_text() for name, folder in folders.items()}
    facts["left"] = [name for name in files(outputs) if ".left" in name]
    facts["after"] = launched(outputs, names, *RUN, HELD)
    answer("scancel", "--user=root")
    two_nodes = ["launcher.nodes=2", "devices=2", "launcher.partition=two", "launcher.runs_per_task=2"]
    launched(root / "nodes", "xy", *RUN, *two_nodes)
    until(lambda: not queue(), "all end")
    for twin, devices in {"a": 1, "d": 1, "y": 2}.items():
        words = [f"+schedule.name={twin}", f"devices={devices}", f"threads={devices}"]  # one in each process
        assert launch([row(root / "twins", *NET, *RUN, *words)]) == 0
    return facts


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, many_runs, *FEW)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, a_task_of_several_runs)


def test_more_runs_than_an_array_has_tasks_are_several_a_task(many: dict[str, Any]) -> None:
    code, printed = many["submitted"]
    assert code == 0
    array = many["jobs"][0].split("_")[0]
    assert f"job     {array}: 10 runs in 4 tasks; logs in " in printed
    assert many["jobs"] == [f"{array}_{place // 3}" for place in range(10)]
    assert "ArrayTaskId=0-3%2" in many["shown"]
    assert "JobName=runs:deepnets" in many["shown"]
    assert "0 of 10 runs submitted; 10 already in the queue" in many["again"][1]
    assert many["endings"] == ["COMPLETED 0:0 0"]
    for name in "abcdefghij":
        assert len(metrics(folder_of(many["root"] / "outputs", name))) == 3
    (log,) = (many["root"] / "outputs" / "runs" / "slurm" / array).glob(f"{array}_0.out")
    assert "3 to execute" in log.read_text()


def test_limits_of_slurm_are_checked_before_anything_is_frozen(many: dict[str, Any]) -> None:
    message, there = many["too_few"]
    assert message == (
        "launcher.runs_per_task=2: too few for 10 runs: SLURM takes 4 tasks in an array (MaxArraySize) and 19 more "
        "jobs now (MaxJobCount); give 3 or more, or null"
    )
    assert there == []
    assert "2 runs cannot be submitted: SLURM takes 4 tasks in an array (MaxArraySize) and 0 more jobs" in many["full"]


def test_what_sbatch_refuses_leaves_nothing_behind(many: dict[str, Any]) -> None:
    assert all("invalid partition" in message for message in many["wrong"])
    assert set(many["changed"]) <= {"config.yaml", "origin.json"}
    assert many["bad"] == []


def test_at_once_and_fail_fast_hold_for_all_arrays(many: dict[str, Any]) -> None:
    assert many["two_arrays"] == 0
    (p, ended), (q, cancelled), (r, _) = many["two"].values()
    assert p != q == r
    assert many["dependency"].startswith(f"afterany:{p}")
    assert (ended, cancelled) == ("FAILED 1:0 0", "CANCELLED 0:0 0")
    assert many["not_begun"] == [False, False]


def test_lines_of_setup_precede_the_run_and_end_the_task_where_they_fail(many: dict[str, Any]) -> None:
    assert many["set_up"]
    task = job(folder_of(many["root"] / "outputs", "u"))
    reason = f"launcher.setup ended with exit code 1; see slurm/{task.split('_')[0]}/{task}.out"
    assert many["not_set_up"] == [[reason] * 2, False, "FAILED 1:0 0"]


@pytest.mark.nightly
def test_runs_of_a_task_fail_and_go_on_each_on_its_own(several: dict[str, Any]) -> None:
    assert several["then"] == ["finished", "failed", "running", "stopped", "queued"]
    assert several["states"] == ["finished", "failed", "dead", "finished", "finished"]
    assert len(set(several["jobs"])) == 1
    assert several["reason"] == "RuntimeError: b is broken"
    assert several["job_of_b"] == several["jobs"][0]
    assert several["ending"] == "FAILED 137:0 1"
    assert several["left"] == []
    a, b = several["pids"]
    assert a == b  # one process, until one fails
    assert "Traceback" in several["output"]["b"]
    for name, output in several["output"].items():
        assert (": finished: test error" in output) == (name in "ade")
        assert output.count("protocol: ") == {"b": 0, "d": 2}.get(name, 1)
    # The run in progress is one of the task's until its process has told that it ended.
    counts = re.search(
        r"(\d) already in the queue, (\d) running elsewhere, 1 failed before, 1 complete", several["in_queue"][1]
    )
    assert sum(map(int, counts.groups())) == 3
    assert "1 of 5 runs submitted; 0 already in the queue, 0 running elsewhere, 1 failed before" in several["after"][1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("run", "twin"),
    [(("outputs", "a"), "a"), (("outputs", "d"), "d"), (("outputs", "e"), "a"), (("nodes", "y"), "y")],
    ids=["first of a process", "stopped and resumed", "second of a process", "second on two nodes"],
)
def test_a_run_of_a_task_ends_bit_by_bit_as_alone(several: dict[str, Any], run: tuple[str, str], twin: str) -> None:
    place, name = run
    folder, alone = folder_of(several["root"] / place, name), folder_of(several["root"] / "twins", twin)
    assert ("resuming at iteration" in (folder / "log.txt").read_text()) == (name == "d")
    assert metrics(folder) == metrics(alone)
    ours, theirs = (checkpoint.load(path)[0]["training"]["model"] for path in (folder, alone))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


SIGNALLED = """
import os, signal
from deepnets.distributed.signals import Interrupted, Interruption
from deepnets.launch import task

def run(folder):
    os.kill(os.getpid(), signal.SIGUSR1)
    try:
        with Interruption(at_once=True):
            print("trains", flush=True)
    except Interrupted:
        print("stops", flush=True)
        raise

task.run = run
task.main()
"""


def test_a_signal_before_a_run_begins_to_train_reaches_the_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "seed0")
    folder.freeze(row(tmp_path, *NET).config, Origin())
    (tmp_path / "left").write_text(f"{folder.path}\n")
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "left"), str(tmp_path / "failed")]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert "Interrupted" in ended.stderr + (folder.path / OUTPUT).read_text()
    assert (folder.path / OUTPUT).read_text().startswith("stops")
    assert (tmp_path / "left").read_text()
