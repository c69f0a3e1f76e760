"""Which rows are one line: from their names, their axes and their settings."""

import csv
import io
from typing import Any

import pytest

from deepnets.errors import UserError
from deepnets.results.columns import Column, frame_of, lines_over, swept, warnings_of
from deepnets.results.compare import pairs_of
from deepnets.results.export import to_csv, to_latex
from deepnets.results.read import Run
from deepnets.results.table import tables_of
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State


def runs(axes: list[str], rows: dict[str, dict[str, Any]]) -> dict[str, Run]:
    return {
        row: Run(RunFolder(f"outputs/table/{row}/seed0"), {**config, "sweep": {"axes": axes}}, {}, {}, State("waiting"))
        for row, config in rows.items()
    }


def test_depth_named_within_a_model() -> None:
    rows = {f"{kind}{depth}": {"model": {"depth": depth}} for kind in ("plain", "resnet") for depth in (20, 110)}
    assert lines_over("model.depth", runs(["model"], rows)) == {
        "plain": {20: "plain20", 110: "plain110"},
        "resnet": {20: "resnet20", 110: "resnet110"},
    }


def test_depth_as_an_axis_of_its_own() -> None:
    rows = {f"thin_relu,{depth}": {"model": {"depth": depth}} for depth in (10, 26)}
    assert lines_over("model.depth", runs(["model", "model.depth"], rows)) == {
        "thin_relu": {10: "thin_relu,10", 26: "thin_relu,26"}
    }


def test_an_axis_that_is_paired_with_the_depth() -> None:
    found: dict[str, Run] = {}
    for kind in ("identity", "none"):
        for depth, rate in ((8, 0.1), (14, 0.1), (20, 0.05)):
            config = {"model": {"depth": depth}, "optimizer": {"lr": rate}}
            row = f"{kind},{depth},{rate}"
            found |= runs(["model/shortcut", "model.depth", "optimizer.lr"], {row: config})
            found[row].config["sweep"]["zip"] = [["model.depth", "optimizer.lr"]]
    assert lines_over("model.depth", found) == {
        kind: {8: f"{kind},8,0.1", 14: f"{kind},14,0.1", 20: f"{kind},20,0.05"} for kind in ("identity", "none")
    }


def test_a_list_in_a_name_is_one_value() -> None:
    found: dict[str, Run] = {}
    nets = {8: [16, 32, 64], 14: [8, 16, 32], 20: [8, 16, 32]}
    for depth, widths in nets.items():
        row = f"{depth},{','.join(map(str, widths))},identity"
        axes = ["model.depth", "model.widths", "model/shortcut"]
        found |= runs(axes, {row: {"model": {"depth": depth, "widths": widths, "shortcut": {}}}})
    assert lines_over("model.depth", found) == {"8,16,32,identity": dict(zip([14, 20], [*found][1:], strict=True))}
    for run in found.values():
        run.config["sweep"]["zip"] = [["model.depth", "model.widths"]]
    assert lines_over("model.depth", found) == {"identity": dict(zip(nets, found, strict=True))}
    rows = {f"resnet,digits,epochs={epochs},model.widths=8,16,32": epochs for epochs in (1, 2, 3)}
    found = runs([], {row: {"model": {"widths": [8, 16, 32]}, "epochs": epochs} for row, epochs in rows.items()})
    assert lines_over("epochs", found) == {"resnet,digits,model.widths=8,16,32": {rows[row]: row for row in rows}}


def test_each_value_of_a_paired_axis_has_its_line_where_a_number_occurs_in_several_pairs() -> None:
    found: dict[str, Run] = {}
    for heat in (0.5, 2):
        for bias in (-1, -2, -3):
            row = f"8,{bias},{heat}"
            shortcut = {"model": {"shortcut": {"bias": bias, "heat": heat}}}
            found |= runs(["model.depth", "model.shortcut.bias", "model.shortcut.heat"], {row: shortcut})
            found[row].config["sweep"]["zip"] = [["model.shortcut.bias", "model.shortcut.heat"]]
    assert lines_over("model.shortcut.bias", found) == {
        f"8,{heat}": {bias: f"8,{bias},{heat}" for bias in (-3, -2, -1)} for heat in (0.5, 2)
    }


def test_a_gate_bias_which_names_give_without_its_sign() -> None:
    rows = {f"gating_b{bias}": {"model": {"shortcut": {"bias": -float(bias)}}} for bias in (0, 1, 6)}
    rows["identity"] = {"model": {"shortcut": {}}}
    found = runs(["model/shortcut"], rows)
    assert swept(found) == ["model.shortcut.bias"]
    assert lines_over("model.shortcut.bias", found) == {"gating_b": {-6: "gating_b6", -1: "gating_b1", 0: "gating_b0"}}


def test_a_number_that_follows_from_another_makes_no_line() -> None:
    rows = {
        f"resnet{depth}": {"model": {"depth": depth}, "schedule": {"warmup": warmup}}
        for depth, warmup in ((20, 0), (110, 400), (1202, 500))
    }
    assert swept(runs(["model"], rows)) == []


@pytest.mark.parametrize(("depths", "lines"), [((20,), 0), ((20, 32), 1)])
def test_a_line_over_depth_has_two_points(depths: tuple[int, ...], lines: int) -> None:
    rows = {f"resnet{depth}": {"model": {"depth": depth}} for depth in depths}
    assert len(lines_over("model.depth", runs(["model"], rows))) == lines


def test_single_runs_make_a_line_with_the_one_that_was_not_changed() -> None:
    epochs = {"digits_resnet,digits": 10, "digits_resnet,digits,epochs=8": 8, "digits_resnet,digits,epochs=20": 20}
    found = runs([], {row: {"model": {"depth": 8}, "epochs": epochs[row]} for row in epochs})
    assert lines_over("epochs", found) == {"digits_resnet,digits": {epochs[row]: row for row in epochs}}
    depths = {"resnet20,cifar10": 20, "resnet20,cifar10,model.depth=8": 8, "resnet110,cifar10": 110}
    assert lines_over("model.depth", runs([], {row: {"model": {"depth": depth}} for row, depth in depths.items()})) == {
        "resnet20,cifar10": {8: "resnet20,cifar10,model.depth=8", 20: "resnet20,cifar10"}
    }


def test_a_number_is_looked_for_only_in_the_word_that_may_tell_it() -> None:
    rows = {f"resnet20,cifar10,epochs={epochs}": {"model": {"depth": 20}, "epochs": epochs} for epochs in (5, 10, 20)}
    found = runs([], rows)
    assert swept(found) == ["epochs"]
    assert list(lines_over("epochs", found)) == ["resnet20,cifar10"]
    rows = {f"cifar10,plain{depth}": {"model": {"depth": depth}} for depth in (10, 26)}
    assert list(lines_over("model.depth", runs(["dataset", "model"], rows))) == ["cifar10,plain"]


def test_a_table_in_which_no_row_learns_says_so() -> None:
    def warning(errors: dict[str, float], classes: int) -> list[str]:
        result = {"input": {"classes": ["a"] * classes}}
        ended = [
            Run(RunFolder(f"outputs/table/{row}/seed0"), {}, {}, {**result, "test_error": error}, State("finished"))
            for row, error in errors.items()
        ]
        return [line for line in warnings_of(Column("full", True, frame_of(ended))) if "guessing" in line]

    (line,) = warning({"a": 81.0, "b": 90.5}, 10)
    assert line.startswith("full: no run that has ended is 10 percentage points better than guessing (90% error)")
    assert warning({"a": 79.0, "b": 90.5}, 10) == []
    assert warning({"a": 81.0}, 10) == []  # there is nothing to compare
    assert warning({"a": 81.0, "b": 90.5}, 100) == []


def typed(*words: str, **constant: str) -> dict[str, Run]:
    """Runs of a command, a row for each of `words`, such as "depth=14", and with these options in all of them."""
    found: dict[str, Run] = {}
    for word in words:
        choices = dict(pair.split("=") for pair in word.split())
        changes = [f"{key}={value}" for key, value in sorted(constant.items())]
        changes += [f"model.{key}={value}" for key, value in choices.items()]
        row = ",".join(["resnet", "digits", *changes])
        found |= runs([], {row: {"model": {"depth": int(choices.get("depth", 8))}}})
        found[row].config.pop("sweep")
        options = {"model/shortcut": choices.get("shortcut", "identity"), "optimizer": "sgd", **constant}
        found[row].origin["choices"] = {"model": "resnet", "dataset": "digits", **options}
    return found


def test_rows_of_a_command_lie_in_the_order_of_their_choices() -> None:
    words = [f"{depth} {shortcut}" for shortcut in ("", "shortcut=none") for depth in ("depth=20", "", "depth=14")]
    (table,) = tables_of([*typed(*words).values()])
    assert [row.removeprefix("resnet,digits") for row in table.rows] == [
        f"{depth}{shortcut}"
        for depth in ("", ",model.depth=14", ",model.depth=20")
        for shortcut in ("", ",model.shortcut=none")
    ]
    lines = csv.DictReader(io.StringIO(to_csv([table])))
    choices = [(line["model.depth"], line["model/shortcut"]) for line in lines]
    assert choices == [(depth, shortcut) for depth in ("8", "14", "20") for shortcut in ("identity", "none")]
    lines = [line.strip() for line in to_latex([table]).splitlines()]
    assert lines[3].startswith("shortcut & depth & ")
    assert [tuple(line.split(" & ")[1::-1]) for line in lines[5:-2]] == choices
    assert "All rows: model=resnet, dataset=digits." in lines[0]


def test_rows_lie_in_the_order_of_their_numbers() -> None:
    rates = [1e-5, 0.001, 0.05, 0.1, 2.0]
    rows = {f"resnet,digits,optimizer.lr={rate:g}": {"optimizer": {"lr": rate}} for rate in reversed(rates)}
    found = runs([], rows)
    for run in found.values():
        run.config.pop("sweep")
    (table,) = tables_of([*found.values()])
    assert [*table.rows] == [*reversed(rows)]


def test_rows_of_two_commands_are_paired_by_what_varies() -> None:
    ours = typed("", "depth=14", "depth=20", "shortcut=none")
    theirs = typed("depth=14", "", "depth=26", optimizer="adam")
    pairs, alone = pairs_of([*ours.values()], [*theirs.values()])
    names = {name: tuple(runs[0].row for runs in both) for name, both in pairs.items()}
    assert names == {
        "model.depth=8, model/shortcut=identity": ("resnet,digits", "resnet,digits,optimizer=adam"),
        "model.depth=14, model/shortcut=identity": (
            "resnet,digits,model.depth=14",
            "resnet,digits,optimizer=adam,model.depth=14",
        ),
    }
    assert alone == [
        "only in A: resnet,digits,model.depth=20, resnet,digits,model.shortcut=none",
        "only in B: resnet,digits,optimizer=adam,model.depth=26",
    ]
    (pair,) = pairs_of([*typed("depth=14").values()], [*typed("depth=20").values()])[0]
    assert pair == "resnet,digits,model.depth=14 | resnet,digits,model.depth=20"
    for run in ours.values():  # as in a record
        run.origin.clear()
    pairs, _ = pairs_of([*ours.values()], [*theirs.values()])
    assert [*pairs] == ["resnet,digits | resnet,digits,optimizer=adam", "model.depth=14"]
    with pytest.raises(UserError, match="no row is in both"):  # 14 layers are not 8 layers by another optimiser
        pairs_of([*typed("depth=14").values()], [*typed("", "depth=20", optimizer="adam").values()])
