"""An option is trained with its own values or refused."""

import re
import sys
from pathlib import Path

import pytest

from deepnets.config import command_line
from deepnets.config.command_line import check_name, check_options, check_widths, rows_of_command
from deepnets.config.compose import compose
from deepnets.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sweep=he2016_table1", "model=resnet56"], "model.depth is 110 (the option has 56). Add model.depth=56,"),
        (["sweep=he2016_table1", "scale=mini", "model=resnet56"], "model.depth is 20 (the option has 56)"),
        (["sweep=srivastava2025_gates", "model=resnet56"], "model.depth is 110 (the option has 56)"),
        (
            ["sweep=srivastava2015_table1", "schedule=constant"],
            "schedule.milestones is [100, 200] (the option has [])",
        ),
        (["sweep=srivastava2015_table1", "optimizer=adam"], "optimizer.lr is 0.01 (the option has 0.001)"),
        (
            ["sweep=he2015_table6", "schedule=cosine"],
            "schedule.warmup_iterations is 0. Add ~schedule.warmup_iterations,",
        ),
        (["protocol=huang2016", "schedule=constant"], "schedule.milestones is [250, 375] (the option has [])"),
        (
            ["protocol=huang2016_code", "model=resnet20", "model/initialization=glorot"],
            'model.initialization is "huang2016" (the option has "glorot")',
        ),
        (
            ["sweep=srivastava2025_gates", "model=resnet110", "model/initialization=zero_gamma"],
            'model.initialization is "he_fan_in" (the option has "zero_gamma")',
        ),
    ],
)
def test_an_option_that_a_table_would_overrule_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        check_options(compose(overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["sweep=he2016_table1", "model=resnet56", "model.depth=56"],
        ["sweep=he2016_table1", "scale=mini", "model=resnet20"],
        ["sweep=he2016_table1", "model=preact110", "schedule=cosine", "dataset=cifar100"],
        ["sweep=srivastava2025_gates", "scale=mini", "model=highway110"],
        ["sweep=he2015_table6", "schedule=cosine", "~schedule.warmup_iterations"],
        ["protocol=huang2016", "schedule=constant", "schedule.milestones=[]"],
        ["protocol=he2016", "schedule=cosine", "model=preact110", "dataset=cifar100", "optimizer=nesterov"],
        ["sweep=srivastava2015_table1", "model=highway_mnist_w32", "dataset=image_folder", "dataset.root=/data/cats"],
    ],
)
def test_an_option_is_free_where_the_table_leaves_it_what_it_is(overrides: list[str]) -> None:
    check_options(compose(overrides))


@pytest.mark.parametrize("model", ["highway_mnist_w16", "wrn16_8"])
def test_smaller_widths_are_for_models_whose_files_have_them(model: str) -> None:
    words = [f"model={model}", "dataset=cifar10", "dataset.root=/data"]
    with pytest.raises(UserError, match=f"scale=deep needs smaller widths .*; model={model} has "):
        check_widths(compose([*words, "scale=deep"]))
    check_widths(compose([*words, "scale=mini"]))
    check_widths(compose([*words, "scale=deep", "model.widths=[4,8,16,32]"]))
    check_widths(compose(["model=preact110", "dataset=cifar10", "dataset.root=/data", "scale=deep"]))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("name=a/b", "name='a/b': must be a folder's name, of letters, digits, '_', '.' and '-'"),
        ("name=", "name='': must be a folder's name"),
        ("name=..", "name='..': must be a folder's name"),
        ("name=a+b", "name='a+b': must be a folder's name"),
        ("name=he2016_table2", "name=he2016_table2: is the folder of the runs of sweep=he2016_table2; choose another"),
        ("name=runs", "name=runs: is the folder of the runs without a sweep"),
    ],
)
def test_a_name_that_is_no_folder_of_its_own_is_refused(word: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        check_name(compose(["sweep=he2016_table1", word]))
    for allowed in ("name=he2016_table1", "name=my.table-2"):
        check_name(compose(["sweep=he2016_table1", allowed]))


@pytest.mark.parametrize("model", ["densenet40_12", "highway_cifar19"])
def test_a_protocol_whose_warm_up_is_by_depth_takes_models_without_one(model: str) -> None:
    assert compose([f"model={model}", "protocol=he2015"]).config.schedule["warmup_iterations"] == 0


def test_a_folder_of_data_that_is_not_there_is_told_before_rows_are_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch and Hydra's rows it takes a second, where composing and sizing 80 rows takes twenty."""
    words = ["sweep=he2016_table1", "launcher=slurm", f"dataset.root={tmp_path}/nowhere"]
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", *words, "model/shortcut=nowhere"])
    with pytest.raises(UserError, match=r"nowhere'?: no such folder; name the one that holds the data, or create it"):
        rows_of_command()
    (tmp_path / "nowhere").mkdir()
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", *words, "seed=0", "model/shortcut=none"])
    assert [row.config.dataset["root"] for row in rows_of_command()] == [f"{tmp_path}/nowhere"]


def test_the_folder_of_a_run_needs_no_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tiny,digits,epochs=5" / "seed0"
    place.mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", f"weights={place}", f"dataset.root={place}"])
    (row,) = rows_of_command()
    assert (row.config.weights, row.config.dataset["root"]) == (str(place), str(place))


def test_help_is_the_page_that_hydra_would_print_with_a_mark_at_what_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model" / "shortcut").mkdir(parents=True)
    (tmp_path / "model" / "shortcut" / "mine.yaml").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", f"--config-dir={tmp_path}", "model=resnet20", "--help"])
    assert rows_of_command() == []
    page = capsys.readouterr().out
    assert re.search(r"^model/shortcut: .*, identity\*, .*, mine, ", page, re.MULTILINE)
    assert re.search(r"^model: .*, resnet20\*, ", page, re.MULTILINE)
    assert re.search(r"^optimizer: .*, nesterov\*, scalar_sgd, sgd$", page, re.MULTILINE)
    monkeypatch.setattr(command_line, "_help_page", lambda overrides, search: None)
    with pytest.raises(SystemExit):
        rows_of_command()
    assert capsys.readouterr().out == re.sub(r"\*(,|$)", r"\1", page, flags=re.MULTILINE)
