"""Which pictures are drawn, and that they show the numbers of the runs."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from deepnets.monitor.style import INK, PAPER, from_zero
from deepnets.results.figures.curves import MOST_PANELS, learning_rates, training_curves
from deepnets.results.figures.points import pictures_of
from deepnets.results.page import Picture
from deepnets.results.read import Run, example, read_runs
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State
from tests.trained import Trained

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"


@pytest.fixture(scope="module")
def table(trained: Trained) -> Table:
    (table,) = tables_of(read_runs([trained.path]))
    return table


@pytest.fixture(scope="module")
def pictures(table: Table) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures_of([table])}


def renamed(run: Run, grid: str, row: str, **settings: object) -> Run:
    """The same run as a row of another table."""
    model = {**run.config["model"], **settings}
    folder = RunFolder(run.folder.path.parents[2] / grid / row / "seed0")
    copied = replace(run, folder=folder, config={**run.config, "model": model, "sweep": {"axes": ["model"]}})
    copied.__dict__["history"] = run.history
    return copied


def points(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_the_pictures_for_which_there_are_numbers(pictures: dict[str, Picture]) -> None:
    assert list(pictures) == ["bars", "curves", "schedule"]


def test_curves_are_those_of_the_run_of_median_result(trained: Trained, pictures: dict[str, Picture]) -> None:
    results = sorted((result["test_error"], seed) for seed, result in enumerate(trained.results("none")))
    with (trained.path / "none" / f"seed{results[1][1]}" / "metrics.csv").open() as file:
        epochs = list(csv.DictReader(file))
    lines = points(pictures["curves"].figure.axes[0])
    for split in ("train", "test"):
        assert ([1, 2], [float(epoch[f"{split}_error"]) for epoch in epochs]) in lines


def test_the_learning_rate_is_drawn_where_epochs_end(pictures: dict[str, Picture], table: Table) -> None:
    rates = [epoch["learning_rate"] for epoch in table.cells["identity", 0].runs[0].history]
    (axes,) = pictures["schedule"].figure.axes
    assert points(axes)[0] == ([1, 2], rates)
    assert axes.get_ylabel() == "rate at the end of epochs"


def test_bars_show_medians_and_published_values(pictures: dict[str, Picture], table: Table, trained: Trained) -> None:
    (axes,) = pictures["bars"].figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [row for row in table.rows if row not in ("dropout", "scaled_0.5_1")]
    place = names.index("none")
    bar = next(patch for patch in axes.patches if patch.get_y() < place < patch.get_y() + patch.get_height())
    errors = trained.errors("none")
    assert bar.get_width() == pytest.approx(median(errors))
    assert ([min(errors) / 50], [place]) in points(axes)
    assert [text.get_text() for text in axes.texts] == ["fail: diverged"]


def test_depth_and_degradation(table: Table) -> None:
    plain, residual = (example(table.cells[row, 0].runs) for row in ("none", "identity"))
    runs = [
        *(renamed(plain, "he2015_fig6", f"plain{depth}", depth=depth) for depth in (20, 56)),
        *(renamed(residual, "he2015_table6", f"resnet{depth}", depth=depth) for depth in (20, 56)),
    ]
    pictures = {picture.name: picture.figure for picture in pictures_of(tables_of(runs))}
    assert ([20, 56], [residual.error] * 2) in points(pictures["he2015_table6-depth"].axes[0])
    panels = pictures["degradation"].axes
    assert [axes.get_title() for axes in panels] == ["plain", "resnet"]
    assert points(panels[0])[1] == ([1, 2], [epoch["test_error"] for epoch in plain.history])
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_degradation_of_many_nets_has_three_panels_in_a_row(table: Table) -> None:
    plain, residual = (example(table.cells[row, 0].runs) for row in ("none", "identity"))
    kinds = [("plain", plain), ("narrow", residual), ("middle", residual), ("wide", residual)]
    runs = [
        renamed(run, "nets", f"{name}{depth}", depth=depth, widths=[width])
        for width, (name, run) in enumerate(kinds)
        for depth in (20, 56)
    ]
    figure = next(picture.figure for picture in pictures_of(tables_of(runs)) if picture.name == "degradation")
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 0, 1]


def test_long_names_beside_bars_are_not_cut(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    name = "digits_resnet,digits,epochs=2,model.ordering=full_preactivation,model.shortcut=exclusive_gating_b6"
    figure = next(pic.figure for pic in pictures_of(tables_of([renamed(run, "many", name)])) if pic.name == "bars")
    figure.draw_without_rendering()
    assert all(label.get_window_extent().x0 >= 0 for label in figure.axes[0].get_yticklabels())


def test_error_over_a_swept_gate_bias(table: Table) -> None:
    runs = [
        renamed(run, "gates", f"gating_b{bias}", shortcut={"bias": -bias})
        for bias, run in zip((0, 3, 6), table.cells["none", 0].runs, strict=True)
    ]
    pictures = {picture.name: picture.figure for picture in pictures_of(tables_of(runs))}
    assert points(pictures["model-shortcut-bias"].axes[0])[0] == ([-6, -3, 0], [run.error for run in reversed(runs)])
    diverged = [replace(runs[0], state=State("diverged")), *runs[1:]]
    pictures = {picture.name: picture.figure for picture in pictures_of(tables_of(diverged))}
    line, failed, *_ = points(pictures["model-shortcut-bias"].axes[0])
    assert line == ([-6, -3, 0], [runs[2].error, runs[1].error, 100])
    assert failed == ([0], [100])


def test_many_rows_stand_in_panels_of_their_own(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    runs = [renamed(run, "many", f"row{number}") for number in range(8)]
    curves = next(picture.figure for picture in pictures_of(tables_of(runs), True) if picture.name == "curves")
    assert [axes.get_title() for axes in curves.axes] == [f"row{number}" for number in range(8)]
    assert {axes.get_yscale() for axes in curves.axes} == {"log"}


def test_titles_of_panels_do_not_run_into_one_another(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    runs = [renamed(run, "many", f"bottleneck,relu_only_preactivation{number}") for number in range(7)]
    figure = next(picture.figure for picture in pictures_of(tables_of(runs)) if picture.name == "curves")
    figure.draw_without_rendering()
    first, second, third = (axes.title.get_window_extent() for axes in figure.axes[:3])
    assert first.x1 < second.x0
    assert second.x1 < third.x0
    assert third.x1 < figure.bbox.x1


def with_history(run: Run, row: str, history: list[dict[str, float]], **config: object) -> Run:
    copied = renamed(run, "curves", row)
    copied.config.update(config)
    copied.__dict__["history"] = history
    return copied


def test_training_errors_above_those_of_test_images_stay_in_the_picture(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    history = [{"epoch": n, "train_error": 60.0, "test_error": 20.0} for n in (1, 2, 3)]
    (axes,) = training_curves({"a": with_history(run, "a", history)}, False).axes
    assert axes.get_ylim()[1] > 60
    missing = [{"epoch": 1.0}, {"train_error": 30.0}]
    figure = training_curves({"a": with_history(run, "a", history), "b": with_history(run, "b", missing)}, False)
    assert len(figure.axes[0].get_lines()) == 4
    assert learning_rates({"b": with_history(run, "b", missing)}) is None


def test_all_runs_of_a_figure_are_drawn_over_one_unit(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    history = [{"epoch": n, "iteration": 12 * n, "train_error": 9.0, "test_error": 9.0} for n in (1, 2)]
    by_iterations = with_history(run, "a", history, iterations=24)
    by_epochs = with_history(run, "b", history, iterations=None)
    for runs, x, unit in (([by_iterations, by_epochs], [1, 2], "epoch"), ([by_iterations], [12, 24], "iteration")):
        figure = training_curves({each.row: each for each in runs}, False)
        assert [line[0] for line in points(figure.axes[0])] == [x] * 2 * len(runs)
        assert figure.get_supxlabel().startswith(unit)


def test_a_perfect_row_is_among_the_best(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    runs = [renamed(run, "many", f"row{number}") for number in range(MOST_PANELS + 1)]
    runs[-1] = replace(runs[-1], result={**run.result, "test_error": 0.0})
    runs[-1].__dict__["history"] = run.history
    curves = next(picture.figure for picture in pictures_of(tables_of(runs)) if picture.name == "curves")
    assert curves.axes[0].get_title() == f"row{MOST_PANELS}"


def test_a_name_with_special_characters_is_no_path_and_no_markup(table: Table, tmp_path: Path) -> None:
    run = example(table.cells["none", 0].runs)
    tables = tables_of([renamed(run, name, "row") for name in ('a "b" <c>)', "plain")])
    pictures = pictures_of(tables)
    assert all(re.fullmatch(r"[\w.=-]+", picture.name) for picture in pictures)
    assert "a_b_c_-curves" in {picture.name for picture in pictures}
    inline = ElementTree.fromstring(replace(pictures[0], name='x" onload="y(1)<&').inline())
    assert inline.get("aria-label") == 'x" onload="y(1)<&'
    assert inline.get("onload") is None


def test_files_and_the_inline_picture(pictures: dict[str, Picture], tmp_path: Path) -> None:
    png, svg = pictures["bars"].save(tmp_path)
    with Image.open(png) as image:
        assert image.width == 960
    root = ElementTree.fromstring(svg.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    inline = pictures["bars"].inline()
    assert INK not in inline
    assert PAPER not in inline
    ids = [element.get("id") for element in ElementTree.fromstring(inline).iter() if element.get("id")]
    assert ids
    assert all(name.startswith("bars-") for name in ids)


def test_the_page_writes_a_repeated_line_once_and_in_place(table: Table) -> None:
    run = example(table.cells["none", 0].runs)
    history = [{"epoch": n, "train_error": 90 - n, "test_error": 50 + 40 * math.sin(n)} for n in range(1, 41)]
    rows = {f"row{number}": with_history(run, f"row{number}", history, iterations=None) for number in range(9)}
    figure = training_curves(rows, False)
    svg = ElementTree.fromstring(Picture("many", "", figure).inline())
    drawn = {path.get("id"): path.get("d", "") for path in svg.iter(f"{SVG}path")}
    long = {name: text for name, text in drawn.items() if name and "-line" in name}
    assert len(long) == 3  # all rows in faint, a row's training error, a row's test error
    height = 72 * figure.get_figheight()
    uses = [use for use in svg.iter(f"{SVG}use") if use.get(f"{XLINK}href", "")[1:] in long]
    assert len(uses) == 3 * len(rows)
    for axes, use in zip(figure.axes, uses[2::3], strict=True):
        steps = re.findall(r"l(-?[\d.]+),?(-?[\d.]+)", long[use.get(f"{XLINK}href", "")[1:]])
        x, y = (float(use.get(name, "")) + sum(float(step[at]) for step in steps) for at, name in enumerate("xy"))
        expected = axes.transData.transform([40, history[-1]["test_error"]]) * 72 / figure.dpi
        assert (x, y) == pytest.approx((expected[0], height - expected[1]), abs=0.2)


def test_an_axis_from_zero_has_room_above_the_highest_point() -> None:
    for values, top in (([88.0, 79.0], 92.4), ([0.0, 0.0], 1.0)):
        axes = Figure().subplots()
        axes.plot(values)
        from_zero(axes)
        assert axes.get_ylim() == pytest.approx((0.0, top))
