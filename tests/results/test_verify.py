"""`report.py --verify`: the first iterations of a run, trained anew."""

import json
import shutil
from pathlib import Path

import pytest

from deepnets.errors import UserError
from deepnets.results.verify import verify
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import row

NET = ["model=highway_fc10", "model.depth=4", "model.width=10", "dataset=digits", "epochs=2", "device=cpu", "threads=1"]


@pytest.fixture
def trained(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.freeze(row(tmp_path, *NET, "precision=fp32").config, Origin())
    run(folder)
    return folder


def changed(folder: RunFolder, **facts: object) -> RunFolder:
    copy = RunFolder(folder.path.with_name("changed"))
    shutil.copytree(folder.path, copy.path, dirs_exist_ok=True)
    (copy.path / "result.json").write_text(json.dumps({**folder.result, **facts}))
    return copy


def test_a_run_is_verified_and_a_false_one_is_not(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([trained.path], "data") == 0
    assert "verified: the first 20 of 24 iterations, equal bit by bit\n" in capsys.readouterr().out
    beginning = trained.result.beginning
    assert verify([changed(trained, beginning={**beginning, "weights": "0" * 16}).path], "data") == 1
    assert "DIFFERS" in capsys.readouterr().out
    assert verify([changed(trained, last_test_error=1.0).path], "data") == 1
    said = capsys.readouterr().out
    assert said.startswith(
        f"{trained.path.with_name('changed')}: contradicts itself: last_test_error is 1.0, but test_right has "
    )
    losses = [loss * (1 + 1e-5) for loss in beginning["losses"]]
    elsewhere = {"device": "another CPU", "beginning": {"losses": losses, "weights": "0" * 16}}
    assert verify([changed(trained, **elsewhere).path], "data") == 0
    assert "differ by at most 1.0e-05 (tolerance 1e-03) (device another CPU then" in capsys.readouterr().out
    losses = [loss * 1.01 for loss in beginning["losses"]]
    elsewhere["beginning"] = {"losses": losses, "weights": "0" * 16}
    assert verify([changed(trained, **elsewhere).path], "data") == 1


def test_what_cannot_be_verified_is_refused(trained: RunFolder) -> None:
    result = {name: value for name, value in trained.result.items() if name != "beginning"}
    other = changed(trained, data={**result["data"], "content": "0" * 16})
    with pytest.raises(UserError, match="was trained on other data than those in data: content 0000000000000000 then"):
        verify([other.path], "data")
    (other.path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"its result has no first iterations to compare with \(1 of 1 runs\)"):
        verify([other.path], "data")
