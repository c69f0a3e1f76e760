"""A queued job executes the code that it was submitted with, and none that was edited in its copy."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT
from tests.runs.test_code import OPTION, SCALES, SHORTCUT
from tests.slurm import answer, queue, slurm, until

pytestmark = pytest.mark.slow
RUN = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "model/shortcut=own", "device=cpu"]
RUN += ["launcher=slurm", "launcher.cpus=1", "launcher.options={hold:true}"]


def test_code_that_is_edited_after_submission_does_not_reach_the_job(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("deepnets", "conf", "scripts"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "own_shortcuts.py").write_text(SHORTCUT)
    (clone / "own_scales.py").write_text(SCALES)
    (clone / "conf/model/shortcut/own.yaml").write_text(OPTION)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=clone, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True)

    def submitted(seed: int) -> str:
        command = [sys.executable, "scripts/train.py", "--trust=own_shortcuts.py", *RUN, f"seed={seed}"]
        environment = os.environ | {"PYTHONPATH": str(clone)}
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return re.search(r"^job +(\d+)", done.stdout, re.MULTILINE)[1]

    with slurm():
        jobs = [submitted(seed) for seed in (0, 1)]
        folders = [next(clone.glob(f"outputs/runs/*/seed{seed}")) for seed in (0, 1)]
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
