"""A random search: its nets as rows, and what is drawn of its trials."""

import csv
import io
import math
from pathlib import Path

import pytest
import yaml

from deepnets.results.export import to_csv
from deepnets.results.figures.curves import best_curves
from deepnets.results.figures.points import losses_over, losses_over_depth, pictures_of
from deepnets.results.read import read_runs
from deepnets.results.table import Table, comparison_sheets, overview_sheet, result_sheets, tables_of
from deepnets.runs.contents import Result
from deepnets.system.printing import NOTHING


def trial(
    root: Path, depth: int, number: int, losses: list[float], state: str = "finished", net: str = "fc", **more: object
) -> None:
    """A run whose training loss falls as `losses` say; its test error is ten times the last."""
    seed, result = int(str(more.pop("seed", 0))), {"test_error": 10 * losses[-1], "status": state, **more}
    folder = root / "search" / f"{net}{depth},{number}" / f"seed{seed}"
    folder.mkdir(parents=True)
    config = {"model": {"depth": depth}, "optimizer": {"lr": 0.1 + number}, "setting": number, "seed": seed}
    config["scale"] = {"name": "full"}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "sweep": {"axes": ["model", "setting"]}}))
    lines = ["epoch,train_loss,test_error", *(f"{epoch},{loss},9" for epoch, loss in enumerate(losses, 1))]
    (folder / "metrics.csv").write_text("\n".join(lines))
    if state in ("finished", "diverged"):
        Result.model_validate(result).write(Path(folder))


def search(root: Path, depth: int, count: int, net: str = "fc") -> None:
    """Trial k ends at a loss of (k + 1) / 1000 times the depth."""
    for k in range(count):
        trial(root, depth, k, [2.0, (k + 1) / 1000 * depth], net=net)


def table_of(root: Path) -> Table:
    (table,) = tables_of(read_runs([root]))
    return table


def nets_of(root: Path) -> dict[str, dict[str, str]]:
    (sheet,) = result_sheets(table_of(root))
    return {line[0]: dict(zip(sheet.header[1:], line[1:], strict=True)) for line in sheet.lines}


def test_a_row_for_each_net_sums_up_its_trials(tmp_path: Path) -> None:
    search(tmp_path, 10, 20)
    trial(tmp_path, 20, 0, [2.0, 0.5])
    trial(tmp_path, 20, 1, [2.0, math.nan], "diverged", test_error=None)
    trial(tmp_path, 20, 2, [1.5], "waiting")
    first = ("trials", "best loss", "its trial", "its test error", "mean of best tenth", "median of all")
    columns, drawn = (*first, "settings of the best", "state"), "optimizer.lr=0.1"
    assert nets_of(tmp_path) == {
        "fc10": dict(zip(columns, ("20", "0.01", "0", "0.10", "0.015", "0.105", drawn, ""), strict=True)),
        "fc20": dict(zip(columns, ("2", "0.5", "0", "5.00", "0.5", "∞", drawn, "1 diverged, 1 waiting"), strict=True)),
    }


def test_where_all_trials_diverged_none_is_the_best(tmp_path: Path) -> None:
    for number in range(2):
        trial(tmp_path, 10, number, [2.0, math.nan], "diverged", test_error=None)
    assert tuple(nets_of(tmp_path)["fc10"].values()) == ("2", "∞", NOTHING, NOTHING, "∞", "∞", NOTHING, "2 diverged")
    assert table_of(tmp_path).notes == []


def test_the_best_trial_is_chosen_by_its_training_loss_not_by_its_test_error(tmp_path: Path) -> None:
    trial(tmp_path, 10, 1, [2.0, 0.02])
    trial(tmp_path, 10, 3, [2.0, 0.01], test_error=50.0)
    assert list(nets_of(tmp_path)["fc10"].values())[1:4] == ["0.01", "3", "50.00"]


def test_of_several_seeds_of_a_trial_the_median_counts_of_two_the_worse(tmp_path: Path) -> None:
    for seed, loss in enumerate((0.3, 0.1, 0.2)):
        trial(tmp_path / "three", 10, 0, [loss], seed=seed)
    assert list(nets_of(tmp_path / "three")["fc10"].values())[:3] == ["1", "0.2", "0"]
    for seed, loss in enumerate((0.3, 0.1)):
        trial(tmp_path / "two", 10, 0, [loss], seed=seed)
    assert list(nets_of(tmp_path / "two")["fc10"].values())[:2] == ["1", "0.3"]
    trial(tmp_path / "lost", 10, 0, [0.1])
    trial(tmp_path / "lost", 10, 0, [math.nan], "diverged", seed=1, test_error=None)
    assert list(nets_of(tmp_path / "lost")["fc10"].values())[:2] == ["1", "∞"]


def test_trials_are_listed_apart_and_not_compared_with_one_another(tmp_path: Path) -> None:
    search(tmp_path, 10, 3)
    table = table_of(tmp_path)
    assert [line[0] for line in result_sheets(table.trials)[0].lines] == ["fc10,0", "fc10,1", "fc10,2"]
    assert comparison_sheets(table) == []
    exported = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [float(line["train_loss"]) for line in exported] == [pytest.approx((k + 1) / 100) for k in range(3)]
    assert len({line["optimizer.lr"] for line in exported}) == 3  # the value that each trial drew
    assert [(line["row"], float(line["errors"])) for line in exported] == [
        (f"fc10,{k}", pytest.approx((k + 1) / 10)) for k in range(3)
    ]


def test_two_scales_of_a_search_stand_beside_one_another(tmp_path: Path) -> None:
    search(tmp_path, 10, 3)
    (tmp_path / "search").rename(tmp_path / "search+epochs=5")
    search(tmp_path, 10, 4)
    search(tmp_path, 20, 4)
    sheet = overview_sheet(table_of(tmp_path))
    assert [line[0] for line in sheet.lines] == ["fc10", "fc20"]
    shown = dict(zip(sheet.header, zip(*sheet.lines, strict=True), strict=True))
    assert shown["full"] == ("0.01 (4 trials)", "0.02 (4 trials)")
    assert shown["epochs=5"] == ("0.01 (3 trials)", NOTHING)


def test_curves_are_of_the_best_trials(tmp_path: Path) -> None:
    for net in ("highway", "plain"):
        search(tmp_path, 10, 3, net)
        search(tmp_path, 20, 3, net)
    figure = best_curves(table_of(tmp_path).column(0))
    assert [axes.get_title() for axes in figure.axes] == ["highway", "plain"]
    for axes in figure.axes:
        assert [list(line.get_ydata()) for line in axes.get_lines()] == [[2.0, 0.01], [2.0, 0.02]]


def test_a_depth_at_which_no_trial_has_ended_has_no_curve(tmp_path: Path) -> None:
    search(tmp_path, 10, 3)
    search(tmp_path, 20, 3)
    trial(tmp_path, 100, 0, [2.0], "waiting")
    (axes,) = best_curves(table_of(tmp_path).column(0)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["10 layers", "20 layers"]


def test_losses_show_every_trial_and_the_mean_of_the_best_tenth(tmp_path: Path) -> None:
    search(tmp_path, 10, 20)
    search(tmp_path, 20, 20)
    nets = table_of(tmp_path).column(0)
    (axes,) = losses_over_depth(nets).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    assert ([10.0] * 20, pytest.approx([(k + 1) / 100 for k in range(20)])) in lines
    assert ([10.0, 20.0], pytest.approx([0.015, 0.03])) in lines
    (axes,) = losses_over("optimizer.lr", nets).axes
    shallow, _ = axes.get_lines()
    assert list(shallow.get_xdata()) == pytest.approx([0.1 + k for k in range(20)])
    assert list(shallow.get_ydata()) == pytest.approx([(k + 1) / 100 for k in range(20)])


def test_one_depth_makes_no_line(tmp_path: Path) -> None:
    search(tmp_path, 10, 12)
    nets = table_of(tmp_path).column(0)
    assert best_curves(nets) is None
    assert losses_over_depth(nets) is None


def test_the_pictures_of_a_search(tmp_path: Path) -> None:
    search(tmp_path, 10, 3)
    search(tmp_path, 20, 3)
    pictures = pictures_of([table_of(tmp_path)])
    assert [picture.name for picture in pictures] == ["search", "search-depth", "curves", "optimizer-lr"]
