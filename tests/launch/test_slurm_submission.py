"""What is submitted to a real SLURM as a whole: options that change, refusals that leave nothing, the report."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from deepnets.config.schema import Row
from deepnets.config.trust import trusting
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.launch.plan import show_plan
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import STOPPED, state_of
from tests.command import row
from tests.slurm import NET, SLURM, answer, folder_of, job, launched, once, queue, start_again, until

pytestmark = pytest.mark.slow
RUN = ["epochs=2", "batch_size=256", "checkpoint_seconds=1000"]
HELD = "launcher.options={hold:true}"
ALONE = ("EnforcePartLimits=ALL", "PartitionName=alone Nodes=n2 MaxCPUsPerNode=8 DefaultTime=10 State=UP")


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".lock")


def two_arrays(root: Path, *changes: str) -> int:
    words = [*NET, *SLURM, *RUN, "launcher.partition=alone", *changes]
    return launch([row(root, *words, f"+schedule.name={name}", f"devices={n}") for name, n in {"p": 1, "q": 2}.items()])


def interrupted(function: str, root: Path, *changes: str) -> tuple[int, str]:
    """Launch two runs as if Ctrl-C came where this function is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, Mock(side_effect=KeyboardInterrupt))
        return launched(root, "ab", *changes)


def planned_by(rows: list[Row]) -> str:
    with redirect_stdout(StringIO()) as printed:
        show_plan(rows)
    return printed.getvalue()


def submitted_and_refused(root: Path, pace: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    outputs, refused = root / "outputs", root / "refused"

    planned = [row(outputs, *NET, *SLURM, *RUN, HELD, "launcher.time=20", f"+schedule.name={name}") for name in "ab"]
    facts["plan"] = [planned_by(planned)]
    launched(outputs, "ab", *RUN, HELD, "launcher.time=20")
    facts["plan"].append(planned_by(planned))
    array = job(folder_of(outputs, "a")).split("_")[0]
    changed = [*RUN, HELD, "launcher.time=30", "launcher.partition=two"]
    facts["same"] = launched(outputs, "ab", *RUN, HELD, "launcher.time=20")[1]
    facts["changed"] = launched(outputs, "ab", *changed)[1]
    update = re.search(r"(scontrol update .*), or", facts["changed"])
    answer(*update[1].split())
    facts["applied"] = launched(outputs, "ab", *changed)[1]
    facts["memory"] = launched(outputs, "ab", *RUN, "launcher.time=30", "launcher.options={mem:1G}")[1]
    facts["array"] = array
    facts["interrupted"] = [
        interrupted("deepnets.launch.slurm.print_failed_before", outputs, *RUN, HELD, "launcher.time=20"),
        interrupted("deepnets.launch.slurm.Submission.submit_report", root / "stopped", HELD, "launcher.report=true"),
    ]
    facts["stopped"] = job(folder_of(root / "stopped", "a")).split("_")[0]
    answer("scancel", facts["stopped"])

    # The runs of the first array need 5 CPUs, of the second 10.
    with pytest.raises(UserError) as error:
        two_arrays(refused, HELD, "launcher.cpus=5")
    facts["refused"] = [str(error.value), files(refused / "runs"), sorted(queue())]
    with pytest.raises(UserError):
        launched(outputs, "c", *RUN, "launcher.options={partition:nope}")
    facts["copies"] = len(list((outputs / "runs" / ".code").glob("deepnets-*")))
    answer("scancel", array)

    (pace / "slow").touch()
    reported = root / "reported"
    facts["code"] = two_arrays(reported, "launcher.report=true", 'launcher.setup=["touch $PACE/set_up"]')
    folders = [RunFolder(folder_of(reported, name)) for name in "pq"]
    tasks = [job(folder.path) for folder in folders]
    until(lambda: (folders[0].path / "metrics.csv").is_file(), "an epoch")
    answer("scancel", "--batch", "--signal=USR1", tasks[0])
    until(lambda: state_of(folders[0]).name == STOPPED, "it is saved")
    (pace / "slow").unlink()
    until(lambda: queue().keys() == {tasks[0]}, "the other one ends, and this one is queued again")
    shown = answer("squeue", "--noheader", "--name=runs:report", "--format=%T %r %P %E")
    facts["report"] = [shown, (reported / "runs" / "report").exists()]
    start_again(tasks[0])
    until(lambda: not answer("squeue", "--noheader").strip(), "all end")
    facts["results"] = [folder.result.status for folder in folders]
    facts["page"] = (reported / "runs" / "report" / "report.html").is_file()
    facts["log"] = [file.read_text() for file in (reported / "runs" / "slurm").glob("*/report.out")]
    facts["arrays"] = [task.split("_")[0] for task in tasks]
    return facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return once(tmp_path_factory, submitted_and_refused, *ALONE)


def test_options_that_changed_while_runs_wait_are_told_with_what_applies_them(facts: dict[str, Any]) -> None:
    array = facts["array"]
    kept = f"queued  {array}: keeps the options it was submitted with"
    assert kept not in facts["same"] + facts["applied"]
    assert (
        f"{kept} (time 20, now 30; partition none, now two); to apply them: scontrol update jobid={array} "
        f"TimeLimit=30 Partition=two, or scancel --state=PENDING {array} and this command again\n"
    ) in facts["changed"]
    assert f"mem none, now 1G); to apply them: scancel --state=PENDING {array} and this command" in facts["memory"]


def test_a_plan_shows_the_arrays_and_options_that_the_command_would_submit(facts: dict[str, Any]) -> None:
    before, submitted = facts["plan"]
    (line,) = re.findall(r"^sbatch     (.*)$", before, re.MULTILINE)
    assert line.startswith("2 tasks, one for each run: --job-name=runs:deepnets --array=0-1 --requeue --signal=B:USR1@")
    assert " --time=20 " in line
    assert line.endswith(" --hold")
    assert "\nsbatch     nothing to submit: the runs are in the queue, run elsewhere or failed before\n" in submitted


def test_ctrl_c_after_the_submission_says_that_the_jobs_continue(facts: dict[str, Any]) -> None:
    for (code, text), array in zip(facts["interrupted"], (facts["array"], facts["stopped"]), strict=True):
        assert code == 130
        assert text.endswith(f"\nThe jobs continue; to cancel them: scancel {array}\n")


def test_where_the_second_array_is_refused_the_first_is_cancelled_and_nothing_is_left(facts: dict[str, Any]) -> None:
    message, left, queued = facts["refused"]
    first = re.search(r"; cancelled what was submitted before: (\d+)$", message)[1]
    assert "More processors requested than permitted" in message
    assert int(first) > int(facts["array"])
    assert {Path(name).name for name in left if "seed0/" in name} == {"config.yaml", "origin.json"}
    assert not [name for name in left if name.startswith((".code/deepnets-", ".slurm", "slurm"))]
    assert queued == [f"{facts['array']}_{task}" for task in range(2)]


def test_a_copy_of_the_code_that_other_jobs_execute_stays(facts: dict[str, Any]) -> None:
    assert facts["copies"] == 1


def test_a_job_writes_the_report_when_the_last_run_has_ended(facts: dict[str, Any]) -> None:
    assert facts["code"] == 0
    shown, is_there = facts["report"]
    assert shown.startswith("PENDING Dependency alone afterany:")
    assert facts["arrays"][0] in shown
    assert not is_there
    assert facts["results"] == ["finished"] * 2
    assert facts["page"], facts["log"]
    assert len(set(facts["log"])) == 1
