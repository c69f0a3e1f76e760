"""Checking, freezing and executing a grid: what stops it, what does not, and two commands at the same moment."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from deepnets.config.trust import choosing_code, trusting
from deepnets.errors import UserError
from deepnets.launch.grid import check_tables, launch
from deepnets.launch.plan import show_plan
from deepnets.launch.reuse import beside_other_code
from deepnets.runs.contents import Code, Origin, Result
from deepnets.runs.folder import Locked, OtherCode, RunFolder
from deepnets.runs.naming import folder_of, folders_of
from deepnets.runs.record import change_of_images
from deepnets.runs.status import state_of
from tests.command import ENVIRONMENT, ROOT, TRAIN, row
from tests.paced import TRUST
from tests.slurm import SLURM, slurm

NET = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "device=cpu", "precision=fp32"]
NET += ["schedule=cosine", "schedule._target_=tests.paced.Paced"]


@pytest.fixture(scope="module", autouse=True)
def trust_paced() -> Iterator[None]:
    with trusting("tests.paced.Paced"):
        yield


@pytest.fixture(autouse=True)
def pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", str(tmp_path))


def states_of(output_root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(output_root)): state_of(RunFolder(path)).name
        for path in sorted(output_root.glob("runs/*/seed*"))
    }


def test_a_failing_row_is_told_with_its_reason_and_only_fail_fast_stops_the_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    root = tmp_path / "outputs"

    def rows(*more: str) -> list:
        return [row(root, *NET, f"+schedule.name={name}", *more) for name in ("a", "b", "c")]

    (tmp_path / "broken_b").touch()
    for fail_fast, last in (("true", "waiting"), ("false", "finished")):
        capsys.readouterr()
        assert launch(rows(f"fail_fast={fail_fast}")) == 1
        assert list(states_of(root).values()) == ["finished", "failed", last]
        told, errors = capsys.readouterr()
        assert [line.split()[1] for line in told.splitlines() if line.startswith(" digits")] == [
            "finished",
            "failed",
            last,
        ]
        assert "1 of 3 runs failed" in errors
        assert errors.count("seed0: RuntimeError: b is broken") == 1
    failed = folder_of(rows()[1])
    assert failed.result == Result(status="failed", reason="RuntimeError: b is broken")
    assert "Traceback" in (failed.path / "log.txt").read_text()
    (tmp_path / "broken_b").unlink()
    assert launch(rows()) == 0
    assert set(states_of(root).values()) == {"finished"}


def test_one_error_in_two_runs_is_traced_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken_b").touch()
    assert launch([row(tmp_path / "outputs", *NET, "+schedule.name=b", f"seed={seed}") for seed in range(2)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("Traceback") == 1
    assert "seed1: the same error, at the same place\n" in errors


def test_a_row_that_runs_elsewhere_is_left_alone_even_by_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}", "overwrite=true") for seed in range(2)]
    folder = folder_of(rows[0])
    folder.freeze(rows[0].config, Origin(commit="theirs"))
    for change in ([], ["launcher=pool"]):
        rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={s}", "overwrite=true", *change) for s in range(2)]
        with folder.hold():
            (folder.path / "metrics.csv").write_text("epoch\n")
            if change:
                rows = rows[:1]
            assert launch(rows) == 0
        told = capsys.readouterr().out
        assert f"{folder}: already running in another process; skipped" in told
        assert (folder.path / "metrics.csv").read_text() == "epoch\n"
        assert folder.origin == Origin(commit="theirs")
    assert state_of(folder_of(row(tmp_path, *NET, "+schedule.name=a", "seed=1"))).name == "finished"


def test_a_grid_of_other_settings_says_once_how_they_differ_and_what_to_type(tmp_path: Path) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}") for seed in range(3)]
    for each in rows:
        before = replace(each.config, optimizer=each.config.optimizer | {"lr": 0.2}, clip_gradient_norm=1.0)
        folder_of(each).freeze(before, Origin())
    with pytest.raises(UserError) as refused:
        launch(rows)
    lines = str(refused.value).splitlines()
    assert lines[0] == "3 of 3 runs cannot start; none was started"
    assert lines[1].endswith(
        "seed0 and 2 more: other settings: clip_gradient_norm 1.0 there, None here; optimizer.lr 0.2 there, 0.1 here"
    )
    assert lines[2].startswith("To continue what is there, add clip_gradient_norm=1.0 optimizer.lr=0.2; ")
    assert "to train beside it, name=NAME;" in lines[2]
    assert len(lines) == 3
    overrides = re.search(r"add (.*?);", lines[2])[1].split()
    continued = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}", *overrides) for seed in range(3)]
    assert [folder.path for folder in folders_of(continued)] == [folder.path for folder in folders_of(rows)]
    assert launch(continued) == 0
    assert {folder.completed.status for folder in folders_of(rows)} == {"finished"}


def test_overrides_that_only_some_rows_accept_are_not_advised(tmp_path: Path) -> None:
    shortcuts = [["model/shortcut=exclusive_gating_b6"], ["model/shortcut=identity"]]
    rows = [row(tmp_path, *NET, "+schedule.name=a", *shortcut) for shortcut in shortcuts]
    model = rows[0].config.model
    before = replace(rows[0].config, model=model | {"shortcut": model["shortcut"] | {"bias": -1.0}})
    folder_of(rows[0]).freeze(before, Origin())
    with pytest.raises(UserError, match=r"bias -1\.0 there, -6\.0 here\nTo train beside it, name=NAME;"):
        launch(rows)


def test_a_key_that_one_side_lacks_is_added_or_deleted(tmp_path: Path) -> None:
    run = row(tmp_path, *NET, "+schedule.name=a")
    model = run.config.model
    lacking = {key: value for key, value in model.items() if key != "stem"}
    folder_of(run).freeze(replace(run.config, model=lacking | {"mine": 3}), Origin())
    with pytest.raises(UserError) as refused:
        launch([run])
    assert "model.mine: 3 there, absent here" in str(refused.value)
    assert "To continue what is there, add +model.mine=3" in str(refused.value)
    if "stem" in str(refused.value):
        assert "'~model.stem'" in str(refused.value)


def test_an_illegal_setting_is_said_before_the_difference_from_the_run_in_the_folder(tmp_path: Path) -> None:
    wrong = row(tmp_path, *NET, "+schedule.name=a")
    folder_of(wrong).freeze(replace(wrong.config, clip_gradient_norm=1.0), Origin())
    wrong = replace(wrong, config=replace(wrong.config, batch_size=5000))
    with pytest.raises(UserError, match="larger than the training set of 1437 images; choose"):
        launch([wrong])


def test_finished_runs_say_once_that_their_images_have_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}") for seed in range(3)]
    launch(rows)
    launch(rows)
    assert "other images" not in capsys.readouterr().out
    for number, folder in enumerate(folders_of(rows)):
        data = folder.result.data | ({"content": "0" * 16, "images": 0} if number else {"train": 7, "content": "1"})
        folder.result.model_copy(update={"data": data}).write(folder.path)
    assert launch(rows) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "other images" in line]
    assert [line.partition(" were")[0].partition(" was")[0] for line in told] == ["1 finished run", "2 finished runs"]
    assert re.search(r"those now in \S+ \(train 7 then, \d+ now\); to train in another folder, add name=NAME$", told[0])
    assert re.search(r" \(content 0{16} then, [0-9a-f]{16} now\);", told[1])


def test_finished_runs_on_data_of_ones_own_say_that_their_images_have_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # trust makes folders importable
    own = tmp_path / "own_digits_here.py"
    own.write_text("from deepnets.data.sources import digits\n\ndef same(root):\n    return digits(root)\n")
    with trusting(own):
        only = row(tmp_path, *NET, "+schedule.name=a", "dataset.source._target_=own_digits_here.same")
        launch([only])
        launch([only])
        assert "other images" not in capsys.readouterr().out
        folder = folder_of(only)
        folder.result.model_copy(update={"data": folder.result.data | {"train": 7}}).write(folder.path)
        launch([only])
        assert "1 finished run was trained on other images than those now in" in capsys.readouterr().out
    gone = replace(only.config, dataset=only.config.dataset | {"source": {"_target_": "own_digits_here.none"}})
    assert change_of_images(gone, folder.result) == ""


def test_images_that_cannot_be_read_do_not_matter_to_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = row(tmp_path, *NET, "+schedule.name=a")
    launch([only])
    result = folder_of(only).completed.model_copy(update={"data": {"train": 7}})
    assert change_of_images(only.config, result).startswith("train 7 then, ")
    gone = replace(only.config, dataset=only.config.dataset | {"pad": 1000})  # refused when it is built
    assert change_of_images(gone, result) == ""


def test_all_runs_that_cannot_go_on_with_the_code_of_their_beginning_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", "code=frozen", f"seed={seed}") for seed in range(4)]
    for number, each in enumerate(rows[:3]):
        code = Code(hash="ab"[number // 2] * 16, modules={"own": "1"})
        folder_of(each).freeze(each.config, Origin(code=code))
        (folder_of(each).path / "checkpoint.pt").touch()
    with choosing_code(None), pytest.raises(UserError) as refused:
        launch(rows)
    missing = ": the code that the run began with is missing ({}); copy it"
    lines = str(refused.value).splitlines()
    assert lines[0] == "4 of 4 runs cannot start; none was started"
    assert f"seed0 and 1 more{missing.format(tmp_path / 'runs/.code' / ('a' * 16))}" in lines[1]
    assert f"seed2{missing.format(tmp_path / 'runs/.code' / ('b' * 16))}" in lines[2]
    several = f"code=frozen cannot choose between versions {16 * 'a'} and {16 * 'b'}"
    assert several in lines[3]  # of a new seed
    assert len(lines) == 4
    changed = OtherCode(folder_of(rows[0]), ["own.py"], "code={}", tmp_path / "runs/.code" / ("a" * 16))
    assert changed.remedy.startswith("The code as it was is not here")
    with choosing_code(None):
        assert show_plan(rows) == 1  # which takes the same choice
    assert capsys.readouterr().out.count("the code that the run began with is missing") == 2


def test_seeds_beside_those_of_other_code_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}") for seed in range(3)]
    launch(rows[:1])
    launch(rows[1:2])
    assert "other seeds" not in capsys.readouterr().out
    folder = folder_of(rows[0])
    older = {"0": Code(hash="0" * 16, modules={"tests.paced": "1"})}
    folder.result.model_copy(update={"code": older}).write(folder.path)
    (folder_of(rows[1]).path / "result.json").write_text('{"status": 3}')  # another seed, which cannot be read
    assert show_plan(rows[2:]) == 0
    told = f"other seeds of {folder.path.parent.name} have other code of yours; rows with seeds of both"
    assert told in capsys.readouterr().out
    assert launch(rows[2:]) == 0
    assert told in capsys.readouterr().out


def test_seeds_that_train_beside_those_of_other_code_are_told_also_if_finished_ones_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(tmp_path, *NET, "+schedule.name=a", f"seed={seed}") for seed in range(2)]
    launch(rows[:1])
    folder = folder_of(rows[0])
    older = Code(hash="0" * 16, modules={"tests.paced": "1"})
    folder.result.model_copy(update={"code": {"0": older}}).write(folder.path)
    folder.origin.model_copy(update={"code": older}).write(folder.path)
    name = folder.path.parent.name
    for act in (show_plan, launch):
        capsys.readouterr()
        assert act(rows) == 0
        out = capsys.readouterr().out
        assert "1 finished run was trained before your code changed (" in out
        assert f"the seeds of {name} that this command trains use today's code; to train with the old code" in out
    capsys.readouterr()
    assert launch(rows) == 0
    assert "that this command trains" not in capsys.readouterr().out
    with choosing_code("frozen"):  # then today's code trains nothing
        told = beside_other_code({folder_of(rows[1]): Code(hash="1" * 16, modules={})})
        assert told
        assert "code=frozen" not in told
        assert beside_other_code({folder_of(rows[1]): Code(hash="1" * 16, modules={})}, is_told=True) is None


def test_new_seeds_beside_seeds_with_other_settings_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = (
        row(tmp_path, *NET, "+schedule.name=a", "seed=1"),
        row(tmp_path, *NET, "+schedule.name=a", "batch_size=64"),
    )
    RunFolder(folder_of(new).path.with_name("seed0")).freeze(old.config, Origin())  # as before an edit of YAML
    for act in (show_plan, launch):
        assert act([new]) == 0
        assert "no other seed has today's settings in " in capsys.readouterr().out
    assert launch([row(tmp_path, *NET, "+schedule.name=a", "seed=2")]) == 0
    assert "no other seed has today's settings in " not in capsys.readouterr().out


def test_a_folder_holds_the_runs_of_one_sweep(tmp_path: Path) -> None:
    single, table = row(tmp_path, "name=mine"), row(tmp_path, "name=mine", "sweep=digits_shortcuts")
    folder = folder_of(single)
    folder.freeze(single.config, Origin(choices=single.choices))
    check_tables([single], folders_of([single]))
    for act in (launch, show_plan):
        with pytest.raises(UserError, match=r"mine: holds runs without a sweep; choose another name=NAME$"):
            act([table])
    Origin(choices={"sweep": "he2016_table1"}).write(folder.path)
    with pytest.raises(UserError, match=r"mine: holds runs of sweep=he2016_table1; choose another"):
        check_tables([table], folders_of([table]))
    Origin(commit="of a version that did not say").write(folder.path)
    check_tables([table], folders_of([table]))


def test_overwrite_does_not_continue_what_ran_while_the_grid_was_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(row(tmp_path, *NET, "+schedule.name=a"))
    theirs = row(tmp_path, *NET, "+schedule.name=a", "optimizer.lr=0.5").config
    folder.freeze(theirs, Origin())

    def freeze(folder: RunFolder, *_: object) -> None:
        raise Locked(folder)

    monkeypatch.setattr(RunFolder, "freeze", freeze)  # and it ends before its turn comes
    assert launch([row(tmp_path, *NET, "+schedule.name=a", "overwrite=true")]) == 0
    assert state_of(folder).name == "waiting"
    assert folder.config.optimizer == theirs.optimizer


@pytest.mark.slow
def test_two_commands_at_the_same_moment_share_the_grid(tmp_path: Path) -> None:
    grid = [TRUST, "-m", *NET, "+schedule.name=a", "seed=range(4)", f"output_root={tmp_path}/outputs"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "PACE": str(tmp_path)}
    (tmp_path / "slow").touch()
    both = [
        subprocess.Popen([*TRAIN, *grid], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        for _ in range(2)
    ]
    try:
        while sorted(states_of(tmp_path / "outputs").values()).count("running") < 2:
            assert all(process.poll() is None for process in both), [process.communicate()[0] for process in both]
            time.sleep(0.05)
        (tmp_path / "slow").unlink()
        told = [process.communicate(timeout=600)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], told
    assert set(states_of(tmp_path / "outputs").values()) == {"finished"}
    assert sum(text.count("already running in another process; skipped") for text in told) >= 1
    assert sum(text.count("epoch 1/1  train") for text in told) == 4  # each row was trained once
    for seed in range(4):
        (folder,) = tmp_path.glob(f"outputs/runs/*/seed{seed}")
        assert (folder / "log.txt").read_text().count("epoch 1/1") == 1
        assert json.loads((folder / "result.json").read_text())["iterations"] == 12


def test_where_and_how_rows_are_launched_is_not_part_of_their_name(tmp_path: Path) -> None:
    usual = folder_of(row(tmp_path, "epochs=2")).path
    changes = ["devices=2", "evaluation_batch_size=7", "launcher.wait=true", "launcher.retry=failed"]
    changes += ["launcher=slurm", "launcher.time=30", "fail_fast=true"]
    assert folder_of(row(tmp_path, "epochs=2", *changes)).path == usual


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["launcher=pool", "launcher.runs_per_device=0"], "launcher.runs_per_device: got 0; must be at least 1"),
        (["+launcher.runs_per_device=4"], "launcher: unknown key 'runs_per_device'"),
        (["launcher=slurm", "launcher.retry=finished"], "launcher.retry: got 'finished'"),
        (["devices=0"], "devices=0: must be at least 1"),
        (["launcher=pool", "device=cuda:7"], "device=cuda:7: not on this machine"),
        (["launcher=pool", "+launcher.slots=4"], "launcher: unknown key 'slots'"),
        (["launcher._target_=os.system"], "launcher._target_: 'os.system' is not one of the classes"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    rows = [row(tmp_path / "outputs", *NET, "+schedule.name=a", *overrides, f"seed={seed}") for seed in range(2)]
    with pytest.raises(UserError) as refused:
        launch(rows)
    assert message in str(refused.value)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    "launcher",
    [
        ["launcher=local"],
        ["launcher=pool", "launcher.runs_per_device=1"],
        pytest.param([*SLURM, "launcher.wait=true"], marks=pytest.mark.slow),
    ],
    ids=["local", "pool", "slurm"],
)
@pytest.mark.slow
def test_a_failed_run_is_left_alone_or_executed_again_as_retry_says_by_each_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher: list[str]
) -> None:
    def ended(retry: str) -> tuple[int, str]:
        capsys.readouterr()
        words = [*NET, "+schedule.name=a", *launcher, f"launcher.retry={retry}", "fail_fast=true"]
        code = launch([row(tmp_path / "outputs", *words, f"seed={seed}") for seed in (0, 1)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    rows = [row(tmp_path / "outputs", *NET, "+schedule.name=a", f"seed={seed}") for seed in (0, 1)]
    failed, other = folders_of(rows)
    with slurm() if SLURM[0] in launcher else nullcontext():
        failed.freeze(rows[0].config, Origin())
        Result(status="failed", reason="RuntimeError: before").write(failed.path)
        code, printed = ended("null")
        assert code == 1
        assert printed.count(f"{failed}: RuntimeError: before") == 2  # at once, and at the end
        assert "runs that failed before are skipped (launcher.retry=failed trains them again)" in printed
        assert (failed.result.status, other.result.status) == ("failed", "finished")
        assert not (failed.path / "metrics.csv").exists()
        assert ended("failed")[0] == 0
        assert failed.result.status == "finished"
