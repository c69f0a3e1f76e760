"""Which rows are one line: from their names, their axes and their settings."""

import pytest

from deepnets.folder import RunFolder
from deepnets.results.read import Run
from deepnets.results.series import lines_over, swept
from deepnets.status import State


def runs(axes: list[str], rows: dict[str, dict[str, float]]) -> dict[str, Run]:
    return {
        row: Run(RunFolder(f"outputs/table/{row}/seed0"), {**config, "sweep": {"axes": axes}}, {}, {}, State("waiting"))
        for row, config in rows.items()
    }


def test_depth_named_within_a_model() -> None:
    rows = {f"{kind}{depth}": {"model": {"depth": depth}} for kind in ("plain", "resnet") for depth in (20, 110)}
    assert lines_over("model.depth", runs(["model"], rows)) == {
        "plain": {20: ["plain20"], 110: ["plain110"]},
        "resnet": {20: ["resnet20"], 110: ["resnet110"]},
    }


def test_depth_as_an_axis_of_its_own() -> None:
    rows = {f"thin_relu,{depth}": {"model": {"depth": depth}} for depth in (10, 26)}
    assert lines_over("model.depth", runs(["model", "model.depth"], rows)) == {
        "thin_relu": {10: ["thin_relu,10"], 26: ["thin_relu,26"]}
    }


def test_a_gate_bias_which_names_give_without_its_sign() -> None:
    rows = {f"gating_b{bias}": {"model": {"shortcut": {"bias": -float(bias)}}} for bias in (0, 1, 6)}
    rows["identity"] = {"model": {"shortcut": {}}}
    found = runs(["model/shortcut"], rows)
    assert swept(found) == ["model.shortcut.bias"]
    assert lines_over("model.shortcut.bias", found) == {
        "gating_b": {-6: ["gating_b6"], -1: ["gating_b1"], 0: ["gating_b0"]}
    }


def test_a_number_that_follows_from_another_makes_no_line() -> None:
    rows = {
        f"resnet{depth}": {"model": {"depth": depth}, "schedule": {"warmup": warmup}}
        for depth, warmup in ((20, 0), (110, 400), (1202, 500))
    }
    assert swept(runs(["model"], rows)) == []


def test_draws_of_a_search_share_lines() -> None:
    rows = {
        f"fc{depth},{draw}": {"model": {"depth": depth}, "optimizer": {"lr": 0.1 + draw}, "setting": draw}
        for depth in (10, 20)
        for draw in (0, 1, 2)
    }
    found = runs(["model", "setting"], rows)
    assert lines_over("model.depth", found) == {
        "fc": {10: ["fc10,0", "fc10,1", "fc10,2"], 20: ["fc20,0", "fc20,1", "fc20,2"]}
    }
    assert swept(found) == ["optimizer.lr"]
    assert list(lines_over("optimizer.lr", found)) == ["fc10", "fc20"]


@pytest.mark.parametrize(("depths", "lines"), [((20,), 0), ((20, 32), 1)])
def test_a_line_over_depth_has_two_points(depths: tuple[int, ...], lines: int) -> None:
    rows = {f"resnet{depth}": {"model": {"depth": depth}} for depth in depths}
    assert len(lines_over("model.depth", runs(["model"], rows))) == lines
