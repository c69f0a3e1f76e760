"""Committed records in which somebody edits a file: each contradiction is named, and the record counts nowhere."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deepnets.config.identity import identity_hash
from deepnets.errors import UserError
from deepnets.results.export import load_results
from deepnets.results.read import Run, read_runs, unchecked
from deepnets.results.records import keep, records_pages
from deepnets.results.report import report
from deepnets.results.verify import verify
from deepnets.runs.contents import packed, unpacked
from deepnets.runs.folder import RunFolder
from tests.command import ROOT

RECORDS = ROOT / "outputs" / "records"
TABLE = "he2015_table6+scale=deep"
NET = f"{TABLE}/resnet110/seed0"  # 5 epochs, 1600 iterations, 54.92 %
OLD = "he2015_table6+scale=mini/resnet20/seed0"  # without test_right
COSINE = "ordering_warmup_transformer/post_norm,0/seed0"
PLATEAU = "balduzzi2017_fig6+scale=mini/thin_linear,10/seed0"
VALIDATED = "huang2016_table1_augmented+scale=deep/cifar10,linear_decay/seed0"
DIVERGED = "depth_transfer/identity,56,2.5/seed1"
LATE = "srivastava2015_fig1_highway+scale=mini/highway_fc50,2/seed0"  # diverges in its first epoch

Edit = Callable[[Path], None]


def result(**entries: object) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | entries))

    return edit


def without(*entries: str) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "result.json"
        kept = json.loads(file.read_text())
        file.write_text(json.dumps({name: value for name, value in kept.items() if name not in entries}))

    return edit


def config(before: str, after: str) -> Edit:
    def edit(folder: Path) -> None:
        text = (folder / "config.yaml").read_text()
        assert text.count(before) == 1
        (folder / "config.yaml").write_text(text.replace(before, after))

    return edit


def cell(epoch: int, column: str, value: str) -> Edit:
    def edit(folder: Path) -> None:
        with (folder / "metrics.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        rows[epoch - 1][column] = value
        with (folder / "metrics.csv").open("w") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    return edit


def epochs(change: Callable[[list[str]], list[str]]) -> Edit:
    def edit(folder: Path) -> None:
        header, *rows = (folder / "metrics.csv").read_text().splitlines()
        (folder / "metrics.csv").write_text("\n".join([header, *change(rows)]) + "\n")

    return edit


def bits(change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    def edit(folder: Path) -> None:
        ended = RunFolder(folder).result
        result(test_right=packed(change(unpacked(ended.test_right, ended.data["test"]))))(folder)

    return edit


def flip_one(right: np.ndarray) -> np.ndarray:
    return np.concatenate([~right[:1], right[1:]])


def both(*edits: Edit) -> Edit:
    def edit(folder: Path) -> None:
        for each in edits:
            each(folder)

    return edit


def fit_identity(folder: Path) -> None:
    """The identity of the edited config.yaml, as somebody who knows the code writes it."""
    result(identity=identity_hash(RunFolder(folder).config))(folder)


LOWER = both(
    result(test_error=44.92, last_test_error=44.92, best_test_error=44.92),
    cell(5, "test_error", "44.92"),
)

EDITS: dict[str, tuple[str, Edit, str]] = {
    "error in result.json": (
        NET,
        result(test_error=44.92),
        "test_error is 44.92, but test_right has 4508 of 10000 images right, an error of 54.92",
    ),
    "error in metrics.csv": (
        NET,
        cell(5, "test_error", "44.92"),
        "test_error is 54.92 in result.json, 44.92 by metrics.csv",
    ),
    "error in both": (
        NET,
        LOWER,
        "last_test_error is 44.92, but test_right has 4508 of 10000 images right, an error of 54.92",
    ),
    "error in both, without last_test_error": (
        NET,
        both(LOWER, without("last_test_error")),
        "test_error is 44.92, but test_right has 4508 of 10000 images right, an error of 54.92",
    ),
    "error, without metrics.csv": (
        NET,
        both(result(test_error=44.92), lambda folder: (folder / "metrics.csv").unlink()),
        "test_error is 44.92, but test_right has 4508 of 10000 images right, an error of 54.92",
    ),
    "error of an old record": (OLD, result(test_error=8.75), "test_error is 8.75 in result.json, 18.07 by metrics.csv"),
    "last error": (NET, result(last_test_error=50.0), "last_test_error is 50.0, but test_right has 4508 of"),
    "best error": (NET, result(best_test_error=50.0), "best_test_error is 50.0 in result.json, 54.84 by metrics.csv"),
    "training error": (NET, result(train_error=1.0), "train_error is 1.0 in result.json, 57.682"),
    "selected error": (
        VALIDATED,
        result(test_error=50.0),
        "test_error is 50.0 in result.json, 62.58 by metrics.csv",
    ),
    "another epoch selected": (
        VALIDATED,
        cell(1, "validation_error", "1.0"),
        "by metrics.csv",
    ),
    "selection": (
        VALIDATED,
        both(config("selection: best_validation", "selection: final"), fit_identity),
        "is best_validation in result.json, final by config.yaml",
    ),
    "a bit flipped": (NET, bits(flip_one), "test_error is 54.92, but test_right has 450"),
    "all bits flipped": (NET, bits(np.logical_not), "but test_right has 5492 of 10000 images right, an error of 45.08"),
    "an epoch removed": (NET, epochs(lambda rows: [*rows[:1], *rows[2:]]), "4 epochs in metrics.csv, 5 by config.yaml"),
    "an epoch twice": (NET, epochs(lambda rows: [rows[0], *rows]), "6 epochs in metrics.csv, 5 by config.yaml"),
    "no epochs": (
        OLD,
        both(
            result(
                **dict.fromkeys(("test_error", "selected_epoch", "last_test_error", "best_test_error", "train_error"))
            ),
            epochs(lambda rows: []),
        ),
        "finished with 0 epochs in metrics.csv, 9 by config.yaml",
    ),
    "epochs swapped": (
        NET,
        epochs(lambda rows: [rows[1], rows[0], *rows[2:]]),
        "epoch 2 in metrics.csv ends at iteration 782, epoch 1 by config.yaml at 391",
    ),
    "an iteration": (
        NET,
        cell(2, "iteration", "780"),
        "epoch 2 in metrics.csv ends at iteration 780, epoch 2 by config.yaml at 782",
    ),
    "iterations": (NET, result(iterations=64000), "iterations is 64000 in result.json, 1600 by config.yaml"),
    "number of epochs": (NET, result(epochs=164), "epochs is 164 in result.json, 5 in metrics.csv"),
    "learning rate": (
        NET,
        cell(2, "learning_rate", "0.05"),
        "learning_rate of epoch 2 is 0.05 in metrics.csv, 0.1 by config.yaml",
    ),
    "learning rate of a cosine": (COSINE, cell(30, "learning_rate", "0.001"), "learning_rate of epoch 30 is 0.001 in"),
    "learning rate that follows a plateau": (
        PLATEAU,
        cell(5, "learning_rate", "0.001"),
        "learning_rate of epoch 5 is 0.001 in metrics.csv, ",
    ),
    "column removed": (
        NET,
        lambda folder: (folder / "metrics.csv").write_text(
            (folder / "metrics.csv").read_text().replace("learning_rate", "rate")
        ),
        "epoch 1 in metrics.csv has no learning_rate",
    ),
    "budget": (
        NET,
        both(config("iterations: 64000", "iterations: 32000"), fit_identity),
        "5 epochs in metrics.csv, 3 by config.yaml",
    ),
    "batch size": (
        NET,
        both(config("\nbatch_size: 128", "\nbatch_size: 64"), fit_identity),
        "5 epochs in metrics.csv, 3 by config.yaml",
    ),
    "optimizer's learning rate": (
        NET,
        both(config("lr: 0.1", "lr: 0.2"), fit_identity),
        "learning_rate of epoch 1 is 0.1 in metrics.csv, 0.2 by config.yaml",
    ),
    "schedule": (
        NET,
        both(config("- 32000", "- 48001"), fit_identity),
        "config.yaml cannot be trained: schedule: milestones [48001, 48000]",
    ),
    "weight decay": (NET, config("weight_decay: 0.0001", "weight_decay: 0.001"), "identity is 54f25c1b5c4d in"),
    "seed": (NET, config("\nseed: 0", "\nseed: 7"), "the folder is named seed0, config.yaml has seed 7"),
    "seed in a folder of another name": (
        NET,
        both(config("\nseed: 0", "\nseed: 7"), lambda folder: folder.rename(folder.with_name("kept")) and None),
        "identity is 54f25c1b5c4d in result.json, ",
    ),
    "identity": (
        NET,
        result(identity="0" * 12),
        "identity is 000000000000 in result.json, 54f25c1b5c4d by config.yaml",
    ),
    "a target that is a list": (
        NET,
        config("_target_: deepnets.schedule.Step", "_target_: [deepnets.schedule.Step]"),
        "identity is 54f25c1b5c4d in",
    ),
    "a word in place of a number": (
        NET,
        both(config("\nbatch_size: 128", "\nbatch_size: '64'"), without("identity")),
        "5 epochs in metrics.csv, 3 by config.yaml",
    ),
    "a key removed": (
        NET,
        config("\nseed: 0", ""),
        "identity is 54f25c1b5c4d in result.json, and config.yaml has no seed",
    ),
    "folder moved": (
        NET,
        lambda folder: folder.rename(folder.with_name("seed1")) and None,
        "the folder is named seed1, config.yaml has seed 0",
    ),
    "diverged made finished": (DIVERGED, result(status="finished"), "finished with 0 epochs in metrics.csv, "),
    "diverged with an error": (
        DIVERGED,
        result(test_error=8.0),
        "test_error is 8.0 in result.json, None by metrics.csv",
    ),
    "finished made diverged": (
        NET,
        both(result(status="diverged", test_error=None, selected_epoch=None)),
        "diverged with 5 epochs in metrics.csv, 5 by config.yaml",
    ),
    "iterations of a diverged run": (LATE, result(iterations=5000), "iterations is 5000 in result.json, 12000 by"),
}


def planted(tmp_path: Path, record: str, *edits: Edit) -> Path:
    """The row's folder with a copy of the record, edited."""
    folder = tmp_path / record
    shutil.copytree(RECORDS / record, folder)
    for edit in edits:
        edit(folder)
    return folder.parent


def only(folder: Path) -> Run:
    (run,) = read_runs([folder])
    return run


@pytest.mark.parametrize(("record", "edit", "words"), EDITS.values(), ids=EDITS)
def test_an_edit_is_named_and_the_record_gives_no_number(tmp_path: Path, record: str, edit: Edit, words: str) -> None:
    run = only(planted(tmp_path, record, edit))
    assert words in run.contradiction
    assert "\n" not in run.contradiction
    assert (run.state.name, run.state.reason) == ("failed", "contradicts itself")
    assert (run.error, run.result, run.history) == (None, {}, [])


HONEST: dict[str, tuple[str, Edit]] = {
    **{f"{record} as it is": (record, both()) for record in (NET, OLD, COSINE, PLATEAU, VALIDATED, DIVERGED, LATE)},
    "no bits": (NET, without("test_right")),
    "no data": (NET, without("data", "test_right")),
    "no identity": (NET, without("identity")),
    "no metrics": (NET, lambda folder: (folder / "metrics.csv").unlink()),
    "another place": (NET, config("root: data", "root: /elsewhere")),
    "another launcher": (NET, config("threads: 1", "threads: 2")),
    "a folder of another name": (NET, lambda folder: folder.rename(folder.with_name("kept")) and None),
    "a number as the folder's name": (NET, lambda folder: folder.rename(folder.with_name("2026")) and None),
    "a user's own schedule": (NET, both(config("deepnets.schedule.Step", "mine.Step"), fit_identity)),
}


@pytest.mark.parametrize(("record", "edit"), HONEST.values(), ids=HONEST)
def test_an_honest_record_counts(tmp_path: Path, record: str, edit: Edit) -> None:
    run = only(planted(tmp_path, record, edit))
    assert run.contradiction == ""
    assert run.error == (np.inf if record in (DIVERGED, LATE) else RunFolder(RECORDS / record).result.test_error)


def test_all_committed_records_agree_with_themselves_and_each_other() -> None:
    runs = read_runs([RECORDS])
    assert [f"{run.folder}: {run.contradiction}" for run in runs if run.contradiction] == []
    lines = unchecked(runs)
    assert [line.split(":")[0] for line in lines] == ["test error by image"]


def test_what_cannot_be_checked_is_counted(tmp_path: Path) -> None:
    planted(tmp_path, NET, without("test_right", "identity"))
    planted(tmp_path, COSINE, lambda folder: (folder / "metrics.csv").unlink())
    planted(tmp_path, PLATEAU, both(config("deepnets.schedule.Plateau", "mine.Plateau"), fit_identity))
    assert unchecked(read_runs([tmp_path])) == [
        "test error by image: 1 of 3 runs (result.json has no test_right)",
        "errors by epoch: 1 of 3 runs (no readable metrics.csv)",
        "number of epochs: 1 of 3 runs (no readable metrics.csv, or no data.train in result.json)",
        "learning rates: 2 of 3 runs (no readable metrics.csv, no data.train, or the user's own schedule or optimizer)",
        "identity: 1 of 3 runs (result.json has none)",
    ]


COPIES = {
    "another seed": (NET, config("\nseed: 0", "\nseed: 1"), "seed1", "seed is 1 here, 0 there"),
    "another seed of an old record": (OLD, config("\nseed: 0", "\nseed: 1"), "seed1", "seed is 1 here, 0 there"),
    "another seed without evidence": (
        NET,
        both(config("\nseed: 0", "\nseed: 1"), without("beginning", "test_right")),
        "seed1",
        "seed is 1 here, 0 there",
    ),
    "another depth": (
        NET,
        config("depth: 110", "depth: 56"),
        "seed0",
        "model.units is [9, 9, 9] here, [18, 18, 18] there",
    ),
    "another optimizer": (
        NET,
        config("weight_decay: 0.0001", "weight_decay: 0.001"),
        "seed0",
        "optimizer.weight_decay is 0.001 here, 0.0001 there",
    ),
}


@pytest.mark.parametrize(("record", "edit", "name", "words"), COPIES.values(), ids=COPIES)
def test_a_copy_under_another_name_and_its_original_are_named(
    tmp_path: Path, record: str, edit: Edit, name: str, words: str
) -> None:
    original = planted(tmp_path, record) / "seed0"
    copy = shutil.copytree(original, tmp_path / "table" / "copy" / name)
    both(edit, fit_identity)(copy)
    assert only(copy).contradiction == ""  # nothing in it is wrong
    contradictions = {run.folder.path: run.contradiction for run in read_runs([tmp_path])}
    assert contradictions[copy] == f"all epochs equal those of {original}, bit by bit; {words}"
    assert str(copy) in contradictions[original]


def test_a_setting_of_ones_own_code_may_change_nothing_but_a_seed_must(tmp_path: Path) -> None:
    original = planted(tmp_path, NET) / "seed0"
    both(config("_target_: deepnets.models.resnet.ResNet", "_target_: own.Net"), fit_identity)(original)
    depth, seed = (shutil.copytree(original, tmp_path / "table" / name) for name in ("depth/seed0", "depth/seed1"))
    both(config("depth: 110", "depth: 56"), fit_identity)(depth)
    assert {run.contradiction for run in read_runs([original, depth])} == {""}
    both(config("\nseed: 0", "\nseed: 1"), fit_identity)(seed)
    assert all("bit by bit; seed is " in run.contradiction for run in read_runs([original, seed]))


def test_a_net_that_two_tables_name_differently_is_no_copy(tmp_path: Path) -> None:
    planted(tmp_path, "he2016_table1+scale=deep/identity/seed0")
    planted(tmp_path, "he2016_table2+scale=deep/basic,original/seed0")  # units instead of a depth
    planted(tmp_path, "he2016_table1+scale=deep/exclusive_gating_b0/seed0")
    planted(tmp_path, "he2016_table1+scale=deep/exclusive_gating_b0/seed1")  # collapsed: test_right is equal
    runs = read_runs([tmp_path])
    assert len({str(run.history) for run in runs}) == 4
    assert [run.contradiction for run in runs] == [""] * 4


@pytest.mark.slow
def test_the_rest_of_a_table_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / TABLE
    for seed in range(3):
        shutil.copytree(RECORDS / TABLE / "resnet110" / f"seed{seed}", table / "resnet110" / f"seed{seed}")
    LOWER(table / "resnet110" / "seed0")
    told = f"contradicts itself: {table}/resnet110/seed0: last_test_error is 44.92, but test_right has 4508 of"
    files = {kind: tmp_path / kind for kind in ("csv", "latex", "markdown")}
    assert report([table], tmp_path / "page", files, False) == 0
    said = capsys.readouterr().out
    assert said.count(told) == 1
    assert said.count("44.92") == 1
    assert not any("44.92" in file.read_text() or "54.92" in file.read_text() for file in files.values())
    (line,) = [
        line for line in csv.DictReader((tmp_path / "csv").read_text().splitlines()) if line["row"] == "resnet110"
    ]
    assert (line["n"], line["state"]) == ("2", "1 failed; contradicts itself")
    results = load_results(table)
    assert list(results.test_error.isna()) == [True, False, False]
    assert results.reason[0].startswith("last_test_error is 44.92, but test_right has 4508 of 10000 images right")
    assert set(results.curves.seed) == {1, 2}
    text = records_pages(tmp_path)["README.md"]
    assert f"* Warning: {told}" in text
    assert "cannot be checked" not in text
    (table / "about.md").write_text('{{ result("resnet110", "test_error") }}')
    with pytest.raises(UserError, match=re.escape(f"{table}/resnet110/seed0 contradicts itself: last_test_error is")):
        records_pages(tmp_path)
    with pytest.raises(UserError, match=r"seed0: contradicts itself: last_test_error is 44\.92, but"):
        keep([table], tmp_path / "kept")
    capsys.readouterr()
    assert verify([table / "resnet110" / "seed0"], "data") == 1
    assert capsys.readouterr().out.startswith(f"{table}/resnet110/seed0: contradicts itself: last_test_error is 44.92")
