"""Tables for other programs, read back."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

from deepnets.results.export import to_csv, to_latex, to_markdown
from deepnets.results.read import read_runs
from deepnets.results.sheet import MINUS, NOTHING, Sheet
from deepnets.results.sheets import result_sheets
from deepnets.results.table import Table, tables_of
from tests.trained import SEEDS, Trained


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
