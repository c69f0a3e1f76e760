"""A random search: what is said of its draws, and what is drawn."""

import math
from pathlib import Path

import pytest

from deepnets.results.columns import columns_of
from deepnets.results.figures.choose import pictures_of
from deepnets.results.read import Run
from deepnets.results.search import best_curves, losses_over_depth
from deepnets.results.sheet import NOTHING
from deepnets.results.sheets import comparison_sheets, draw_sheets, result_sheets
from deepnets.results.table import tables_of
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State


def draw(net: str, depth: int, number: int, losses: list[float], state: str = "finished", seed: int = 0) -> Run:
    """A run whose training loss falls as `losses` say; its test error is ten times the last."""
    axes = ["model", "setting"]
    config = {"model": {"depth": depth}, "optimizer": {"lr": 0.1 + number}, "setting": number, "seed": seed}
    error = 10 * losses[-1] if losses else None
    folder = RunFolder(Path(f"outputs/search/{net}{depth},{number}/seed{seed}").resolve())
    result = {"test_error": error, "status": state}
    run = Run(folder, {**config, "epochs": 2, "sweep": {"axes": axes}}, {}, result, State(state))
    run.__dict__["history"] = [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate(losses, 1)]
    run.__dict__["_metrics"] = (run.history, [])
    return run


def search(net: str, depth: int, count: int) -> list[Run]:
    """Draw k ends at a loss of (k + 1) / 1000 times the depth."""
    return [draw(net, depth, k, [2.0, (k + 1) / 1000 * depth]) for k in range(count)]


def by_row(runs: list[Run]) -> dict[str, Run]:
    return {run.row: run for run in runs}


def test_a_line_for_each_net_tells_of_its_draws() -> None:
    late = draw("fc", 20, 2, [1.5], "running")
    lost = draw("fc", 20, 1, [2.0, math.nan], "diverged")
    (table,) = tables_of([*search("fc", 10, 20), draw("fc", 20, 0, [2.0, 0.5]), lost, late])
    (sheet,) = result_sheets(table)
    lines = {line[0]: dict(zip(sheet.header, line, strict=True)) for line in sheet.lines}
    assert list(lines) == ["fc10", "fc20"]
    told = ("draws", "best", "its setting", "its test error", "mean of best tenth", "median of all", "state")
    assert [lines["fc10"][name] for name in told] == ["20", "0.01", "0", "0.10", "0.015", "0.105", ""]
    assert [lines["fc20"][name] for name in told] == ["2", "0.5", "0", "5.00", "0.5", "∞", "1 diverged, 1 running"]


def test_where_all_draws_diverged_none_is_the_best() -> None:
    (table,) = tables_of([draw("fc", 10, number, [2.0, math.nan], "diverged") for number in range(2)])
    (sheet,) = result_sheets(table)
    assert sheet.lines[0][1:] == ("2", "∞", NOTHING, NOTHING, "∞", "∞", "2 diverged")
    assert table.notes == []


def test_the_best_draw_is_chosen_by_its_training_loss_not_by_its_test_error() -> None:
    better = draw("fc", 10, 3, [2.0, 0.01])
    better.result["test_error"] = 50.0
    (table,) = tables_of([*search("fc", 10, 3)[1:], better])
    (sheet,) = result_sheets(table)
    assert sheet.lines[0][2:5] == ("0.01", "3", "50.00")


def test_seeds_of_a_draw_stand_for_one() -> None:
    (table,) = tables_of([draw("fc", 10, 0, [loss], seed=seed) for seed, loss in enumerate((0.3, 0.1, 0.2))])
    (sheet,) = result_sheets(table)
    assert sheet.lines[0][1:4] == ("1", "0.2", "0")
    assert sheet.note.endswith("the run of median loss counts, of two the worse.")


def test_of_two_seeds_the_worse_stands_for_a_draw() -> None:
    runs = [draw("fc", 10, 0, [0.1]), draw("fc", 10, 0, [0.3], seed=1)]
    (sheet,) = result_sheets(tables_of(runs)[0])
    assert sheet.lines[0][1:3] == ("1", "0.3")
    lost = draw("fc", 10, 0, [math.nan], "diverged", seed=1)
    (sheet,) = result_sheets(tables_of([runs[0], lost])[0])
    assert sheet.lines[0][1:3] == ("1", "∞")


def test_draws_are_listed_apart_and_not_compared_with_one_another() -> None:
    (table,) = tables_of(search("fc", 10, 3))
    assert [line[0] for line in draw_sheets(table)[0].lines] == ["fc10,0", "fc10,1", "fc10,2"]
    assert comparison_sheets(table) == []


def test_curves_are_of_the_best_draws() -> None:
    runs = [*search("highway", 10, 3), *search("highway", 20, 3), *search("plain", 10, 3), *search("plain", 20, 3)]
    figure = best_curves(by_row(runs))
    assert [axes.get_title() for axes in figure.axes] == ["highway", "plain"]
    for axes in figure.axes:
        assert [list(line.get_ydata()) for line in axes.get_lines()] == [[2.0, 0.01], [2.0, 0.02]]


def test_a_depth_at_which_no_draw_has_ended_has_no_curve() -> None:
    running = draw("fc", 100, 0, [2.0], "running")
    (axes,) = best_curves(by_row([*search("fc", 10, 3), *search("fc", 20, 3), running])).axes
    assert [line.get_label() for line in axes.get_lines()] == ["10 layers", "20 layers"]


def test_losses_over_depth_show_every_draw_and_the_mean_of_the_best_tenth() -> None:
    (axes,) = losses_over_depth(by_row([*search("fc", 10, 20), *search("fc", 20, 20)])).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    assert ([10.0] * 20, pytest.approx([(k + 1) / 100 for k in range(20)])) in lines
    assert ([10.0, 20.0], pytest.approx([0.015, 0.03])) in lines


def test_one_depth_makes_no_line() -> None:
    assert best_curves(by_row(search("fc", 10, 12))) is None
    assert losses_over_depth(by_row(search("fc", 10, 12))) is None


def test_the_pictures_of_two_searches_together() -> None:
    runs = [*search("fc", 10, 3), *search("fc", 20, 3)]
    names = [picture.name for picture in pictures_of(tables_of(runs))]
    assert {"search", "search-depth", "depth", "optimizer-lr"} <= set(names)
    assert "bars" not in names
    assert len(columns_of(runs)) == 1
