"""How tasks of a real SLURM end otherwise than by themselves, as the status of their runs tells it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from deepnets.config.trust import trusting
from deepnets.runs import jobs
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import read_states, show_json
from tests.slurm import answer, folder_of, job, launched, once, queue, start_again, until

pytestmark = pytest.mark.nightly
RUN = ["epochs=9", "batch_size=256", "checkpoint_seconds=1000"]
NAMES = {"c": "cancelled", "k": "killed", "n": "node", "r": "requeued", "h": "held", "x": "held, too"}


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


def ended_in_many_ways(root: Path, pace: Path) -> dict[str, Any]:
    """Six runs that go slowly: two are held, the others end in a way of their own."""
    facts: dict[str, Any] = {}
    (pace / "slow").touch()
    for name in "ckr":
        launched(root, name, *RUN)
    launched(root, "n", *RUN, "launcher.options={no-requeue:true,requeue:false}", "launcher.partition=alone")
    launched(root, "hx", *RUN, "launcher.options={hold:true}")
    folders = {name: RunFolder(folder_of(root, name)) for name in NAMES}
    task = {name: job(folder.path) for name, folder in folders.items()}

    def told() -> dict[str, list[str | None]]:
        jobs.forget_answers()
        states = read_states(list(folders.values()))
        return {name: [states[folder].name, states[folder].reason] for name, folder in folders.items()}

    for name in "ckrn":
        until(lambda name=name: (folders[name].path / "metrics.csv").is_file(), f"{NAMES[name]} has an epoch")
    until(lambda: (seen := folders["k"].status.progress) and seen.iteration, "a heartbeat tells the iteration")
    facts["at first"] = told()
    answer("scancel", task["c"], task["x"])
    os.kill(folders["k"].status.pid, signal.SIGKILL)
    answer("scontrol", "requeue", task["r"])
    answer("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    left = {task["h"]: "PENDING JobHeldUser", task["r"]: "PENDING BeginTime"}
    until(lambda: queue() == left, "all others end")
    facts["then"] = told()
    with redirect_stdout(StringIO()) as printed:
        show_json([root])
    facts["json"] = json.loads(printed.getvalue())
    path = os.environ["PATH"]
    os.environ["PATH"] = str(root)  # where SLURM is not
    facts["by files"] = told()
    os.environ["PATH"] = path
    (pace / "slow").unlink()
    facts["again"] = launched(root, "nk", *RUN, "launcher.wait=true")
    start_again(task["r"])
    answer("scancel", task["h"])
    until(lambda: not queue(), "all end")
    facts["at last"] = told()
    return facts


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, ended_in_many_ways, "PartitionName=alone Nodes=n2 DefaultTime=10 State=UP")


KILLED = ["dead", "killed by SIGKILL, as the system does when memory runs out"]
NODE = (["stopped", "node failed"], ["dead", "node failed"])  # as SLURM let it save, or killed it sooner


def test_what_slurm_did_with_a_run_is_told_apart(ends: dict[str, Any]) -> None:
    held, running = ["queued", "pending: JobHeldUser"], ["running", None]
    assert ends["at first"] == dict.fromkeys("cknr", running) | dict.fromkeys("hx", held)
    assert ends["then"]["n"] in NODE
    assert ends["then"] == {
        "c": ["cancelled", None],
        "k": KILLED,
        "n": ends["then"]["n"],
        "r": ["stopped", "queued again: BeginTime"],
        "h": held,
        "x": ["cancelled", "before it began"],
    }
    assert {name: state for name, (state, _) in ends["at last"].items()} == {
        "c": "cancelled",
        "k": "finished",
        "n": "finished",
        "r": "finished",
        "h": "cancelled",
        "x": "cancelled",
    }


def test_without_slurm_logs_tell_it(ends: dict[str, Any]) -> None:
    """A run that was cancelled before it began has none: its files say that it was submitted."""
    told = ends["by files"]
    assert told["c"] == ["cancelled", None]
    assert told["r"] == ["stopped", None]
    assert told["h"] == told["x"] == ["queued", None]
    recent = ["running", None]  # as long as the last heartbeat is not old
    assert told["n"] in (*NODE, recent)
    assert told["k"] in (KILLED, recent)


def test_programs_read_the_states_as_json(ends: dict[str, Any]) -> None:
    runs = {run["run"].split("schedule.name=")[1][0]: run for run in ends["json"]["runs"]}
    assert {name: [run["state"], run["reason"]] for name, run in runs.items()} == ends["then"]
    assert runs["k"].keys() == {
        "run", "state", "reason", "iteration", "iterations", "seconds", "seconds_left", "host", "job"
    }  # fmt: skip
    assert 0 < runs["k"]["iteration"] < runs["k"]["iterations"]
    assert (runs["k"]["host"], runs["h"]["host"]) == (os.uname().nodename, None)
    assert runs["h"]["job"].count("_") == 1


def test_what_died_is_submitted_again_by_the_same_command(ends: dict[str, Any]) -> None:
    code, printed = ends["again"]
    assert code == 0
    assert "2 of 2 runs submitted" in printed
