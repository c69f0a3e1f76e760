"""Tables for other programs, and results as pandas DataFrames."""

import csv
import io
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from deepnets.errors import UserError
from deepnets.results.export import load_results, to_csv, to_latex, to_markdown
from deepnets.results.read import read_runs
from deepnets.results.table import Table, result_sheets, tables_of
from deepnets.system.printing import MINUS, NOTHING, Sheet
from tests.command import ROOT
from tests.trained import SEEDS, Trained

RECORDS = ROOT / "outputs" / "records"


@pytest.fixture(scope="module")
def tables(trained: Trained) -> list[Table]:
    return tables_of(read_runs([trained.path]))


def test_csv_holds_all_numbers_unrounded(trained: Trained, tables: list[Table]) -> None:
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(to_csv(tables)))}
    assert list(rows) == list(tables[0].rows)
    errors = trained.errors("none")
    none = rows["none"]
    assert int(none["n"]) == SEEDS["none"]
    assert [float(error) for error in none["errors"].split()] == errors
    assert float(none["mean"]) == pytest.approx(sum(errors) / 3)
    assert float(none["published"]) == pytest.approx(min(errors) / 50)
    assert (none["column"], none["verdict"], none["statistic"]) == ("full", "differs", "median of 5")
    assert (rows["projection"]["median"], rows["projection"]["mean"]) == ("inf", "")
    assert math.isinf(float(rows["projection"]["errors"].split()[0]))
    assert rows["shortcut_only_gating_b6"]["state"] == "missing"
    assert (none["model/shortcut"], rows["shortcut_only_gating_b6"]["model/shortcut"]) == ("none", "")


def test_csv_names_what_a_command_chose_without_a_sweep() -> None:
    tables = tables_of(read_runs([ROOT / "outputs/records/runs"]))
    (line,) = csv.DictReader(io.StringIO(to_csv(tables)))
    assert [line[key] for key in ("model", "dataset", "epochs")] == ["mnist_resnet52", "mnist", "4"]


def test_markdown_is_one_table_with_the_rule_below(tables: list[Table]) -> None:
    lines = to_markdown(tables).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(tables[0].rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "| identity | compatible |" in "\n".join(table)
    assert tables[0].notes[0] in lines


def test_latex_has_booktabs_rules_and_escapes(tables: list[Table]) -> None:
    text = to_latex(tables)
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:-1]
    assert len(body) == len(tables[0].rows)
    columns = len(re.search(r"\\begin{tabular}{([lr]+)}", text)[1])
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in body} == {columns}
    assert body[0].startswith("  identity & compatible & ")
    assert r"scaled\_0.5\_0.5" in text
    assert r"$\pm$" in text
    assert not {"±", NOTHING, "∞", MINUS} & set("".join(body))


def test_each_axis_has_a_column_in_latex(tables: list[Table]) -> None:
    orderings = tables_of(read_runs([RECORDS / "he2016_table2+scale=deep"]))
    text = to_latex(orderings)
    assert "  block & ordering & median & " in text
    assert r"  bottleneck & full\_preactivation & " in text
    assert "  row & " not in text
    assert "  shortcut & " in to_latex(tables)  # of rows without runs only the name is known


def test_columns_that_say_nothing_are_left_out() -> None:
    sheet = Sheet("t", ("row", "a", "b", "c"), (("x", "", "1", NOTHING), ("y", "", "", "")), frozenset("bc"))
    assert sheet.without_empty_columns() == Sheet("t", ("row", "b"), (("x", "1"), ("y", "")), frozenset("bc"))


def test_a_sheet_has_as_many_cells_in_each_line_as_names(tables: list[Table]) -> None:
    (sheet,) = result_sheets(tables[0])
    assert {len(line) for line in sheet.lines} == {len(sheet.header)}


def test_csv_has_the_median_by_best_epochs_where_the_verdict_is_on_it(tables: list[Table]) -> None:
    (table,) = tables
    cells = {key: replace(cell, published=replace(cell.published, best_epochs=2)) for key, cell in table.cells.items()}
    ruled = replace(table, cells=cells)
    line = next(row for row in csv.DictReader(io.StringIO(to_csv([ruled]))) if row["row"] == "none")
    assert float(line["best_epochs"]) - float(line["published"]) == pytest.approx(float(line["difference"]))
    assert line["best_epochs"] != line["median"]
    assert {row["best_epochs"] for row in csv.DictReader(io.StringIO(to_csv(tables)))} == {""}


def test_a_row_per_run_with_figures_and_settings() -> None:
    results = load_results(RECORDS / "digits_shortcuts")
    assert len(results) == 20
    assert set(results["row"]) == {"identity", "none", "scaled_0.5_0.5", "exclusive_gating_b6"}
    assert sorted(results["seed"].unique()) == [0, 1, 2, 3, 4]
    medians = results.groupby("row")["test_error"].median()
    assert medians.idxmax() == "exclusive_gating_b6"
    assert set(results["model.depth"]) == {8}
    assert set(results["status"]) == {"finished"}
    assert results["commit"].notna().all()
    assert Path(results["folder"].iloc[0], "result.json").is_file()


def test_curves_are_those_of_the_chosen_runs() -> None:
    results = load_results(RECORDS / "digits_shortcuts")
    chosen = results[(results["row"] == "identity") & (results["seed"] == 1)]
    curves = chosen.curves
    assert list(curves["epoch"]) == list(range(1, 11))
    assert {str(curves[key].dtype) for key in ("epoch", "iteration")} == {"int64"}
    assert curves["test_error"].iloc[-1] == chosen["test_error"].iloc[0]
    assert len(results.curves) == 200
    others = load_results(RECORDS / "he2015_table6")
    joined = pd.concat([results.assign(version="old"), others.assign(version="new")])
    assert len(joined.curves) == 200 + len(others.curves)
    assert len(joined[joined["version"] == "old"].curves) == 200


def test_claims_are_tested_and_a_projects_own_are_read(tmp_path: Path) -> None:
    shutil.copytree(RECORDS / "digits_shortcuts", tmp_path / "outputs" / "mine")
    assert load_results(tmp_path / "outputs").claims[["claim", "outcome", "low"]].empty
    sweep = {"axes": ["model/shortcut"], "claims": [{"claim": "identity is lower than none", "place": "README"}]}
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(yaml.safe_dump({"sweep": sweep}))
    (tmp_path / "project.yaml").write_text("options: conf")
    claims = load_results(tmp_path / "outputs", project=tmp_path / "project.yaml").claims
    assert list(claims["claim"]) == ["identity is lower than none"]
    assert claims["seeds"].iloc[0] == (5, 5)
    assert set(claims["column"]) == set(load_results(tmp_path / "outputs")["column"])
    assert claims["difference"].iloc[0] < 0
    assert claims["low"].iloc[0] is None  # no look at runs that were seen before
    assert claims["seen_before"].iloc[0] == 10


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder in it"):
        load_results(tmp_path)


@pytest.mark.slow
def test_a_thousand_runs_take_ten_times_as_long_as_a_hundred(tmp_path: Path) -> None:
    source = RECORDS / "digits_shortcuts" / "none" / "seed0"
    config = (source / "config.yaml").read_text()
    for seed in range(1000):
        folder = tmp_path / str(seed % 10) / "none" / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config.replace("\nseed: 0\n", f"\nseed: {seed}\n"))
        for name in ("metrics.csv", "result.json"):
            (folder / name).symlink_to(source / name)
    program = """
import sys, time
from deepnets.results import load_results
seconds = []
for folder, runs in ((sys.argv[1] + "/0", 100), (sys.argv[1] + "/1", 100), (sys.argv[1], 1000)):
    started = time.process_time()
    assert load_results(folder)["seed"].nunique() == runs
    seconds.append(time.process_time() - started)
assert seconds[2] < 20 * seconds[1], seconds  # the first also imports
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True)
