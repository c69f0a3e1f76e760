"""What a task's log says, and what SLURM's accounting says; a test beside the launcher's has the real queue."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deepnets.runs import jobs
from deepnets.runs.contents import Job, Status
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import read_states

AT = "ON n1 CANCELLED AT 2026-11-25T12:53:38"
TIME_LIMIT = f"slurmstepd-n1: error: *** JOB 9 {AT} DUE TO TIME LIMIT ***"
# As slurmstepd 22.05 writes it.
NO_MEMORY = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed."
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of task 7_3 whose last heartbeat is old."""
    folder = RunFolder(tmp_path / "sweep" / "row" / "seed0")
    folder.path.mkdir(parents=True)
    (tmp_path / "sweep" / "slurm" / "7").mkdir(parents=True)
    earlier = datetime.now(UTC) - timedelta(hours=1)
    Job(job="7_3", submitted=earlier).write(folder.path)
    Status(state="running", heartbeat=earlier, host="n1", job="7_3").write(folder.path)
    jobs.forget_answers()
    return folder


def log(folder: RunFolder, *lines: str) -> None:
    (folder.path.parents[1] / "slurm" / "7" / "7_3.out").write_text("\n".join([*lines, ""]))


def told(folder: RunFolder) -> tuple[str, str | None]:
    jobs.forget_answers()
    (state,) = read_states([folder]).values()
    return state.name, state.reason


@pytest.mark.parametrize(
    ("lines", "state", "reason"),
    [
        ([f"slurmstepd-n1: error: *** JOB 9 {AT} ***"], "cancelled", None),
        ([TIME_LIMIT], "dead", jobs.CAUSES["TIMEOUT"]),
        ([f"*** JOB 9 {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"], "dead", "node failed"),
        ([f"*** JOB 9 {AT} DUE TO JOB REQUEUE ***"], "dead", None),
        (["t 7_3: exit code 137: /far/sweep/row/seed0", NO_MEMORY], "dead", jobs.CAUSES["OUT_OF_MEMORY"]),
        (["t 7_3: exit code 139: /far/sweep/row/seed0"], "dead", "killed by SIGSEGV"),
        (["t 7_3: exit code 143: /far/sweep/row/seed0"], "dead", None),  # on SIGTERM a run saves
        (["t 7_3: exit code 160: /far/sweep/row/seed0"], "dead", None),  # no signal has this number
        (["t 7_3: exit code 139: /far/sweep/row/seed1"], "dead", None),  # another run of the task
        ([TIME_LIMIT, "t 7_3 on n2: 1 to execute"], "dead", None),  # an earlier attempt
    ],
)
def test_a_log_says_how_its_task_ended(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, lines: list[str], state: str, reason: str | None
) -> None:
    monkeypatch.setenv("PATH", str(folder.path))
    assert told(folder) == ("dead", None)
    log(folder, "t 7_3 on n1: 2 to execute", *lines)
    assert told(folder) == (state, reason)


def test_a_log_that_is_a_link_or_named_otherwise_is_not_read(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder.path))
    log(folder, TIME_LIMIT)
    file = folder.path.parents[1] / "slurm" / "7" / "7_3.out"
    file.rename(elsewhere := folder.path.parents[2] / "x.out")
    file.symlink_to(elsewhere)
    assert told(folder) == ("dead", None)
    folder.status.model_copy(update={"job": "../../x"}).write(folder.path)
    assert told(folder) == ("dead", None)


def test_the_accounting_says_what_the_queue_has_forgotten(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its database needs a server that is not on every machine: these are lines that sacct 22.05 prints."""
    programs = folder.path / "bin"
    programs.mkdir()

    def answers(**lines: str) -> None:
        for name, text in lines.items():
            (programs / name).write_text(f"#!/bin/sh\necho \"$*\" >>{programs}/asked\nprintf '{text}'\n")
            (programs / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for account, expected in {
        "7_3|OUT_OF_MEMORY": ("dead", jobs.CAUSES["OUT_OF_MEMORY"]),
        "7_3|CANCELLED by 1000": ("cancelled", "by 1000"),
        "7_3|NODE_FAIL": ("dead", "node failed"),
        "7_4|TIMEOUT": ("dead", None),
    }.items():
        answers(squeue="8_0|RUNNING|None\\n", sacct=f"7_2|COMPLETED\\n{account}\\n")
        assert told(folder) == expected
    assert "--jobs=7 " in (programs / "asked").read_text()
    answers(squeue="8_0|RUNNING|None\\n7_3|PENDING|Priority\\n")
    (programs / "asked").unlink()
    assert told(folder) == ("stopped", "queued again: Priority")
    assert "--jobs" not in (programs / "asked").read_text()


def test_a_task_that_is_newer_than_slurms_answer_is_queued(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = folder.path / "squeue"
    squeue.write_text("#!/bin/sh\nexit 0\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder.path}:{os.environ['PATH']}")
    (folder.path / "status.json").unlink()
    now = folder.job.model_copy(update={"submitted": datetime.now(UTC)})
    monkeypatch.setattr(jobs, "ANSWER_SECONDS", 1e6)  # so that one answer serves all
    now.write(folder.path)
    (folder.path / "job.json").touch()
    assert told(folder) == ("cancelled", "before it began")
    now.write(folder.path)
    (state,) = read_states([folder]).values()
    assert (state.name, state.reason) == ("queued", None)
