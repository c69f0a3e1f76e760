"""`plan=true`: the seeds that claims need."""

from pathlib import Path

import pytest

from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.results.seeds import show_seeds
from tests.command import row

TABLE = ["sweep=digits_shortcuts", "model.depth=8", "model.widths=[4,4,4]", "epochs=1", "device=cpu", "threads=1"]
CLAIM = 'sweep.claims=[{claim: "identity is lower than none", place: Table 1}]'


def test_a_grid_says_what_its_claims_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(tmp_path, *TABLE, CLAIM, f"model/shortcut={name}") for name in ("identity", "none")]
    show_seeds(rows)
    assert "claims     1, each is looked at with 3, 5, 10 seeds of its rows" in capsys.readouterr().out
    show_seeds([row(tmp_path, "sweep=he2016_table1", "scale=mini")])
    assert "not tested: nets of another depth than the paper's" in capsys.readouterr().out
    show_seeds([row(tmp_path, "sweep=he2016_table1", "scale=deep")])
    assert "each is looked at with 3, 5, 10 seeds" in capsys.readouterr().out
    show_seeds([row(tmp_path, *TABLE)])
    show_seeds([row(tmp_path, "dataset=digits")])
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="identity is better than none"):
        show_seeds([row(tmp_path, *TABLE, CLAIM.replace("lower", "better"))])
    assert launch(rows) == 0
    capsys.readouterr()
    show_seeds(rows)
    assert "claims     1, each" in capsys.readouterr().out  # of this claim no sweep file knows
    tiny = [*TABLE[1:3], "epochs=null", "iterations=2", "schedule=constant", *TABLE[4:], "dataset=digits"]
    table = [row(tmp_path, "sweep=he2015_fig6", *tiny, f"model={name}") for name in ("plain20", "plain56")]
    assert launch(table) == 0
    capsys.readouterr()
    show_seeds(table)
    shown = capsys.readouterr().out
    assert "plain56 is higher than plain20" in shown
    assert "1, 1" in shown
