"""Pairs, exclusions and unions: which rows a sweep has, and which rule is named where one cannot be had."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from deepnets.config.command_line import rows_of_command
from deepnets.config.schema import Sweep
from deepnets.config.sweep import rows_of
from deepnets.errors import UserError
from deepnets.runs.naming import folder_of, folders_of
from tests.config.test_every_word import said_by

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
            r"model.depth has 3 \(8, 14, 20\), epochs has 2 \(1, 2\)",
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


HYDRA = "hydra: {mode: MULTIRUN, sweeper: {params: {model.depth: '8,14', seed: 'range(3)'}}}"


def written(folder: Path, text: str) -> Path:
    """`--config-dir` of a sweep of this text, called mine."""
    (folder / "sweep").mkdir(exist_ok=True)
    (folder / "sweep" / "mine.yaml").write_text(text)
    return folder


def names(monkeypatch: pytest.MonkeyPatch, place: Path, *words: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config-dir", str(place), *words])
    return [f"{folder.path.parent.name} {folder.path.name}" for folder in folders_of(rows_of_command())]


FEWEST = "sweep: {rows: {model/shortcut: [identity, none], model.depth: [8, 14]}, seeds: 3}"


@pytest.mark.slow
def test_a_sweep_in_the_fewest_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, f"# @package _global_\n{FEWEST}\nepochs: 2\n")
    every = names(monkeypatch, place, "sweep=mine")
    assert every[:4] == ["identity,8 seed0", "identity,8 seed1", "identity,8 seed2", "identity,14 seed0"]
    assert len(every) == 12
    assert names(monkeypatch, place, "sweep=mine", "model/shortcut=none", "seed=0") == ["none,8 seed0", "none,14 seed0"]
    assert names(monkeypatch, place, "sweep=mine", "model.depth=14", "sweep.seeds=[7]")[0] == "identity,14 seed7"
    assert len(names(monkeypatch, place, "sweep=mine", "scale=mini")) == 8
    assert len(names(monkeypatch, place, "sweep=mine", "scale=mini", "sweep.seeds=4")) == 16
    assert names(monkeypatch, place, "sweep=mine", "hydra.mode=RUN", "seed=4") == ["identity,8 seed4"]


@pytest.mark.slow
def test_rows_are_those_of_hydras_sweeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = """
        sweep:
          rows:
            optimizer.lr: [1e-2, 0.5]
            model/shortcut: glob(*_b6)
            model.widths: [[4, 8, 16], [8, 16, 32]]
            epochs: range(1,3)
            model.survival: [null]
          seeds: [3, 5]"""
    theirs = """
        sweep: {axes: [optimizer.lr, model/shortcut, model.widths, epochs, model.survival]}
        hydra:
          mode: MULTIRUN
          sweeper:
            params:
              optimizer.lr: 1e-2,0.5
              model/shortcut: glob(*_b6)
              model.widths: "[4,8,16],[8,16,32]"
              epochs: range(1,3)
              model.survival: "null"
              seed: 3,5"""
    composed = []
    for text in (ours, theirs):
        place = written(tmp_path, f"# @package _global_\n{dedent(text)}\n")
        monkeypatch.setattr(sys, "argv", ["train.py", "--config-dir", str(place), "sweep=mine"])
        composed.append([(row.overrides, folder_of(row).path) for row in rows_of_command()])
    assert composed[0] == composed[1]
    assert len(composed[0]) == 2 * 3 * 2 * 2 * 2


def test_blocks_of_a_union_name_rows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(
        tmp_path,
        """# @package _global_
sweep:
  rows: {model.depth: [8]}
  union: [{model/shortcut: [identity, none]}, {model/shortcut: projection, epochs: 3, seed: 0}]
  seeds: 2
""",
    )
    found = names(monkeypatch, place, "sweep=mine")
    assert found == [
        *("8,identity,164 seed0", "8,none,164 seed0", "8,identity,164 seed1", "8,none,164 seed1"),
        "8,projection,3 seed0",
    ]


def test_a_file_of_before_may_stand_on_one_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"# @package _global_\ndefaults: [digits_shortcuts]\nsweep: {{axes: [model.depth]}}\n{HYDRA}"
    place = written(tmp_path, text)
    found = names(monkeypatch, place, "sweep=mine", "model/shortcut=none")
    assert found == [f"{depth} seed{seed}" for seed in range(3) for depth in (8, 14)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FEWEST, "begins without its header; the first line of a sweep is # @package _global_"),
        (f"# mine\n# @package _global_\n{FEWEST}", "begins without its header"),
        ("epochs: 5", "begins without its header"),
        ("axes: [model]", "begins without its header"),
        (f"# @package _global_\n{FEWEST}\n{HYDRA}", "has sweep.rows and sweep.seeds and hydra.sweeper.params; write"),
        ("# @package _global_\nsweep: {rows: {model: [resnet20]}, axes: [model]}", "has sweep.rows and sweep.axes"),
        ("# @package _global_\nsweep: {rows: {seed: [0, 1]}}", "sweep.rows: seed names no row; write sweep.seeds"),
        ("# @package _global_\nsweep: {rows: {model.depth: []}}", "sweep: model.depth has no value"),
        ("# @package _global_\nsweep: {rows: {model.depth: [range(2)]}}", "range(2) in a list stands for several"),
        ("# @package _global_\nsweep: {rows: {model.depth: {a: 1}}}", "sweep.rows"),
        ("# @package _global_\nsweep: {rows: {model: [resnet20]}, seeds: 0}", "sweep.seeds: got 0; must be at least 1"),
        ("# @package _global_\nsweep: {rows: {model: [resnet20]}, seeds: [-1]}", "sweep.seeds[0]: got -1"),
        ("# @package _global_\nsweep: {seeds: 2}", "sweep.rows: names no choice"),
        ("# @package _global_\nsweep: {rows: {modell: [resnet20]}}", "modell"),
        ("# @package _global_\nsweep: {rows: {model: [resnet2]}}", "model=resnet2: no such option; the nearest: "),
        (
            "# @package _global_\nsweep: {rows: {model/shortcut: [none, exclusive_gating]}}",
            "model.shortcut.bias: needs a value with model/shortcut=exclusive_gating",
        ),
    ],
)
def test_what_is_wrong_in_a_sweep_is_one_line(
    tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = written(tmp_path, text)
    line = said_by(["--config-dir", str(place), "sweep=mine"], monkeypatch)
    assert said in (line or "")
    assert "\n" not in line


def test_an_own_sweep_of_defaults_alone_needs_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, "defaults: [digits_shortcuts]\n")
    assert len(names(monkeypatch, place, "sweep=mine")) == 8


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["-m", "model/shortcut=[identity,none]", "seed=[0,1]"], ["model/shortcut=identity,none", "seed=0,1"]),
        (["-m", "model.depth=[8,14]", "optimizer.lr=[0.1]"], ["model.depth=8,14", "optimizer.lr=0.1"]),
        (["-m", "model=[resnet20,plain20]", "+model.batchnorm_images=[8,16]"], ["model=resnet20,plain20", "..."]),
        (
            ["-m", "model/shortcut=exclusive_gating", "model.shortcut.bias=[-1,-2]"],
            ["...", "model.shortcut.bias=-1,-2"],
        ),
        (["sweep=digits_shortcuts", "model/shortcut=[none]", "seed=[4,5]"], ["...", "model/shortcut=none", "seed=4,5"]),
    ],
)
def test_a_list_is_several_values(words: list[str], left: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [word for word in words if word != "-m"]
    commas = [word if comma == "..." else comma for word, comma in zip(typed, left, strict=True)]
    commas = [word.replace("=[", "=").removesuffix("]") if word.startswith("+") else word for word in commas]
    overrides = []
    for each in (typed, commas):
        monkeypatch.setattr(sys, "argv", ["train.py", *(["-m"] * ("-m" in words)), *each])
        overrides.append([row.overrides for row in rows_of_command()])
    assert overrides[0] == overrides[1]


@pytest.mark.parametrize(
    "word", ["schedule.milestones=[15,25]", "model.widths=[4,8,16]", "model.units=[1,1,1]", "optimizer.nope=[1,2]"]
)
def test_a_list_is_one_value_where_the_key_takes_a_list(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", f"+{word}" if "nope" in word else word])
    (row,) = rows_of_command()
    assert row.overrides[0].lstrip("+") == word


def test_an_own_class_is_not_imported_to_know_what_is_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An import would come before code=frozen chooses which version of the class this process imports.
    (tmp_path / "own_list_net.py").write_text("raise AssertionError\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("_target_: own_list_net.Net\nunits: 2\nwidths: [4, 8]\nmore: null\n")
    words = ["-m", "model=own", "model.units=[2,3]", "model.widths=[8,8]", "model.more=[1,2]"]
    trusted = ["--config-dir", str(tmp_path), "--trust", str(tmp_path / "own_list_net.py")]
    monkeypatch.setattr(sys, "argv", ["train.py", *trusted, *words])
    assert [row.overrides for row in rows_of_command()] == [
        ("model=own", f"model.units={units}", "model.widths=[8,8]", "model.more=[1,2]") for units in (2, 3)
    ]


def test_a_list_of_options_without_a_grid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_by(["model/shortcut=[identity,none]"], monkeypatch)
    assert said == "model/shortcut=identity,none: add -m to train a run with each value"
