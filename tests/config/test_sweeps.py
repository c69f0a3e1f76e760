"""Every committed table: its rows compose, are named as the paper's results are, and build; scales and random draws."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import correlation, mean
from typing import Any

import pytest
import torch
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from torch import nn

from deepnets.config.build import build, check_ranges
from deepnets.config.claim import check_claims
from deepnets.config.compose import compose, composed
from deepnets.config.project import CONF
from deepnets.config.schema import Config, Row, Search, at_scale, case, choice, log_uniform, uniform
from deepnets.config.sweep import matching, names_at
from deepnets.errors import UserError
from deepnets.run import build_model
from deepnets.runs.naming import folder_of, folders_of
from deepnets.training.assembly import dataset_of, model_of, prepare

SWEEPS = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))
DEEP = (
    "balduzzi2017_fig6",
    "he2015_fig6",
    "he2015_table6",
    "he2016_table1",
    "he2016_table2",
    "he2016_table3_cifar10",
    "huang2016_table1_augmented",
    "identity_start",
    "ordering_warmup_resnet",
    "srivastava2025_gates",
)
LEFT_OUT = {  # at scale=deep
    "he2015_table6": {"model=resnet1202"},
    "he2016_table3_cifar10": {"model=wrn16_8"},
    "balduzzi2017_fig6": {"model.depth=98", "model.depth=146"},
    "ordering_warmup_resnet": {"schedule.warmup_iterations=400"},  # 60 instead
}
DEEP_IMAGENET = ("he2015_footnote3", "he2015_table2", "he2015_table3", "he2016_table5")


def said(values: list[Any]) -> str:
    """A list of values as Hydra's sweeper takes it."""
    return ",".join(value if isinstance(value, str) else json.dumps(value) for value in values)


@cache
def grid(sweep: str, scale: str = "full") -> list[list[str]]:
    """The overrides of each row and seed, as Hydra's own sweeper multiplies them, without what the file excludes."""
    base = [f"sweep={sweep}", f"scale={scale}"] if scale != "full" else [f"sweep={sweep}"]
    page = composed(tuple(base))
    table = OmegaConf.to_container(page.config.sweep, resolve=True)
    axes = {key: values if isinstance(values, str) else said(values) for key, values in table["rows"].items()}
    axes |= {"seed": f"range({table['seeds']})"} | dict(page.hydra.sweeper.params or {})
    words = [f"{key}={value}" for key, value in axes.items()]
    batches = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), max_batch_size=None)
    left_out = [{f"{key}={value}" for key, value in entry.items()} for entry in table["exclude"]]
    return [[*base, *row] for batch in batches for row in batch if not any(entry <= {*row} for entry in left_out)]


@cache
def rows(sweep: str, scale: str = "full") -> list[Row]:
    """Each row once, with its first seed; of a random search the first and the last setting."""
    seen: dict[tuple[str, ...], list[str]] = {}
    settings = [word for words in grid(sweep, scale) for word in words if word.startswith("setting=")]
    for words in grid(sweep, scale):
        if not any(word.startswith("setting=") and word not in (settings[0], settings[-1]) for word in words):
            seen.setdefault(tuple(word for word in words if not word.startswith("seed=")), words)
    return [compose(words) for words in seen.values()]


def seeds(sweep: str, scale: str = "full") -> list[str]:
    return sorted({word for words in grid(sweep, scale) for word in words if word.startswith("seed=")})


built: set[str] = set()


def some(sweeps: Sequence[str]) -> list[Any]:
    """Every twelfth of them, and the others as slow tests."""
    return [pytest.param(sweep, marks=[pytest.mark.slow] * (place % 12 != 2)) for place, sweep in enumerate(sweeps)]


def is_deepest(config: Config) -> bool:
    """Whether its network takes seconds to build; the options among these are built in tests/models/test_options.py."""
    return (config.model.get("depth") or 0) > 200


def check_nodes(config: Config) -> None:
    """What deepnets.run checks before it looks for data."""
    assert (config.epochs is None) != (config.iterations is None)
    build("optimizer", config.optimizer, model=nn.Linear(1, 1))
    build("schedule", config.schedule, total=1000)
    check_network(config)


def check_network(config: Config) -> None:
    dataset = dataset_of(config)
    architecture = OmegaConf.to_yaml({"model": config.model, "shape": dataset.shape})  # whatever the classes
    if architecture not in built:
        with torch.device("meta"):
            model_of(config, dataset.shape, dataset.classes)
    built.add(architecture)


UNLIKE = """# @package _global_
sweep:
  rows: {model.depth: [8, 14]}
  union:
    - {schedule: [cosine, constant]}
    - {schedule: cosine, optimizer: sgd, epochs: 3}
  claims: [{claim: "8,cosine,nesterov,164 is lower than 8,cosine,sgd,3"}]
"""


def test_a_row_of_a_union_is_named_by_the_default_of_an_axis_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (file := tmp_path / "sweep" / "unlike.yaml").write_text(UNLIKE)
    search = Search((f"file://{tmp_path}",))
    names = names_at(file, "full", search)
    assert names[:2] == ["8,cosine,nesterov,164", "8,constant,nesterov,164"]
    assert names[-1] == "14,cosine,sgd,3"
    unknown = names_at(file, "full")
    assert unknown[:2] == ["8,cosine,*,*", "8,constant,*,*"]
    assert [matching(name, unknown) for name in names] == [*range(len(names))]
    assert matching("14,cosine,sgd", unknown) is None
    words = [["model.depth=8", "schedule=cosine"], ["model.depth=14", "schedule=cosine", "optimizer=sgd", "epochs=3"]]
    composed_rows = [compose(["sweep=unlike", *row], search) for row in words]
    assert [folder_of(row).path.parent.name for row in composed_rows] == [names[0], names[-1]]
    check_claims(file, search)
    file.write_text(UNLIKE.replace("8,cosine,nesterov", "8,cosine,adam"))
    with pytest.raises(UserError, match="no row 8,cosine,adam,164; the nearest: 8,cosine,"):
        check_claims(file, search)


NETWORKS = """# @package _global_
sweep:
  rows: {optimizer: [sgd, nesterov]}
  union:
    - {model: densenet40_12, model.growth: [4, 8]}
    - {model: digits_resnet, model.depth: 8, model/shortcut: none}
  claims: [{claim: "sgd,digits_resnet,-,8,none is lower than sgd,densenet40_12,4,40,none"}]
"""


ONLY_UNION = """# @package _global_
defaults: [override /dataset: digits]
sweep:
  union:
    - {model: densenet40_12, model.growth: [4, 8], model.stem_width: [8, 4]}
    - {model: digits_resnet, model.depth: 8}
  zip: [[model.growth, model.stem_width]]
  claims: [{claim: "densenet40_12,4,8 is lower than digits_resnet,-,None,8"}]
"""


def test_claims_of_a_sweep_with_a_union_alone_name_its_rows(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (file := tmp_path / "sweep" / "alone.yaml").write_text(ONLY_UNION)
    search = Search((f"file://{tmp_path}",))
    names = names_at(file, "full", search)
    assert names == ["densenet40_12,4,8,-", "densenet40_12,8,4,-", "digits_resnet,-,None,8"]  # its stem_width is null
    assert names_at(file, "full") == ["densenet40_12,4,8,*", "densenet40_12,8,4,*", "digits_resnet,*,*,8"]
    with pytest.raises(UserError, match="no row densenet40_12,4,8; the nearest: densenet40_12,4,8,-"):
        check_claims(file, search)
    scaled = "${at_scale:[4,8],[4]}", "${at_scale:[8,4],[8]}"
    file.write_text(ONLY_UNION.replace("[4, 8]", f'"{scaled[0]}"').replace("[8, 4]", f'"{scaled[1]}"'))
    assert names_at(file, "full", search) == names
    assert names_at(file, "mini", search)[:2] == [names[0], names[-1]]
    file.write_text(ONLY_UNION.replace("[override", "[digits_shortcuts, override"))
    assert names_at(file, "full", search) == []  # the other sweep has rows too


def test_networks_of_a_union_have_keys_that_others_lack(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (file := tmp_path / "sweep" / "networks.yaml").write_text(NETWORKS)
    search = Search((f"file://{tmp_path}",))
    names = names_at(file, "full", search)
    first = ("sgd,densenet40_12,4", "sgd,densenet40_12,8", "nesterov,densenet40_12,4", "nesterov,densenet40_12,8")
    assert names[:4] == [f"{each},-,concatenation" for each in first]
    assert names[4:] == ["sgd,digits_resnet,-,8,none", "nesterov,digits_resnet,-,8,none"]
    words = ["optimizer=sgd", "model=digits_resnet", "model.depth=8", "model/shortcut=none"]
    assert folder_of(compose(["sweep=networks", *words], search)).path.parent.name == names[4]
    with pytest.raises(UserError, match="no row sgd,densenet40_12,4,40,none; the nearest: sgd,densenet40_12,4,-,"):
        check_claims(file, search)


@pytest.mark.parametrize("sweep", some(SWEEPS))
def test_the_rows_are_those_the_paper_reports_and_build_without_data(sweep: str) -> None:
    folders = [folder.path for folder in folders_of(rows(sweep))]
    names = [path.parent.name for path in folders]
    assert len(names) == len(set(names))
    assert {path.parents[1].name for path in folders} == {sweep}
    named = names_at(CONF / "sweep" / f"{sweep}.yaml", "full")
    assert not named or {*names} <= {*named}  # of a random search some are composed
    table = rows(sweep)[0].config.sweep
    if table.reported.test_error:
        assert sorted(table.reported.test_error) == sorted([*names, *table.reported.literature])
        assert table.reported.statistic
    for error in table.reported.test_error.values():
        assert error in (None, "fail") or 0 < error < 100, error
    for further in (table.reported.mean, table.reported.std, table.reported.best, table.reported.view):
        assert set(further) <= {*names, *table.reported.literature}
    assert set(table.reported.top5_error) <= {*names, *table.reported.literature}
    for axis in table.axes:  # or it would name no row
        assert any(word.startswith(f"{axis}=") for word in grid(sweep)[0])
    for row in rows(sweep):
        if not is_deepest(row.config):
            check_nodes(row.config)
    comment = (CONF / "sweep" / f"{sweep}.yaml").read_text().split("\nsweep:")[0]
    assert f"python scripts/train.py sweep={sweep}" in comment
    assert "# Protocol" in comment
    assert "precision=fp32" in comment
    if not sweep.startswith("digits"):
        assert "Reported: " in comment
        assert f" PFLOP in {len(grid(sweep))} run" in comment.replace("\n# ", " ")


@pytest.mark.nightly
def test_the_deepest_networks_of_all_sweeps_build() -> None:
    deepest = [row.config for sweep in SWEEPS for row in rows(sweep) if is_deepest(row.config)]
    assert len(deepest) > 10
    for config in deepest:
        check_nodes(config)


@pytest.mark.parametrize("sweep", some(SWEEPS))
def test_mini_has_two_seeds_and_a_folder_of_its_own(sweep: str) -> None:
    assert seeds(sweep, "mini") == ["seed=0", "seed=1"]
    row = compose(grid(sweep, "mini")[-1])
    (folder,) = folders_of([row])
    assert folder.path.parents[1].name == f"{sweep}+scale=mini"
    assert row.config.scale.budget == 0.05
    check_nodes(row.config)


@pytest.mark.parametrize("sweep", some(DEEP))
def test_deep_keeps_the_depth_in_a_folder_of_its_own(sweep: str) -> None:
    assert seeds(sweep, "deep") == ["seed=0", "seed=1", "seed=2"]
    full, deep = (
        {tuple(word for word in words if not word.startswith(("scale=", "seed="))) for words in grid(sweep, scale)}
        for scale in ("full", "deep")
    )
    left_out = {word for words in full - deep for word in words} - {word for words in deep for word in words}
    assert left_out == LEFT_OUT.get(sweep, set())
    for words in (grid(sweep, "deep")[0], grid(sweep, "deep")[-1]):
        here, there = compose(words), compose([word for word in words if word != "scale=deep"])
        assert folder_of(here).path.parents[1].name == f"{sweep}+scale=deep"
        assert path_name(here) == path_name(there)
        for what in ("depth", "units", "kernels"):
            assert here.config.model[what] == there.config.model[what]
        assert dataset_of(here.config).shape == (3, 16, 16)
        if not is_deepest(here.config):
            check_nodes(here.config)
        images = 50_000 - here.config.dataset["validation"]
        iterations = here.config.iterations or here.config.epochs * math.ceil(images / 128)
        assert round(iterations * here.config.scale.budget, -1) == 1600


@pytest.mark.slow
def test_deep_narrows_thin_networks_by_half_and_others_by_a_quarter() -> None:
    thin = {row.choices["model"]: row.config.model["widths"] for row in rows("balduzzi2017_fig6", "deep")}
    halves = {"thin_relu": [4, 8, 16, 32], "thin_crelu": [3, 6, 11, 23]}  # CReLU: divided by sqrt(2), rounded
    for model, widths in thin.items():
        is_doubled = model in ("thin_crelu", "thin_looks_linear", "thin_looks_linear_resnet")
        assert widths == halves["thin_crelu" if is_doubled else "thin_relu"]
    assert all(row.config.model["widths"] == [4, 8, 16] for row in rows("ordering_warmup_resnet", "deep"))


@pytest.mark.parametrize("sweep", some(DEEP_IMAGENET))
def test_deep_keeps_the_depth_on_small_crops_of_every_tenth_class(sweep: str) -> None:
    for row in rows(sweep, "deep")[-1:]:  # the deepest net
        full, deep = (
            compose([f"sweep={sweep}", f"model={row.choices['model']}", *more]) for more in ((), ("scale=deep",))
        )
        assert deep.config.model["units"] == full.config.model["units"]
        assert deep.config.model["widths"] == [16, 32, 64, 128]
        dataset = dataset_of(deep.config)
        assert (dataset.shape, dataset.classes) == ((3, 64, 64), 100)
        check_nodes(deep.config)


@pytest.mark.parametrize("sweep", some(sorted({*SWEEPS} - {*DEEP, *DEEP_IMAGENET})))
def test_deep_is_refused_where_it_suits_no_network(sweep: str) -> None:
    with pytest.raises(UserError, match="scale=deep is not supported by this sweep"):
        compose([f"sweep={sweep}", "scale=deep"])


def path_name(row: Row) -> str:
    return folder_of(row).path.parent.name


def test_a_network_of_a_table_is_built_by_name() -> None:
    with torch.device("meta"):
        model = build_model(["sweep=he2016_table1", "model/shortcut=exclusive_gating_b6", "dataset.root=/nowhere"])
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_824_186


@pytest.mark.parametrize(
    ("sweep", "settings", "runs"),
    [
        ("he2016_table1", 16, 5),
        ("he2016_table2", 10, 5),
        ("huang2016_table1_augmented", 4, 1),
        ("balduzzi2017_fig6_deepest", 6, 10),
        ("srivastava2015_fig1_highway", 400, 1),
    ],
)
def test_tables_have_the_papers_settings_and_runs(sweep: str, settings: int, runs: int) -> None:
    assert len(seeds(sweep)) == runs
    assert len({tuple(words) for words in grid(sweep)}) == settings * runs


def test_a_row_of_table_1_is_the_papers_network_and_protocol() -> None:
    row = ("sweep=he2016_table1", "model/shortcut=exclusive_gating_b6")
    config = compose(row).config
    assert (config.model["depth"], config.model["shortcut"]["bias"], config.iterations) == (110, -6.0, 64000)
    assert config.schedule["warmup_iterations"] == 400
    mini = compose([*row, "scale=mini"]).config
    assert (mini.model["depth"], mini.iterations, mini.schedule["warmup_iterations"]) == (20, 64000, 20)


@pytest.mark.slow
def test_values_that_depend_on_the_row() -> None:
    warmups = {row.choices["model"]: row.config.schedule["warmup_iterations"] for row in rows("he2015_table6")}
    assert warmups == {"resnet110": 400, "resnet1202": 400} | {f"resnet{depth}": 0 for depth in (20, 32, 44, 56)}
    replies = {row.choices["model"]: row.config.schedule["warmup_iterations"] for row in rows("srivastava2025_gates")}
    assert replies == {"resnet110": 391, "highway110": 0}
    deep = {row.choices["model"]: row.config for row in rows("srivastava2025_gates", "deep")}
    assert [deep[model].schedule["warmup_iterations"] for model in replies] == [60, 0]
    assert deep["highway110"].model["widths"][0] < deep["highway110"].model["stem_width"]  # its first unit projects
    assert {config.model["depth"] for config in deep.values()} == {110}
    heads = {row.choices["dataset"]: row.config.model["head_std"] for row in rows("srivastava2015_table3")}
    assert heads == {"cifar10": 0.05, "cifar100": 0.1414}
    ghosts = {row.config.batch_size: row.config.model["batchnorm_images"] for row in rows("he2016_table4")}
    assert ghosts == {128: 64, 64: 32}


@pytest.mark.parametrize(("budget", "iterations"), [(["epochs=100"], 60), (["epochs=null", "iterations=1000"], 50)])
def test_mini_trains_a_twentieth_in_a_folder_of_its_own(budget: Sequence[str], iterations: int) -> None:
    row = compose(["scale=mini", *budget])
    assert "scale=mini" in folder_of(row).path.parent.name
    training = prepare(row.config, torch.device("cpu"), torch.float32)
    assert training.iterations == iterations  # 12 an epoch
    assert training.schedule.lr_lambdas[0].milestones == [80 * iterations // 164, 121 * iterations // 164]


def test_a_share_of_the_budget_beyond_it_is_refused() -> None:
    for budget in (0.0, 1.5):
        with pytest.raises(UserError, match=r"scale\.budget: got .*(above 0|at most 1)"):
            check_ranges(compose([f"scale.budget={budget}"]).config)


def drawn(kind: str, depth: int, setting: int) -> tuple[Any, ...]:
    config = compose([f"sweep=srivastava2015_fig1_{kind}", f"model={kind}_fc{depth}", f"setting={setting}"]).config
    optimizer, schedule = config.optimizer, config.schedule
    return config.model["layer"][1], optimizer["lr"], optimizer["momentum"], schedule["final_factor"]


def test_a_setting_is_the_same_for_every_depth_and_kind() -> None:
    assert drawn("highway", 10, 7) == drawn("highway", 100, 7) == drawn("plain", 50, 7) != drawn("highway", 10, 8)


def test_draws_are_the_same_everywhere_and_spread_over_their_range() -> None:
    lrs = [log_uniform(setting, "lr", 1e-3, 1.0) for setting in range(100)]
    biases = [uniform(setting, "gate_bias", -10, -1) for setting in range(100)]
    layers = [choice(setting, "activation", "relu", "tanh") for setting in range(100)]
    assert (lrs[:2], biases[:2], layers[:4]) == ([0.8636, 0.00125], [-7.609, -4.157], ["relu", "relu", "relu", "tanh"])
    assert all(1e-3 <= lr <= 1 for lr in lrs)
    assert all(-10 <= bias <= -1 for bias in biases)
    assert mean(map(math.log10, lrs)) == pytest.approx(-1.5, abs=0.26)  # three standard errors
    assert mean(biases) == pytest.approx(-5.5, abs=0.78)
    assert abs(correlation(list(map(math.log10, lrs)), biases)) < 0.3
    assert 35 <= layers.count("relu") <= 65


def test_a_searched_value_can_be_set_by_hand() -> None:
    row = compose(["sweep=srivastava2015_fig1_plain", "setting=3", "optimizer.lr=0.25"])
    assert row.config.optimizer["lr"] == 0.25
    assert folder_of(row).path.parent.name == "plain_fc10,3"
    assert folder_of(row).path.parents[1].name == "srivastava2015_fig1_plain+optimizer.lr=0.25"


def test_without_a_setting_nothing_is_drawn_and_the_run_is_refused() -> None:
    config = compose(["sweep=srivastava2015_fig1_plain"]).config
    with pytest.raises(UserError, match=r"optimizer\.lr: got None"):
        check_nodes(config)


def test_a_setting_without_a_search_is_refused() -> None:
    with pytest.raises(UserError, match="setting=5: this key numbers the trials of a random search"):
        compose(["setting=5"])


def test_values_by_scale_and_by_another_value() -> None:
    node = OmegaConf.create({"scale": {"name": "mini"}})
    assert at_scale(110, 20, _root_=node) == 20
    assert at_scale(400, 20, 100, _root_=node) == 20
    for name in ("full", "deep", "a user's own"):
        node.scale.name = name
        assert at_scale(110, 20, _root_=node) == 110
        assert at_scale(400, 20, 100, _root_=node) == (100 if name == "deep" else 400)
    assert [case(depth, {110: 400}, 0) for depth in (110, 56)] == [400, 0]
