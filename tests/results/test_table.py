"""Every number of a table against arithmetic of its own, from result.json as it lies on disk."""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from deepnets.results.cell import Cell
from deepnets.results.export import load_results
from deepnets.results.published import PublishedRow
from deepnets.results.read import Run, read_runs
from deepnets.results.report import environment_sheet
from deepnets.results.statistics import Errors, compare_rows
from deepnets.results.table import Table, _about_lowest, overview_sheet, result_sheets, tables_of
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State
from deepnets.system.printing import MINUS, short_commit
from tests.trained import Trained, pretend


@pytest.fixture(scope="module")
def table(trained: Trained) -> Table:
    (table,) = tables_of(read_runs([trained.path]))
    return table


def line(table: Table, row: str, column: int = 0) -> dict[str, str]:
    sheet = result_sheets(table)[column]
    return next(dict(zip(sheet.header, cells, strict=True)) for cells in sheet.lines if cells[0] == row)


@pytest.mark.parametrize("row", ["identity", "none", "scaled_0.5_0.5"])
def test_the_statistics_of_a_row(trained: Trained, table: Table, row: str) -> None:
    errors, cell = np.array(trained.errors(row)), table.cells[row, 0]
    assert len(cell.errors) == len(errors) == {"identity": 4, "none": 3, "scaled_0.5_0.5": 2}[row]
    assert len(set(errors)) > 1
    assert cell.median == pytest.approx(np.quantile(errors, 0.5))
    assert cell.mean == pytest.approx(errors.sum() / len(errors))
    assert cell.std == pytest.approx(math.sqrt(((errors - errors.mean()) ** 2).sum() / (len(errors) - 1)))
    assert cell.best == errors.min()
    published = {"identity": np.quantile(errors, 0.5), "none": errors.min() / 50, "scaled_0.5_0.5": 10}[row]
    assert cell.difference == pytest.approx(np.quantile(errors, 0.5) - published)
    shown = line(table, row)
    assert shown["n"] == str(len(errors))
    assert shown["median"] == f"{np.quantile(errors, 0.5):.2f}"
    assert shown["mean ± std"] == f"{errors.mean():.2f} ± {errors.std(ddof=1):.2f}"
    assert shown["best"] == f"{errors.min():.2f}"
    assert shown["published"] == f"{published:.2f}"
    assert float(shown["difference"].replace("\N{MINUS SIGN}", "-")) == pytest.approx(cell.difference, abs=0.005)


def test_a_paper_that_reports_its_best_epochs_is_compared_by_that_rule(trained: Trained, table: Table) -> None:
    cell = table.cells["identity", 0]
    best = []
    for seed in range(4):
        lines = (trained.path / "identity" / f"seed{seed}" / "metrics.csv").read_text().splitlines()
        errors = [float(line.split(",")[lines[0].split(",").index("test_error")]) for line in lines[1:]]
        best.append(sum(sorted(errors)[:2]) / 2)
    assert sorted(best) != sorted(cell.errors)
    ruled = replace(cell, published=PublishedRow(test_error=float(np.median(best)), best_epochs=2))
    assert ruled.compared == pytest.approx(best)
    assert (ruled.difference, ruled.verdict) == (pytest.approx(0), "compatible")
    assert ruled.facts()["best epochs"] == f"{np.median(best):.2f}"
    assert (ruled.median, ruled.facts()["median"]) == (cell.median, f"{cell.median:.2f}")


def test_a_run_whose_epochs_are_lost_is_left_out_of_such_a_rule(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path, tmp_path / "table")
    (path / "identity" / "seed0" / "metrics.csv").unlink()
    (table,) = tables_of(read_runs([path]))
    ruled = replace(table.cells["identity", 0], published=PublishedRow(best_epochs=2))
    assert (len(ruled.errors), len(ruled.compared)) == (4, 3)


def test_the_interval_of_three_or_four_seeds_is_their_range(trained: Trained, table: Table) -> None:
    # The least of 4 is the median of 13 of their 256 resamples, the least of 3 of 7 of 27: more than the 2.5% outside.
    for row in ("identity", "none"):
        errors = trained.errors(row)
        assert table.cells[row, 0].interval == pytest.approx((min(errors), max(errors)))
    assert table.cells["scaled_0.5_0.5", 0].interval is None


def test_each_verdict(table: Table) -> None:
    verdicts = {row: table.cells[row, 0].verdict for row in table.rows}
    assert verdicts == {
        "identity": "compatible",
        "none": "differs",
        "projection": "agrees",
        "scaled_0.5_0.5": "n < 3",
        "exclusive_gating_b6": "",
        "shortcut_only_gating_b6": "",
        "dropout": "",
        "scaled_0.5_1": "",
    }
    assert table.notes[0].startswith("Verdict, from 3 seeds on: the printed number is itself drawn by chance")


def test_a_row_that_diverged_is_a_fail_without_a_mean(trained: Trained, table: Table) -> None:
    cell = table.cells["projection", 0]
    assert [result["status"] for result in trained.results("projection")] == ["diverged"] * 3
    assert cell.errors == [math.inf] * 3
    assert (cell.median, cell.mean, cell.std, cell.difference) == (math.inf, None, None, None)
    shown = line(table, "projection")
    assert (shown["median"], shown["published"]) == ("fail", "fail")
    assert shown["state"] == "3 of 3 diverged"


def test_rows_that_have_no_result_say_why(trained: Trained, table: Table) -> None:
    assert trained.in_flight == "1 running, at epoch 0 of 2"
    assert line(table, "exclusive_gating_b6")["state"] == "1 dead"
    assert line(table, "dropout")["state"] == "1 failed; RuntimeError: dropout is broken"
    assert line(table, "scaled_0.5_1")["state"] == "1 waiting"
    assert line(table, "shortcut_only_gating_b6")["state"] == "missing"
    assert line(table, "exclusive_gating_b6")["n"] == "0"


def test_what_else_the_paper_prints_is_shown(table: Table) -> None:
    assert table.published.statistic == "median of 5"
    assert line(table, "identity")["also published"] == "mean 50.25 ± 0.16, best 40.12"


@pytest.mark.parametrize(
    ("errors", "published", "full", "verdict"),
    [
        ([6.4, 6.6, 6.9], 6.61, True, "compatible"),
        ([6.4, 6.6, 6.9], 5.4, True, "compatible"),
        ([6.4, 6.6, 6.9], 5.3, True, "differs"),
        ([6.4, 6.6, 6.9], 6.61, False, ""),
        ([6.4, 6.6], 6.61, True, "n < 3"),
        ([6.4, 6.6, 6.9], "fail", True, "differs"),
        ([20.0, 20.1, 20.2], "fail", True, "agrees"),
        ([20.0, 20.0, 20.2], "fail", True, "differs"),
        ([20.0, 20.1, 20.2], 20.1, True, "differs"),
        ([20.0, 20.1, 20.2], "fail", False, ""),
        ([6.0, math.inf, math.inf], "fail", False, ""),
        ([6.0, math.inf, math.inf], 6.0, True, "differs"),
        ([6.0, 6.1, math.inf], 6.1, True, "compatible"),
        ([6.0, 6.0, 6.0], 6.0, True, "compatible"),
        ([6.0, 6.0, 6.0], 6.1, True, "differs"),
        ([6.0, 6.1, 6.2], None, True, ""),
    ],
)
def test_the_rule(errors: list[float], published: float | str | None, full: bool, verdict: str) -> None:
    states = [State("diverged" if math.isinf(error) else "finished") for error in errors]
    runs = [
        Run(RunFolder("run"), {}, {}, {"test_error": error}, state) for error, state in zip(errors, states, strict=True)
    ]
    cell = Cell(tuple(runs), PublishedRow(published), full, 20.0 if full else math.inf)
    assert cell.verdict == verdict


def test_a_paper_that_prints_errors_above_20_has_no_such_fail(table: Table) -> None:
    assert table.cells["identity", 0].median > 20
    assert not table.cells["identity", 0].is_fail
    assert "The paper itself prints errors above 20%: only a non-finite median is a fail." in table.notes


def published(sweeps: Path, axes: list[str], errors: dict[str, object]) -> dict[str, object]:
    """The configuration of a run of the table t, whose file in `sweeps` prints these errors."""
    (sweeps / "t.yaml").write_text(
        yaml.safe_dump({"sweep": {"axes": axes, "reported": {"test_error": errors}}}, sort_keys=False)
    )
    return {"seed": 0, "scale": {"name": "full"}, "sweep": {"axes": axes}}


@pytest.mark.parametrize(
    ("others", "is_fail"),
    [({"b": "fail"}, True), ({"b": 7.0}, False), ({"b": None}, False), ({"b": "fail", "c": 30.0}, False), ({}, False)],
)
def test_above_20_is_a_fail_only_where_the_paper_prints_fails(
    others: dict[str, object], is_fail: bool, tmp_path: Path
) -> None:
    config = published(tmp_path, ["model"], {"a": 10.0, **others})
    runs = [Run(RunFolder(f"t/a/seed{n}"), config, {}, {"test_error": 52.0 + n}, State("finished")) for n in range(3)]
    (table,) = tables_of(runs, tmp_path)
    assert line(table, "a")["median"] == ("fail (53.00)" if is_fail else "53.00")
    assert table.cells["a", 0].verdict == "differs"
    assert any("above 20%" in note for note in table.notes) == ("fail" in others.values())


def test_a_copied_sweep_keeps_its_name_and_its_published_numbers(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    config = published(tmp_path / "copy", ["model"], {"a": 10.0})
    origin = {"choices": {"sweep": "t"}}
    run = Run(RunFolder(f"{tmp_path}/copy/a/seed0"), config, origin, {"test_error": 9.0}, State("finished"))
    (table,) = tables_of([run], tmp_path)
    assert (table.name, table.published.rows["a"].test_error) == ("t", 10.0)
    record = replace(run, origin={})  # which notes no sweep: its file lies alone beside the rows
    (table,) = tables_of([record], tmp_path)
    assert (table.name, table.published.rows["a"].test_error) == ("t", 10.0)
    single = replace(run, origin={}, config={**config, "sweep": None})
    assert tables_of([single], tmp_path)[0].name == "copy"
    (tmp_path / "copy" / "u.yaml").touch()
    assert tables_of([record], tmp_path)[0].name == "copy"


def test_a_divergence_is_a_fail_in_every_table(tmp_path: Path) -> None:
    config = published(tmp_path, ["model"], {"a": 10.0})
    run = Run(RunFolder("t/a/seed0"), config, {}, {}, State("diverged"))
    (table,) = tables_of([run], tmp_path)
    assert line(table, "a")["median"] == "fail"
    assert table.notes[1:] == ["fail: a non-finite median."]


def test_a_row_that_was_deleted_from_the_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sweep: {rows: {model: [a, b]}}")
    config = {"seed": 0, "scale": {"name": "full"}, "sweep": {"axes": ["model"]}}
    runs = [Run(RunFolder(f"t/{name}/seed0"), config, {}, {"test_error": 5.0}, State("finished")) for name in "acd"]
    (table,) = tables_of(runs, tmp_path)
    assert table.warnings == [
        "the sweep's file does not have the row c and 1 more; its runs are shown until you delete them"
    ]
    assert tables_of(runs[:1], tmp_path)[0].warnings == []


def test_rows_are_ranked_within_each_value_of_the_first_axis(tmp_path: Path) -> None:
    printed = {f"{dataset},{row}": error for dataset in ("easy", "hard") for error, row in enumerate("vwxyz")}
    ours = {"easy": (1, 2, 3, 4, 5), "hard": (19, 18, 17, 16, 14)}
    config = published(tmp_path, ["dataset", "model"], printed)
    runs = [
        Run(RunFolder(f"t/{dataset},{row}/seed0"), config, {}, {"test_error": float(error)}, State("finished"))
        for dataset, errors in ours.items()
        for row, error in zip("vwxyz", errors, strict=True)
    ]
    (sheet,) = result_sheets(*tables_of(runs, tmp_path))
    rankings = [note.split(" with")[0] for note in sheet.note.split("Ranking of ")[1:]]
    assert rankings == ["5 rows of easy: Kendall's τ = +1.00", f"5 rows of hard: Kendall's τ = {MINUS}1.00"]


@pytest.mark.parametrize(
    ("commit", "short"),
    [("0123456789abcdef", "0123456789"), ("0123456789abcdef-dirty", "0123456789-dirty"), (None, "unknown")],
)
def test_a_short_commit_keeps_that_it_was_dirty(commit: str | None, short: str) -> None:
    assert short_commit(commit) == short


def test_mini_and_full_are_separate_columns(trained: Trained, tmp_path: Path) -> None:
    full, mini = tmp_path / "shortcuts_on_digits", tmp_path / "shortcuts_on_digits+scale=mini"
    shutil.copytree(trained.path / "identity", full / "identity")
    shutil.copy(trained.path / "shortcuts_on_digits.yaml", full)
    shutil.copytree(trained.path / "identity" / "seed0", mini / "identity" / "seed0")
    pretend(mini / "identity" / "seed0", "name: full\n  budget: 1.0", "name: mini\n  budget: 0.05")
    (table,) = tables_of(read_runs([full, mini]))
    assert [column.label for column in table.columns] == ["full", "scale=mini"]
    assert [len(table.cells["identity", index].errors) for index in (0, 1)] == [4, 1]
    assert [bool(line(table, "identity", index)["difference"]) for index in (0, 1)] == [True, False]
    errors = trained.errors("identity")
    sheet = overview_sheet(table)
    assert sheet.header == ("shortcut", "published", "full", "scale=mini")
    assert sheet.lines[0][2:] == (f"{np.median(errors):.2f} (n = 4)", f"{errors[0]:.2f} (n = 1)")


@pytest.mark.parametrize(
    ("before", "after", "labels"),
    [
        ("batch_size: 128", "batch_size: 64", ["batch_size=128", "batch_size=64"]),
        ("  momentum: 0.9", "  momentum: 0.8", ["optimizer.momentum=0.9", "optimizer.momentum=0.8"]),
    ],
)
def test_seeds_of_a_row_with_other_settings_are_not_averaged(
    trained: Trained, tmp_path: Path, before: str, after: str, labels: list[str]
) -> None:
    path = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits")
    for seed in (2, 3):
        pretend(path / "identity" / f"seed{seed}", before, after)
    (table,) = tables_of(read_runs([path]))
    assert [column.label for column in table.columns] == labels
    errors = trained.errors("identity")
    assert table.cells["identity", 0].mean == pytest.approx(sum(errors[:2]) / 2)
    assert table.cells["identity", 1].mean == pytest.approx(sum(errors[2:]) / 2)


@pytest.mark.parametrize(("before", "after"), [("batch_size: 128", "batch_size: 64"), ("\nepochs: 2", "\nepochs: 3")])
def test_a_row_with_another_batch_size_or_budget_stands_in_another_column(
    trained: Trained, tmp_path: Path, before: str, after: str
) -> None:
    path = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits")
    for folder in (path / "none").glob("seed*"):
        pretend(folder, before, after)
    if "epochs" in before:
        (table,) = tables_of(read_runs([path]))
        assert len(table.columns) == 1
        assert "rows differ in epochs" in "".join(table.warnings)  # the file sets none, so they may follow from a row
        with (path / "shortcuts_on_digits.yaml").open("a") as file:
            file.write("\nepochs: 3\n")
    (table,) = tables_of(read_runs([path]))
    assert [column.label for column in table.columns] == [text.strip().replace(": ", "=") for text in (before, after)]
    assert not any(column.is_published_protocol for column in table.columns)
    assert "rows differ" not in "".join(table.warnings)
    assert [len(table.cells["none", index].errors) for index in (0, 1)] == [0, 3]


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ("epochs: 2", "full"),
        ("epochs: 5", "epochs=2"),
        ("epochs: null\niterations: 500", "epochs=2"),
        ("", "full"),
    ],
)
def test_a_budget_edited_in_the_file_after_all_runs_is_named(
    content: str, label: str, trained: Trained, tmp_path: Path
) -> None:
    path, own = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits"), tmp_path / "conf" / "sweep"
    own.mkdir(parents=True)
    (own / path.with_suffix(".yaml").name).write_text((path / path.with_suffix(".yaml").name).read_text() + content)
    (table,) = tables_of(read_runs([path]), project_sweeps=own)
    (column,) = table.columns
    assert (column.label, column.is_published_protocol) == (label, label == "full")
    (tmp_path / "project.yaml").write_text("options: conf\n")
    assert {*load_results(path, project=tmp_path / "project.yaml")["column"]} == {label}


def test_each_arithmetic_has_a_column_of_its_own_and_counts(trained: Trained, tmp_path: Path) -> None:
    """By what the result says, of runs that have not ended by `precision=`, and then by most of the others."""
    path = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits")
    beside = Path(f"{path}+precision=fp32")
    shutil.copytree(path / "none", beside / "none")
    for file in (*path.glob("*/*/result.json"), *beside.glob("*/*/result.json")):
        name = "float32" if beside in file.parents else "float64" if file.match("identity/seed[01]/*") else "bfloat16"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": name}))
    config = path / "scaled_0.5_0.5" / "seed0" / "config.yaml"
    config.write_text(config.read_text().replace("precision: auto", "precision: fp32"))
    (config.parent / "result.json").unlink()
    (table,) = tables_of(read_runs([path, beside]))
    assert all(column.is_published_protocol for column in table.columns)
    seen = {
        (column.label, row): [run.seed for run in runs]
        for column in table.columns
        for row, runs in column.rows.items()
        if row in ("identity", "none", "scaled_0.5_0.5", "scaled_0.5_1")
    }
    assert seen == {
        ("float64", "identity"): [0, 1],
        ("bfloat16", "identity"): [2, 3],
        ("bfloat16", "none"): [0, 1, 2],
        ("bfloat16", "scaled_0.5_0.5"): [1],
        ("bfloat16", "scaled_0.5_1"): [0],  # it waits
        ("float32", "scaled_0.5_0.5"): [0],
        ("float32", "none"): [0, 1, 2],
    }
    index = [column.label for column in table.columns].index("float32")
    assert table.cells["none", index].verdict == "differs"  # without brackets


def test_seeds_with_precision_typed_join_those_of_its_arithmetic(trained: Trained, tmp_path: Path) -> None:
    path = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits")
    beside = Path(f"{path}+precision=bf16") / "identity"
    beside.mkdir(parents=True)
    for file in path.glob("*/*/result.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"precision": "bfloat16"}))
    for seed in (2, 3):
        (path / "identity" / f"seed{seed}").rename(beside / f"seed{seed}")
    (column,) = tables_of(read_runs([path, beside.parent]))[0].columns
    assert sorted(run.seed for run in column.rows["identity"]) == [0, 1, 2, 3]
    shutil.copytree(beside / "seed2", path / "identity" / "seed2")  # which of the two counts, nobody knows
    labels = [column.label for column in tables_of(read_runs([path, beside.parent]))[0].columns]
    assert labels == [f"in {RunFolder(path)}", f"in {RunFolder(beside.parent)}"]


def test_versions_of_the_code_that_are_averaged_are_told(trained: Trained, tmp_path: Path, table: Table) -> None:
    path = shutil.copytree(trained.path, tmp_path / "shortcuts_on_digits")
    file = path / "identity" / "seed3" / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"commit": "0123456789abcdef"}))
    (mixed,) = tables_of(read_runs([path]))
    before = {warning.split(":")[1] for warning in table.warnings}
    new = [warning for warning in mixed.warnings if warning.split(":")[1] not in before]
    assert any("several versions of the code" in warning and "0123456789 (1 run)" in warning for warning in new)
    commits = {"a" * 40: "aaaaaaaaaa", f"{'a' * 40}-dirty": "aaaaaaaaaa-dirty"}
    for seed, commit in enumerate(commits):
        file = path / "none" / f"seed{seed}" / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"commit": commit}))
    (dirty,) = tables_of(read_runs([path]))
    (told,) = [warning for warning in dirty.warnings if "several versions of the code" in warning]
    environment = {line[5] for line in environment_sheet(dirty.columns[0].runs).lines}
    for name in commits.values():
        assert f"{name} (1 run)" in told
        assert name in environment


def test_hours_count_threads_or_gpus_of_all_runs(trained: Trained, table: Table) -> None:
    results = trained.results("none")
    seconds = sum(result["seconds"] * result["threads"] for result in results)
    assert table.cells["none", 0].hours("cpu") == pytest.approx(seconds / 3600)
    assert table.cells["none", 0].hours("cuda") == 0
    run = table.cells["none", 0].runs[0]
    gpus = {**run.result, "device_type": "cuda", "processes": {"0": 1, "40": 4}, "seconds": 1800.0}
    cell = Cell((Run(run.folder, run.config, {}, gpus, run.state),), PublishedRow(), True, math.inf)
    assert (cell.hours("cuda"), cell.facts()["GPU-hours"], cell.facts()["core-hours"]) == (2.0, "2", "")


def test_the_lowest_mean_is_named_with_the_rows_that_may_be_as_low() -> None:
    low, near, high = ("a", (10.0, 11.0, 12.0)), ("b", (10.5, 11.5, 12.5)), ("c", (80.0, 81.0, 82.0))
    alone = ("d", (1.0,))  # one seed, of which nothing is known

    def said(*rows: tuple[str, tuple[float, ...]], weights: Sequence[str] = ()) -> str:
        errors = [Errors(name, values, weights=tuple(weights)) for name, values in rows]
        return _about_lowest(errors, compare_rows(errors))

    lowest = "lowest mean of 3 seeds or more, none diverged: 'a'"
    assert said(high, near, low, alone) == f"{lowest}; it is not shown to differ from 'b' (Welch, Holm)"
    assert said(high, low) == f"{lowest}; every other such row is higher (Welch, Holm)"
    assert said(low, alone) == ""
    assert said(low, near, weights=["same"] * 3) == ""
    same = [Errors(name, values, weights=("same",)) for name, values in (near, low)]  # which are not tested
    errors = [*same, Errors(*high)]
    assert _about_lowest(errors, compare_rows(errors)) == f"{lowest}; it is not shown to differ from 'b' (Welch, Holm)"
