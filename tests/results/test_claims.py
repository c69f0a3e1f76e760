"""Claims tested on runs, against arithmetic of its own."""

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from deepnets.config.claim import Claim, Measured, Relation
from deepnets.config.places import CONF
from deepnets.results.claims import OTHER_DEPTH, findings_of, pairs_of
from deepnets.results.claims_page import claims_page
from deepnets.results.finding import Finding, Outcome, Side, seeds_needed, welch_interval
from deepnets.results.published import PublishedRow
from deepnets.results.read import read_runs
from deepnets.results.sheet import percent
from deepnets.results.sheets import claim_sheets, comparison_sheets
from deepnets.results.statistics import image_noise
from deepnets.results.table import Table, tables_of
from deepnets.runs.status import State
from tests.command import ROOT
from tests.trained import Trained

LOW, HIGH = (50.0, 51.0, 52.0), (61.0, 60.0, 62.5)
SWEEP = """sweep:
  axes: [model/shortcut]
  claims:
    - {claim: "identity is lower than none", place: "Table 1"}
    - {claim: "identity is higher than none", error: training, place: "Fig. 3"}
    - {claim: "projection fails against identity", above: 60, place: "Table 1"}
    - {claim: "identity is lower than scaled_0.5_0.5", place: "Table 1"}
    - {claim: "identity is lower than elsewhere/none", place: "Table 2"}
    - {claim: "identity is lower than nowhere/none", place: "Table 2"}
    - {sentence: the gain grows, rows: [identity, none], quantity: gain in nats, margin: 0.5, place: "Fig. 4"}
"""


def finding(
    relation: Relation, first: tuple[float, ...], second: tuple[float, ...], known: bool = True, fails: float = 80.0
) -> Finding:
    sides = [Side(name, (), errors, (known,) * len(errors)) for name, errors in (("a", first), ("b", second))]
    return Finding(Claim("a", relation, "b", Measured.test, "Table 1"), *sides, fails)


@pytest.mark.parametrize(
    ("relation", "first", "second", "outcome"),
    [
        (Relation.below, LOW, HIGH, "supported"),
        (Relation.below, HIGH, LOW, "contradicted"),
        (Relation.above, HIGH, LOW, "supported"),
        (Relation.above, LOW, HIGH, "contradicted"),
        (Relation.below, LOW, (51.5, 50.5, 53.0), "undecided"),
        (Relation.below, LOW[:2], HIGH, "undecided"),
        (Relation.below, (90.0,) * 3, (90.0,) * 3, "undecided"),
        (Relation.fails, (90.0,) * 3, LOW, "supported"),
        (Relation.fails, (90.0, 89.0, 79.0), LOW, "undecided"),  # one learns
        (Relation.fails, HIGH, LOW, "undecided"),  # none fails, but the interval lies on the claimed side
        (Relation.fails, LOW, HIGH, "contradicted"),
        (Relation.fails, LOW, (51.5, 50.5, 53.0), "contradicted"),
        (Relation.fails, (90.0,) * 3, (89.0, 88.9, 89.1), "undecided"),  # the other fails too
    ],
)
def test_outcomes(relation: Relation, first: tuple[float, ...], second: tuple[float, ...], outcome: str) -> None:
    assert finding(relation, first, second).outcome == outcome


def test_runs_of_before_the_claim_contradict_but_do_not_support() -> None:
    assert finding(Relation.below, LOW, HIGH, known=False).outcome is Outcome.undecided
    assert finding(Relation.below, HIGH, LOW, known=False).outcome is Outcome.contradicted
    assert finding(Relation.below, LOW, HIGH, known=False).seen_before == 6


def test_the_interval_is_welchs() -> None:
    errors = [np.array(side) for side in (LOW, HIGH)]
    variances = [side.var(ddof=1) / len(side) for side in errors]
    freedom = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(sum(variances))
    difference = errors[0].mean() - errors[1].mean()
    assert welch_interval(LOW, HIGH) == pytest.approx((difference - half, difference + half))
    found = finding(Relation.below, LOW, HIGH)
    assert found.difference == pytest.approx(difference)
    assert found.superiority == 0
    assert finding(Relation.below, (1.0, 3.0), (1.0, 2.0)).superiority == pytest.approx(2.5 / 4)


def test_intervals_hold_as_often_as_they_say() -> None:
    draw, held = np.random.default_rng(0), []
    for n, spread in product((3, 4, 5), (1.0, 2.0, 4.0)):
        samples = [(draw.normal(0, 1, n), draw.normal(1, spread, n)) for _ in range(500)]
        intervals = [welch_interval(*map(tuple, pair)) for pair in samples]
        held.append(np.mean([interval[0] <= -1 <= interval[1] for interval in intervals if interval]))
        assert 0.9 < held[-1] < 0.99
    assert 0.94 < np.mean(held) < 0.96


def test_seeds_needed_show_the_difference_four_times_of_five() -> None:
    first, second = (50.0, 52.0, 51.0), (52.0, 54.0, 53.0)  # two standard deviations apart
    n = seeds_needed(first, second)
    assert n is not None
    draw, shown = np.random.default_rng(0), []
    for count in (n - 1, n):
        pairs = [(draw.normal(51, 1, count), draw.normal(53, 1, count)) for _ in range(1500)]
        shown.append(np.mean([stats.ttest_ind(*pair).pvalue < 0.05 for pair in pairs]))
    assert shown[0] < 0.8 <= shown[1] + 0.02
    assert seeds_needed(first, first) is None
    assert seeds_needed((50.0,), second) is None


def test_noise_of_the_test_set_is_that_of_paired_images() -> None:
    draw = np.random.default_rng(0)
    rows = [[draw.random(2000) < 0.3 for _ in range(3)], [draw.random(2000) < 0.2 for _ in range(2)]]
    by_image = np.mean(rows[0], 0) - np.mean(rows[1], 0)
    resampled = [by_image[draw.integers(2000, size=2000)].mean() for _ in range(4000)]
    assert image_noise(*rows) == pytest.approx(196 * np.std(resampled), rel=0.05)
    assert image_noise(rows[0], [None]) is None


@pytest.fixture(scope="module")
def sweeps(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / f"{trained.path.name}.yaml").write_text(SWEEP)
    return folder


@pytest.fixture(scope="module")
def table(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The trained table beside a copy of its row none in another sweep's folder, `elsewhere`."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(trained.path, root / trained.path.name)
    shutil.copytree(trained.path / "none", root / "elsewhere" / "none")
    (table,) = tables_of(read_runs([root / trained.path.name]))
    return table


def test_claims_of_a_sweep_file_are_tested_on_its_runs(trained: Trained, table: Table, sweeps: Path) -> None:
    below, training, fails, pair, sibling, nowhere = findings_of(table, 0, sweeps)
    errors = [np.array(trained.errors(row)) for row in ("identity", "none")]
    assert below.difference == pytest.approx(errors[0].mean() - errors[1].mean())
    assert below.seeds == sibling.seeds == (4, 3)
    assert sibling.difference == below.difference
    assert below.image_noise is not None
    assert below.image_noise > 0
    (sheet,) = comparison_sheets(table)
    pair_line = next(line for line in sheet.lines if {line[0], line[8]} == {"identity", "none"})
    assert pair_line[4] == percent(below.image_noise)
    train = [[result["train_error"] for result in trained.results(row)] for row in ("identity", "none")]
    assert training.difference == pytest.approx(np.mean(train[0]) - np.mean(train[1]))
    assert training.image_noise is None
    assert 100 in fails.first.errors  # a diverged run
    assert fails.fail_above == 60
    assert (pair.seeds, pair.outcome) == ((4, 2), Outcome.undecided)
    assert (nowhere.seeds, nowhere.difference) == ((4, 0), None)


def test_the_sheet_and_the_page_show_each_claim(table: Table, sweeps: Path, tmp_path: Path) -> None:
    (sheet,) = claim_sheets(table, sweeps)
    assert len(sheet.lines) == 6
    assert sheet.lines[0][:4] == ("identity is lower than none", sheet.lines[0][1], "test", "Table 1")
    assert "7 seen before" in sheet.lines[0][4]
    page = claims_page(tmp_path, [table], sweeps)
    assert "6 claims;" in page
    assert page.count("| identity is lower than none |") == 1
    assert page.count("| identity is lower than elsewhere/none |") == 1
    command = f"python scripts/train.py sweep={table.name} 'seed=range(3)' dataset.root=DIR"
    assert f"Without runs of both rows (`{command}`): identity is lower than nowhere/none." in page
    assert (
        "Registered, not tested yet:\n\n* The gain grows (gain in nats; margin 0.5; rows identity; none); Fig. 4."
        in page
    )
    empty = claims_page(tmp_path, [], sweeps)
    assert f"Without runs of both rows (`{command}`): identity is lower than none;" in empty
    assert "identity is lower than nowhere/none" in empty


def test_where_no_paper_prints_fails_a_row_fails_near_guessing() -> None:
    (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / "ordering_warmup_transformer"]))
    without, _ = findings_of(table, 0, CONF / "sweep")
    assert table.columns[0].is_published_protocol
    assert (without.fail_above, without.outcome) == (80.0, Outcome.supported)


def test_a_claim_about_an_axis_is_about_each_pair_of_rows() -> None:
    claim = Claim("full", Relation.below, "original", Measured.test, "Table 2")
    rows = ("basic,original", "basic,full", "bottleneck,original", "bottleneck,full", "wide,full")
    assert pairs_of(claim, rows, 2) == [("basic,full", "basic,original"), ("bottleneck,full", "bottleneck,original")]
    whole = Claim("basic,full", Relation.below, "wide,full", Measured.test, "Table 2")
    assert pairs_of(whole, rows, 2) == [("basic,full", "wide,full")]
    assert pairs_of(whole, (), 2) == [("basic,full", "wide,full")]


def test_claims_are_tested_on_nets_of_the_papers_depth_alone() -> None:
    """Table 1 at scale=mini has 20 layers for 110; each net of Table 6 has the depth that its row names."""
    for name, is_tested in (("he2016_table1", False), ("he2016_table2", False), ("he2015_fig6", True)):
        (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / f"{name}+scale=mini"]))
        assert bool(findings_of(table, 0, CONF / "sweep")) is is_tested
        (sheet,) = claim_sheets(table)
        assert sheet.note.startswith("Not tested: nets of another depth") is not is_tested
        assert (f"Not tested at scale=mini: {OTHER_DEPTH}." in claims_page(Path(), [table])) is not is_tested


def test_more_seeds_are_those_that_are_still_lacking() -> None:
    near = (51.5, 53.5, 52.5)
    lacking = (seeds_needed(LOW, near) or 0) - 3
    assert finding(Relation.below, LOW, near).more_seeds == (lacking, lacking)
    assert finding(Relation.below, LOW, near, known=False).more_seeds == (lacking + 3, lacking + 3)
    even, wide = (50.0, 50.0, 50.0), (56.0, 56.0, 62.0)
    assert finding(Relation.below, even, wide).outcome is Outcome.undecided
    assert seeds_needed(even, wide) == 3  # which there are
    assert finding(Relation.below, even, wide).more_seeds == (1, 1)
    assert finding(Relation.below, LOW, HIGH).more_seeds is None
    assert finding(Relation.fails, (90.0, 79.0), LOW[:2]).more_seeds is None  # one learns, whatever others do
    assert finding(Relation.fails, (90.0, 89.0), (50.0, 90.0)).more_seeds is None
    assert finding(Relation.fails, (90.0, 89.0), LOW[:2]).more_seeds == (1, 1)


def test_the_page_says_how_and_where_runs_were_trained() -> None:
    records = ROOT / "outputs" / "records"
    names = ("ordering_warmup_transformer", "he2015_fig6+scale=mini", "he2016_table1+scale=deep")
    names += ("he2016_table1+precision=bf16+scale=deep",)
    page = claims_page(Path(), [table for name in names for table in tables_of(read_runs([records / name]))])
    assert "| (own setting) | post_norm,0 fails against pre_norm,0 | supported |" in page
    assert "About rows that scale=mini leaves out: plain110 fails against plain20." in page
    assert "| (scale=deep precision=fp32) | identity is lower than none | supported |" in page


def test_where_a_paper_counts_its_best_epochs_claims_do_too(table: Table, sweeps: Path) -> None:
    rows = {row: PublishedRow(best_epochs=2) for row in table.rows}
    ruled = replace(table, published=replace(table.published, rows=rows))
    runs = table.columns[0].rows["identity"]
    means = [np.mean(sorted(epoch["test_error"] for epoch in run.history)[:2]) for run in runs]
    last, best = (findings_of(each, 0, sweeps)[0].first.errors for each in (table, ruled))
    assert best == pytest.approx(means)
    assert best != last


def test_images_are_those_of_the_error(table: Table) -> None:
    run = table.columns[0].rows["identity"][0]
    assert run.test_wrong is not None
    other_view = replace(run, result=run.result | {"test_error": run.result["test_error"] + 0.5})
    diverged = replace(run, state=State("diverged"))
    assert (other_view.test_wrong, diverged.test_wrong) == (None, None)
