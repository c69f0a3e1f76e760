"""`until=decided` on a real SLURM: each round submits the job that decides what is trained next."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import ENVIRONMENT, TRAIN
from tests.slurm import answer, once, until

pytestmark = pytest.mark.nightly  # three minutes, of which SLURM waits most
SWEEP = """# @package _global_
sweep:
  rows:
    model/shortcut: [identity, none]
  seeds: 2
  margins: {full: 90}
  claims:
    - {claim: "identity is lower than none", place: here}
epochs: 1
batch_size: 256
precision: fp32
model: {widths: [2, 2, 2]}
"""


def submitted(root: Path, pace: Path) -> dict[str, Any]:
    (root / "conf" / "sweep").mkdir(parents=True)
    (root / "conf" / "sweep" / "small.yaml").write_text(SWEEP)
    words = ["--config-dir", "conf", "sweep=small", "until=decided", "hours=1", "output_root=outputs"]
    words += ["launcher=slurm", "launcher.cpus=1", "device=cpu"]
    environment = {**ENVIRONMENT, **os.environ}  # with the address of this SLURM
    twice = [
        subprocess.run([*TRAIN, *words], capture_output=True, text=True, cwd=root, env=environment, check=False)
        for _ in range(2)
    ]
    facts: dict[str, Any] = {"first": twice[0].stdout + twice[0].stderr, "again": twice[1].stdout}
    until(lambda: not answer("squeue", "--noheader").strip(), "all rounds end")
    facts["log"] = (root / "outputs/small/slurm/decisions.out").read_text()
    facts["runs"] = sorted(str(file.parent.relative_to(root)) for file in root.glob("outputs/*/*/*/result.json"))
    facts["copies"] = [copy.name for copy in (root / "outputs/small/.code").iterdir()]
    facts["scripts"] = [file.read_text() for file in sorted((root / "outputs/small/.slurm").glob("*/0.sh"))]
    return facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, submitted)


def test_a_job_takes_the_next_decision_when_a_round_has_ended(facts: dict[str, Any]) -> None:
    number = re.search(r"^next    (\d+): takes the next decision .* scancel (\d+) \1; log in ", facts["first"], re.M)
    assert number, facts["first"]
    assert f"next    {number[1]}: takes the next decision" in facts["again"]  # and no second one
    assert "look 1 of 3, at 3 seeds" in facts["log"]
    assert re.search(r"claims tested: 1; all are decided", facts["log"]), facts["log"]
    seeds = [run.rpartition("seed")[2] for run in facts["runs"] if "/none/" in run]
    assert len(seeds) >= 3
    assert seeds == [run.rpartition("seed")[2] for run in facts["runs"] if "/identity/" in run]


def test_all_rounds_execute_the_code_of_the_first(facts: dict[str, Any]) -> None:
    assert len(facts["copies"]) == 1
    assert len(facts["scripts"]) >= 2
    assert all("code=" in script and facts["copies"][0] in script for script in facts["scripts"])
    assert sys.executable in facts["scripts"][0]
