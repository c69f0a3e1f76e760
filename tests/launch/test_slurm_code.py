"""A queued job executes the code that it was submitted with, and none that was edited in its copy."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepnets.runs.folder import RunFolder
from deepnets.runs.status import QUEUED, read_state
from tests.command import ROOT
from tests.runs.test_code import OPTION, SCALES, SHORTCUT
from tests.slurm import answer, queue, slurm, until

pytestmark = pytest.mark.slow
RUN = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "model/shortcut=own", "device=cpu"]
RUN += ["launcher=slurm", "launcher.cpus=1", "launcher.options={hold:true}"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a shortcut of the user's own."""
    clone = tmp_path / "clone"
    for name in ("deepnets", "conf", "scripts"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "own_shortcuts.py").write_text(SHORTCUT)
    (clone / "own_scales.py").write_text(SCALES)
    (clone / "conf/model/shortcut/own.yaml").write_text(OPTION)
    return clone


def train(clone: Path, *words: str) -> str:
    command = [sys.executable, "scripts/train.py", "--trust=own_shortcuts.py", *RUN, *words]
    environment = os.environ | {"PYTHONPATH": str(clone)}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def job_of(printed: str) -> str:
    return re.search(r"^job +(\d+)", printed, re.MULTILINE)[1]


def run_folder(clone: Path, seed: int) -> Path:
    return next(clone.glob(f"outputs/*/*/seed{seed}"))


def test_code_that_is_edited_after_submission_does_not_reach_the_job(clone: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=clone, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True)

    with slurm():
        jobs = [job_of(train(clone, f"seed={seed}")) for seed in (0, 1)]
        folders = [run_folder(clone, seed) for seed in (0, 1)]
        (clone / "deepnets" / "run.py").write_text("raise RuntimeError('edited')\n")
        (clone / "own_scales.py").write_text("raise RuntimeError('edited')\n")
        answer("scontrol", "release", jobs[0])
        until(lambda: not any(task.startswith(jobs[0]) for task in queue()), "the first job has ended")
        result = json.loads((folders[0] / "result.json").read_text())
        assert result["status"] == "finished", (folders[0] / "output.txt").read_text()
        assert result["commit"] == commit.stdout.strip()
        assert list(result["code"]) == ["0"]

        (copy,) = (clone / "outputs/runs/.code").glob("deepnets-*")
        (copy / "deepnets" / "run.py").write_text("raise RuntimeError('edited')\n")
        answer("scontrol", "release", jobs[1])
        until(lambda: not any(task.startswith(jobs[1]) for task in queue()), "the second job has ended")
        result = json.loads((folders[1] / "result.json").read_text())
        assert result["status"] == "failed"
        assert "has changed since the job was submitted" in result["reason"]


def test_the_same_command_after_an_edit_leaves_queued_runs_to_their_code(clone: Path) -> None:
    def code(seed: int) -> str:
        return json.loads((run_folder(clone, seed) / "origin.json").read_text())["code"]["hash"]

    with slurm():
        jobs = [job_of(train(clone, "name=queued", f"seed={seed}")) for seed in (0, 1)]
        old = code(0)
        (clone / "own_scales.py").write_text(f"{SCALES}edited = True\n")
        seeds = ["name=queued", "-m", "seed=0,1,2", "launcher.at_once=1"]
        planned, printed = train(clone, *seeds, "plan=true"), train(clone, *seeds)
        assert f"--dependency=afterany:{':'.join(jobs)}" in planned
        assert "1 of 3 runs submitted; 2 already in the queue" in printed
        for each in (planned, printed):
            assert "2 runs in the queue, or running elsewhere, will use your code as it was (own_scales.py" in each
            assert re.search("that this command trains use today's code; .* add code=frozen", each)
        assert "runs       3: 2 queued or running, 1 new" in planned
        third = job_of(printed)
        assert f"begins after {jobs[0]}, {jobs[1]} (launcher.at_once=1)" in printed
        dependency = re.search(r"Dependency=(\S+)", answer("scontrol", "show", "job", third))[1]
        assert {*re.findall(r"afterany:(\d+)", dependency)} == {*jobs}
        assert (code(0), code(1)) == (old, old) != (code(2), code(2))

        answer("scancel", jobs[1])
        until(lambda: not any(task.startswith(jobs[1]) for task in queue()), "the second job is cancelled")
        copy = clone / "outputs/queued/.code" / old
        copy.rename(clone / "away")
        with pytest.raises(AssertionError, match="the code that the run began with is missing"):
            train(clone, *seeds, "code=frozen")
        (clone / "away").rename(copy)
        assert code(1) == old
        printed = train(clone, *seeds)
        assert "1 of 3 runs submitted; 2 already in the queue" in printed
        assert (code(0), code(1)) == (old, code(2))  # nothing of seed 1 was trained, so it takes today's code

        answer("scontrol", "release", jobs[0])
        until(lambda: not any(task.startswith(jobs[0]) for task in queue()), "the first job has ended")
        (trained_by,) = json.loads((run_folder(clone, 0) / "result.json").read_text())["code"].values()
        assert trained_by["hash"] == old

        answer("scancel", again := job_of(printed))
        until(lambda: not any(task.startswith(again) for task in queue()), "the job of seed 1 is cancelled")
        train(clone, "name=queued", "seed=1", "code=frozen")
        assert code(1) == old  # of the seed that is trained, not of the job that was cancelled


def test_queued_runs_take_todays_code_where_the_command_says_so(clone: Path) -> None:
    with slurm():
        job = job_of(train(clone, "name=queued", "seed=0"))
        noted = json.loads((run_folder(clone, 0) / "origin.json").read_text())["code"]["hash"]
        (clone / "own_scales.py").write_text(f"{SCALES}edited = True\n")
        told = train(clone, "name=queued", "seed=0")
        assert "With code=current, those that are not training use today's, by the same jobs" in told
        assert "will execute deepnets as it was" not in told
        package = clone / "deepnets/loss.py"
        package.write_text(f"{package.read_text()}edited = True\n")
        chosen = train(clone, "name=queued", "seed=0", "code=current")
        assert "code=current: 1 run that noted other code will use today's; rows " in chosen
        assert "0 of 1 runs submitted; 1 already in the queue" in chosen
        assert (
            f"queued  {job}: will execute deepnets as it was submitted (deepnets/loss.py changed since); for today's: "
            f"scancel --state=PENDING {job} and this command again"
        ) in chosen
        answer("scontrol", "release", job)
        until(lambda: not any(task.startswith(job) for task in queue()), "the job has ended")
        result = json.loads((run_folder(clone, 0) / "result.json").read_text())
        assert result["status"] == "finished", result
        assert [code["hash"] for code in result["code"].values()] != [noted]
        assert (clone / "outputs/queued/.code" / result["code"]["0"]["hash"]).is_dir()


def test_a_run_that_is_deleted_in_the_queue_stays_queued(clone: Path) -> None:
    with slurm():
        job = job_of(train(clone, "name=queued", "seed=0"))
        assert "0 of 1 runs submitted; 1 already in the queue" in train(
            clone, "name=queued", "seed=0", "overwrite=true"
        )
        state = read_state(RunFolder(run_folder(clone, 0)))
        assert (state.name, state.job) == (QUEUED, f"{job}_0")
