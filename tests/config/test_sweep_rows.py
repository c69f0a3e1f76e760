"""Pairs, exclusions and unions: which rows a sweep has, and which rule is named where one cannot be had."""

import sys
from pathlib import Path

import pytest

from deepnets.config.command_line import rows_of_command
from deepnets.config.schema import Sweep
from deepnets.config.sweep import rows_of
from deepnets.errors import UserError
from deepnets.runs.folder import folders_of

PARAMS = {"model.depth": "8,14,20", "epochs": "1,2,3", "seed": "0,1"}


def rows(*words: str, params: dict[str, str] = PARAMS, **rules: list) -> list[str]:
    return [" ".join(row) for row in rows_of(params, Sweep(axes=["model.depth"], **rules), words)]


def test_zip_pairs_axes() -> None:
    pairs = [["model.depth", "epochs"]]
    assert rows(zip=pairs, params=PARAMS | {"seed": "0"}) == [
        "seed=0 model.depth=8 epochs=1",
        "seed=0 model.depth=14 epochs=2",
        "seed=0 model.depth=20 epochs=3",
    ]
    assert rows("model.depth=14,20", "seed=5", zip=pairs) == [
        "seed=5 model.depth=14 epochs=2",
        "seed=5 model.depth=20 epochs=3",
    ]
    assert rows("model.depth=26,32", "epochs=7,8", "seed=0", zip=pairs) == [
        "seed=0 model.depth=26 epochs=7",
        "seed=0 model.depth=32 epochs=8",
    ]
    assert len(rows("batch_size=16,32", zip=pairs)) == 12


def test_exclude_leaves_rows_out() -> None:
    exclude = [{"model.depth": 20, "epochs": [2, 3]}, {"seed": 1, "epochs": "1,2"}]
    left = rows(exclude=exclude)
    assert len(left) == 3 * 3 * 2 - 4 - 6 + 1
    assert "model.depth=20 epochs=1 seed=0" in left
    assert not [row for row in left if "seed=1" in row and "epochs=3" not in row]


def test_union_joins_blocks() -> None:
    blocks = [{"model.depth": "8,14", "epochs": 1}, {"model.depth": [20], "optimizer.lr": [0.1, 0.01]}]
    assert rows(union=blocks, params={"seed": "0"}) == [
        "seed=0 model.depth=8 epochs=1",
        "seed=0 model.depth=14 epochs=1",
        "seed=0 model.depth=20 optimizer.lr=0.1",
        "seed=0 model.depth=20 optimizer.lr=0.01",
    ]
    assert rows("model.depth=14", "seed=3", union=blocks, params={"seed": "0"}) == ["seed=3 model.depth=14 epochs=1"]


@pytest.mark.parametrize(
    ("words", "rules", "message"),
    [
        ((), {"zip": [["model.depth", "batch_size"]]}, "sweep.zip: batch_size is not an axis of this sweep"),
        (
            ("model.depth=8,14",),
            {"zip": [["model.depth", "epochs"]], "params": PARAMS | {"epochs": "1,2"}},
            "depth has 3",
        ),
        (("model.depth=26",), {"zip": [["model.depth", "epochs"]]}, "sweep.zip: leaves no row with model.depth=26"),
        ((), {"exclude": [{"model.depth": "8,14,20"}]}, "sweep.exclude: leaves no row of this sweep"),
        ((), {"exclude": [{"depth": 8}]}, "sweep.exclude: depth is not an axis of this sweep"),
        (("epochs=2",), {"exclude": [{"epochs": 2}]}, "sweep.exclude: leaves no row with epochs=2"),
        (("seed=0,1", "epochs=2"), {"exclude": [{"epochs": 2, "seed": 1}]}, "sweep.exclude: leaves no row with seed=1"),
        (
            (),
            {"union": [{"epochs": "1,2"}, {"epochs": "2,3"}]},
            "sweep.union: two of its entries produce the row epochs=2",
        ),
        (("epochs=4",), {"union": [{"epochs": 1}, {"epochs": 2}]}, "sweep.union: leaves no row with epochs=4"),
        (("seed=range(0,1000000000)",), {}, "a grid of more than 10,000 runs"),
        (("batch_size=range(0,600)",), {}, "sweep: a grid of more than 10,000 runs"),
        ((), {"params": {f"a{n}": "range(0,10)" for n in range(9)}}, "sweep: a grid of more than 10,000 runs"),
    ],
)
def test_the_rule_that_leaves_no_row_is_named(words: tuple[str, ...], rules: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(*words, **rules)


def test_rows_of_a_sweep_file_are_composed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "paired.yaml").write_text("""# @package _global_
sweep:
  axes: [model.depth, epochs, model/shortcut]
  zip: [[model.depth, epochs]]
  exclude: [{model.depth: 14, model/shortcut: none}]
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      model.depth: 8,14
      epochs: 3,5
      model/shortcut: identity,none
""")

    def composed(*words: str) -> dict[str, int | None]:
        monkeypatch.setattr(sys, "argv", ["train.py", "sweep=paired", "--config-dir", str(tmp_path), *words])
        found = rows_of_command()
        names = ["/".join(folder.path.parts[-3:]) for folder in folders_of(found)]
        return {name: row.config.epochs for name, row in zip(names, found, strict=True)}

    assert composed() == {
        "paired/8,3,identity/seed0": 3,
        "paired/8,3,none/seed0": 3,
        "paired/14,5,identity/seed0": 5,
    }
    assert composed("model.depth=14", "seed=2") == {"paired/14,5,identity/seed2": 5}
    with pytest.raises(UserError, match=r"sweep\.exclude: leaves no row with model.depth=14"):
        composed("model.depth=14", "model/shortcut=none")
