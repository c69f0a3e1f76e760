"""`reuse=true` copies what another sweep has trained under the same identity."""

import json
from pathlib import Path

import pytest
import torch

from deepnets.config.trust import trusting
from deepnets.launch.grid import launch
from deepnets.launch.plan import show_plan
from deepnets.run import load_run
from deepnets.runs.contents import Code
from deepnets.runs.naming import folder_of
from tests.command import row

RUN = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1"]


def rows(root: Path, sweep: str, *more: str) -> list:
    return [row(root, *RUN, f"sweep={sweep}", "model/shortcut=none", f"seed={seed}", *more) for seed in (0, 1)]


def test_finished_runs_of_another_sweep_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single = row(tmp_path, *RUN, "model/shortcut=none")
    assert launch([single]) == 0
    there = folder_of(single)
    table = rows(tmp_path, "digits_shortcuts", "reuse=true")
    here = [folder_of(each) for each in table]
    assert there.path != here[0].path
    capsys.readouterr()
    assert show_plan(rows(tmp_path, "digits_shortcuts", "plan=true")) == 0
    assert f"1 seed of none finished in {there.path.parents[1]}, with" in capsys.readouterr().out
    assert launch(rows(tmp_path, "digits_shortcuts", "name=told")[:1]) == 0
    assert f"1 seed of none finished in {there.path.parents[1]}, with the same identity; reuse=true would copy" in (
        capsys.readouterr().out
    )
    assert show_plan(table) == 0
    assert "runs       2: 1 to copy, 1 new" in capsys.readouterr().out
    assert show_plan(rows(tmp_path, "digits_shortcuts", "reuse=true", "overwrite=true")) == 0
    assert "runs       2: 2 new" in capsys.readouterr().out
    assert not here[0].path.exists()

    assert launch(table) == 0
    out = capsys.readouterr().out
    assert f"1 finished run copied from {there.path.parent}" in out
    assert "1 of 2 runs already finished" in out
    assert here[0].origin.copied_from == str(there)
    assert here[0].config.sweep.axes == ["model/shortcut"]
    assert not here[0].path.joinpath("checkpoint.pt").is_symlink()
    for name in ("metrics.csv", "result.json"):
        assert (here[0].path / name).read_bytes() == (there.path / name).read_bytes()
    weights, others = (load_run(folder.path)[0].state_dict() for folder in (here[0], there))
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    assert here[1].origin.copied_from is None
    assert json.loads((here[1].path / "result.json").read_text())["status"] == "finished"


def test_runs_of_other_code_are_not_copied_and_a_copy_has_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACE", str(tmp_path))
    own = ["schedule=cosine", "schedule._target_=tests.paced.Paced", "+schedule.name=a"]
    with trusting("tests.paced.Paced"):
        singles = [row(tmp_path, *RUN, *own, "model/shortcut=none", f"seed={seed}") for seed in (0, 1)]
        assert launch(singles) == 0
        there = [folder_of(single) for single in singles]
        result = there[1].result  # as if it went on with other code than that of its beginning
        older = {"0": Code(hash="0" * 16, modules={"tests.paced": "1"}), "1": result.code["0"]}
        result.model_copy(update={"code": older}).write(there[1].path)
        table = rows(tmp_path, "digits_shortcuts", *own, "reuse=true")
        show_plan(table)
        assert "1 seed of none finished in" in capsys.readouterr().out
        assert launch(table) == 0
    here = [folder_of(each) for each in table]
    assert [folder.origin.copied_from for folder in here] == [str(there[0]), None]
    assert (here[0].grid / ".code" / here[0].origin.code.hash / "tests" / "paced.py").is_file()


def test_without_the_word_each_sweep_trains_its_own(tmp_path: Path) -> None:
    assert launch([row(tmp_path, *RUN, "model/shortcut=none")]) == 0
    table = rows(tmp_path, "digits_shortcuts")[:1]
    assert launch(table) == 0
    assert folder_of(table[0]).origin.copied_from is None
