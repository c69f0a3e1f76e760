"""The committed records, and the tables in outputs/records/README.md that are made from them."""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from deepnets.analysis.paths import effective_lengths
from deepnets.results.export import to_markdown
from deepnets.results.read import read_runs
from deepnets.results.search import final_loss
from deepnets.results.sheet import MINUS
from deepnets.results.table import tables_of
from deepnets.runs.folder import RunFolder, run_folders
from tests.command import ROOT, metrics

RECORDS = ROOT / "outputs" / "records"
PAGE = (RECORDS / "README.md").read_text()
RUNS = run_folders(RECORDS)
TABLES = sorted({folder.path.parents[1] for folder in RUNS})


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_the_page_shows_what_report_makes_of_the_records(table: Path) -> None:
    assert to_markdown(tables_of(read_runs([table]))) in PAGE


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: str(folder))
def test_a_record_is_of_a_run_that_has_ended_and_can_be_read(folder: RunFolder) -> None:
    assert folder.is_complete
    config, (run,) = folder.config, read_runs([folder.path])
    assert (config.output_root, config.dataset["root"]) == ("outputs", "data")
    assert run.broken == []
    errors = [epoch["test_error"] for epoch in run.history] or [None]  # none of a run that diverges in its first epoch
    assert errors[-1] == folder.result.get("last_test_error")


def test_the_page_shows_the_autocorrelations_on_record() -> None:
    names = {
        ("feedforward", "1"): "centred feed-forward",
        ("resnet", "1"): "resnet, β = 1",
        ("resnet", "0.1"): "resnet, β = 0.1",
    }
    with (RECORDS / "shattering" / "autocorrelation.csv").open() as file:
        at_one = [line for line in csv.DictReader(file) if line["lag"] == "1" and line["depth"]]
    for key, name in names.items():
        means = [float(line["mean"]) for line in at_one if (line["net"], line["beta"]) == key]
        cells = [name, *(f"{mean:.2f}".replace("-", MINUS) for mean in means)]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_page_counts_the_idle_layers_on_record() -> None:
    with (RECORDS / "srivastava2015_fig1_highway+scale=mini" / "lesion_single.csv").open() as file:
        whole, *without = [float(line["error"]) for line in csv.DictReader(file)]
    idle = [error <= whole + 0.1 for error in without]
    page = " ".join(PAGE.split())
    assert f"{whole:.2f} % of errors with all layers" in page
    assert f"{sum(idle)} of the {len(idle)} layers, {100 * sum(idle) / len(idle):.0f} %" in page
    assert f"other {idle.count(False)} layers {idle[:15].count(False)} are among the first 15" in page
    assert f"without layer {without.index(max(without)) + 1}, the worst case, it is {max(without):.2f} %" in page


def test_the_page_says_what_the_deletion_of_a_unit_costs_on_record() -> None:
    page = " ".join(PAGE.split())
    whole, without = errors_without_a_unit("he2016_table1+scale=mini", "identity")
    told = f"without one of its {len(without)} units the test error rises from {whole:.2f} to {median(without):.2f} %"
    assert f"{told} in the median and to {max(without):.2f} % at worst" in page
    whole, without = errors_without_a_unit("he2015_table6", "resnet20")
    told = f"without one of its {len(without)} units the error rises from {whole:.2f} to {median(without):.2f} % in"
    assert f"{told} the median and to {max(without):.2f} % at worst" in page
    whole, without = errors_without_a_unit("he2015_table6+scale=mini", "resnet56")
    told = f"Without one of its {len(without)} units the residual net's error rises from {whole:.2f} to"
    assert f"{told} {median(without):.2f} % in the median and to {max(without):.2f} % at worst" in page
    whole, without = errors_without_a_unit("he2015_table6+scale=mini", "plain56")
    told = f"without one of the {len(without)} units that can be taken out, the plain net's goes from {whole:.2f} to"
    assert f"{told} {median(without):.2f} % in the median" in page


def test_the_page_says_what_many_deletions_and_which_paths_count_on_record() -> None:
    page, records = " ".join(PAGE.split()), RECORDS / "he2015_table6+scale=mini"
    with (records / "lesion_random.csv").open() as file:
        without = [float(line["error"]) for line in csv.DictReader(file) if line["deleted"] == "20"]
    assert f"to {fmean(without):.2f} % without 20 of the units in the mean" in page
    with (records / "paths_lengths.csv").open() as file:
        lines = [{name: float(value) for name, value in line.items()} for line in csv.DictReader(file)]
    first, last = effective_lengths(np.array([line["count_times_norm"] for line in lines]))
    share = sum(line["share_of_paths"] for line in lines[first : last + 1])
    assert f"lies at lengths of {first} to {last}, which {100 * share:.0f} % of the paths have" in page


def errors_without_a_unit(table: str, row: str) -> tuple[float, list[float]]:
    """The whole net's, and those without each of its units."""
    with (RECORDS / table / "lesion_single.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["run"] == f"{row}/seed0"]
    whole, *without = [float(line["error"]) for line in lines]
    return whole, without


def mini_results(table: str, rows: Iterable[str], key: str, seed: int = 0) -> list[float]:
    return [RunFolder(RECORDS / f"{table}+scale=mini" / row / f"seed{seed}").result[key] for row in rows]


def test_the_page_says_how_errors_grow_with_depth_on_record() -> None:
    for table, kind, name in (("he2015_fig6", "plain", "plain"), ("he2015_table6", "resnet", "residual")):
        for seed in (0, 1):
            errors = mini_results(table, (f"{kind}{depth}" for depth in (20, 32, 44, 56)), "train_error", seed)
            assert f"| {name} | {seed} | {' | '.join(f'{error:.2f}' for error in errors)} |" in PAGE


def test_the_page_says_how_orderings_of_a_unit_rank_on_record() -> None:
    orderings = (
        "original",
        "full_preactivation",
        "bn_after_addition",
        "relu_before_addition",
        "relu_only_preactivation",
    )
    best, gains, ours = 0, [], {}
    for block in ("basic", "bottleneck"):
        rows = [f"{block},{ordering}" for ordering in orderings]
        errors = [mini_results("he2016_table2", rows, "test_error", seed) for seed in (0, 1)]
        for original, full, bn_after, relu_before, relu_only in errors:
            assert max(full, bn_after) < original
            assert relu_before > max(original, full, bn_after, relu_only)
            best += full < min(bn_after, relu_only)
        ours[block] = [median(pair) for pair in zip(*errors, strict=True)]
        gains.append(ours[block][0] - ours[block][1])
        if block == "basic":
            near = sorted(ours[block])[:4]
            assert f"lie within {near[-1] - near[0]:.2f} points" in " ".join(PAGE.split())
    assert best == 1  # "once in four"
    told = f"by {gains[0]:.2f} points of the medians with basic blocks and {gains[1]:.1f} with bottlenecks"
    assert told in " ".join(PAGE.split())


def test_the_page_says_where_the_full_training_ends_on_record() -> None:
    result = RunFolder(RECORDS / "he2015_table6" / "resnet20" / "seed0").result
    told = (
        f"The training error ends at {result['train_error']:.2f} % and the test error at {result['test_error']:.2f} %, "
        f"after {result['best_test_error']:.2f} % at its best epoch, which is no result."
    )
    assert told in " ".join(PAGE.split())
    assert (result["iterations"], result["epochs"]) == (64000, 164)
    seconds = result["seconds"]
    assert f"{seconds // 3600:.0f} hours {seconds % 3600 / 60:.0f} minutes" in " ".join(PAGE.split())


def test_the_page_says_how_errors_of_thin_nets_change_with_depth_on_record() -> None:
    for kind in ("relu", "crelu", "looks_linear", "resnet"):
        rows = (f"thin_{kind},{depth}" for depth in (10, 26))
        shallow, deep = mini_results("balduzzi2017_fig6", rows, "test_error")
        assert f"({shallow:.2f} to {deep:.2f} %)" in " ".join(PAGE.split())


def test_the_summary_in_the_projects_readme_is_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text()
    told = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", readme, re.MULTILINE))

    def here(start: str) -> str:
        return next(value for what, value in told.items() if what.startswith(start))

    highway = RunFolder(RECORDS / "srivastava2015_table1" / "highway_mnist_w16" / "seed0")
    assert here("highway network of width 16") == f"{highway.result['test_error']:.2f} %"
    best = [
        min(map(final_loss, read_runs(sorted(RECORDS.glob(f"srivastava2015_fig1_{kind}+scale=mini/*_fc100,*")))))
        for kind in ("highway", "plain")
    ]
    assert here("100 layers, MNIST") == f"{best[0]:.3g} and {best[1]:.3g}"
    resnet = RunFolder(RECORDS / "he2015_table6" / "resnet20" / "seed0")
    assert here("ResNet-20, CIFAR-10, full protocol") == f"{resnet.result['test_error']:.2f} %"
    fleuret = RunFolder(RECORDS / "runs" / "mnist_resnet52,mnist,epochs=4" / "seed0")
    assert here("ResNet of 52 layers for MNIST") == f"{fleuret.result['test_error']:.2f} %"
    assert f"layers, {here('layers of the best highway net')}" in " ".join(PAGE.split())
    plain, residual = here("fresh nets of 24 layers").split(" and ")
    assert re.search(rf"^\| centred feed-forward \|.* {plain} \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert re.search(rf"^\| resnet, β = 0.1 \|.* {residual} \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert f"Ranking of 16 rows: Kendall's τ = {here('16 shortcuts on CIFAR-10')} with" in PAGE
    for block, tau in zip(("basic", "bottleneck"), here("5 orderings").split(" and "), strict=True):
        assert f"Ranking of 5 rows of {block}: Kendall's τ = {tau} with" in PAGE
    for what, kind in (
        ("test error of thin nets", "relu"),
        ("the same, looks-linear", "looks_linear"),
        ("the same, residual", "resnet"),
    ):
        rows = (f"thin_{kind},{depth}" for depth in (10, 26))
        shallow, deep = mini_results("balduzzi2017_fig6", rows, "test_error")
        assert here(what) == f"{shallow:.2f} and {deep:.2f} %"
    for what, table, kind in (
        ("training error of plain nets", "he2015_fig6", "plain"),
        ("the same of residual nets", "he2015_table6", "resnet"),
    ):
        of_seeds = [mini_results(table, (f"{kind}{depth}" for depth in (20, 56)), "train_error", s) for s in (0, 1)]
        shallow, deep = map(fmean, zip(*of_seeds, strict=True))
        assert here(what) == f"{shallow:.2f} and {deep:.2f} %"
    (plain, less), (residual, one_less) = (
        errors_without_a_unit("he2015_table6+scale=mini", row) for row in ("plain56", "resnet56")
    )
    deleted = f"{median(less):.2f} % (whole {plain:.2f}), {median(one_less):.2f} % ({residual:.2f})"
    assert here("test error of those with 56 layers") == deleted


def test_the_page_says_how_shortcuts_rank_on_record() -> None:
    gates = [f"exclusive_gating_b{bias}" for bias in range(1, 8)]
    others = ["scaled_0.5_0.5", "scaled_0.5_1", "identity", "none", "dropout"]
    seeds = [mini_results("he2016_table1", gates + others, "test_error", seed) for seed in (0, 1)]
    for errors in seeds:
        assert errors[:7] == sorted(errors[:7])
        half, scaled, identity, none, dropout = errors[7:]
        assert identity < min(half, scaled) <= max(half, scaled) < none < dropout
    medians = [f"{median(pair):.2f}" for pair in zip(*seeds, strict=True)]
    half, scaled, identity, none, dropout = medians[7:]
    page = " ".join(PAGE.split())
    assert f"costs, from {medians[0]} % to {medians[6]} % at" in page
    assert f"worse than the identity, {half} and {scaled} % against {identity} %" in page
    assert f"none at all is worse still, {none} %, and so is dropout on it, {dropout} %." in page


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_net_in_two_tables_was_trained_to_the_same_numbers(seed: int) -> None:
    one, other = (
        f"he2016_{place}/seed{seed}" for place in ("table1+scale=mini/identity", "table2+scale=mini/basic,original")
    )
    assert metrics(RECORDS / one) == metrics(RECORDS / other)
