"""Claims tested on runs, against arithmetic of its own; `plan=true`: the seeds that claims need."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from deepnets.config.claim import Claim, Measured, Relation, margins_of
from deepnets.config.project import CONF
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.results.cell import MIXED_CODE
from deepnets.results.claims import OTHER_DEPTH, _fails_here, _with_holm, findings_of, pairs_of
from deepnets.results.claims_page import (
    MOST_WAITING,
    NO_LOOK,
    _experiment,
    claim_answers,
    claim_line,
    claim_sheets,
    claims_page,
    show_seeds,
)
from deepnets.results.columns import Column, frame_of, warnings_of
from deepnets.results.figures.points import looks_of_claims
from deepnets.results.finding import LOOKS, Outcome, PairFinding, Side
from deepnets.results.published import PublishedRow
from deepnets.results.read import Run, read_runs
from deepnets.results.records import keep
from deepnets.results.report import report
from deepnets.results.statistics import image_noise, power
from deepnets.results.table import Table, comparison_sheets, tables_of
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State
from deepnets.system.printing import MINUS, percent
from tests.command import ROOT, row
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
    relation: Relation,
    first: tuple[float, ...],
    second: tuple[float, ...],
    known: bool | tuple[bool, ...] = True,
    fails: float = 80.0,
    **more: object,
) -> PairFinding:
    sides = tuple(
        Side(name, errors, known if isinstance(known, tuple) else (known,) * len(errors), tuple(range(len(errors))))
        for name, errors in (("a", first), ("b", second))
    )
    return PairFinding(Claim("a", relation, "b", Measured.test, "Table 1"), sides, fails, **more)  # type: ignore[arg-type]


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
        (Relation.below, (90.0,) * 3, (100.0,) * 3, "undecided"),  # no spread: all are dead
        (Relation.fails, (90.0,) * 3, LOW, "supported"),
        (Relation.fails, (90.0, 89.0, 79.0), LOW, "undecided"),  # one learns
        (Relation.fails, HIGH, LOW, "undecided"),  # none fails, but the interval lies on the claimed side
        (Relation.fails, LOW, HIGH, "contradicted"),
        (Relation.fails, LOW, (51.5, 50.5, 53.0), "undecided"),  # the next seeds may fail
        (Relation.fails, (79.0, 79.0, 50.0), LOW, "undecided"),
        (Relation.fails, (*LOW, *LOW, *LOW, 50.0), (51.5, 50.5, 53.0) * 3 + (52.0,), "contradicted"),
        (Relation.fails, (90.0,) * 3, (89.0, 88.9, 89.1), "undecided"),  # the other fails too
    ],
)
def test_outcomes(relation: Relation, first: tuple[float, ...], second: tuple[float, ...], outcome: str) -> None:
    assert finding(relation, first, second).outcome == outcome


def test_a_look_is_welchs_test_with_the_part_of_the_error_that_it_spends() -> None:
    errors = [np.array(side) for side in (LOW, HIGH)]
    variances = [side.var(ddof=1) / len(side) for side in errors]
    freedom = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    half = stats.t.ppf(1 - 0.005 / 2, freedom) * np.sqrt(sum(variances))
    difference = errors[0].mean() - errors[1].mean()
    found = finding(Relation.below, LOW, HIGH)
    (look,) = found.looks
    assert (look.low, look.high) == pytest.approx((difference - half, difference + half))
    assert found.difference == pytest.approx(difference)
    assert found.p == pytest.approx(look.p * 0.05 / 0.005)
    assert found.superiority == 0
    assert finding(Relation.below, (1.0, 3.0), (1.0, 2.0)).superiority == pytest.approx(2.5 / 4)


def test_looks_take_3_5_and_10_seeds_and_the_first_that_answers_stays() -> None:
    draw = np.random.default_rng(0)
    rows = [tuple(draw.normal(mean, 1, 12)) for mean in (50, 52)]
    found = finding(Relation.below, *rows)
    assert [look.seeds for look in found.looks] == [3, 5, 10]
    for look in found.looks:
        alone = stats.ttest_ind(rows[0][: look.seeds], rows[1][: look.seeds], equal_var=False)
        assert look.p == pytest.approx(alone.pvalue)
        assert look.spent == {3: 0.005, 5: 0.015, 10: 0.03}[look.seeds]
    later = (*LOW, 90.0, 95.0, 99.0, 99.0, 99.0, 99.0, 99.0)
    found = finding(Relation.below, later, (*HIGH, 61.0, 61.0, 61.0, 61.0, 61.0, 61.0, 61.0))
    assert found.looks[-1].low > 0
    assert found.outcome is Outcome.supported  # by the first look, which nobody may look past
    assert (found.difference, found.interval) == (found.looks[0].difference, (found.looks[0].low, found.looks[0].high))
    *_, tested, _, interval, _, _, _, after = claim_line(found)
    assert (tested, interval[0]) == ("3", MINUS)
    assert after.startswith("10 seeds alone: contradicted (+")


def test_the_figure_has_each_look_of_each_claim_with_its_bounds() -> None:
    many, near = tuple(np.random.default_rng(0).normal(50, 1, 5)), (51.5, 50.5, 52.0)
    found = [finding(Relation.below, many, (*HIGH, 61.0, 61.5)), finding(Relation.below, LOW, near, margin=5.0)]
    figure = looks_of_claims([*found, finding(Relation.below, LOW[:2], HIGH)])
    (axes,) = figure.axes
    looks = [look for each in found for look in each.looks]
    assert [text.get_text().strip() for text in axes.texts] == ["supported", "no difference"]
    spans = [lines.get_segments()[0][:, 0].tolist() for lines in axes.collections if len(lines.get_segments()) == 1]
    assert spans == [pytest.approx([look.low, look.high]) for look in looks]
    assert looks_of_claims([finding(Relation.below, LOW[:2], HIGH)]) is None


def test_a_look_takes_the_first_unseen_seeds_by_number_and_no_others() -> None:
    before = (True, False, True, True, True, True)
    side = Side("a", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), before, (0, 1, 2, 3, 5, 9))
    assert side.first(5) == [0, 2, 3, 4, 5]
    assert side.at(3) == [1.0, 3.0, 4.0]
    assert side.at(5) is None  # 5 and 9 ended, 4 did not
    assert finding(Relation.below, LOW, HIGH, known=False).outcome is Outcome.undecided
    assert finding(Relation.below, HIGH, LOW, known=False).outcome is Outcome.undecided
    assert finding(Relation.below, LOW, HIGH, known=False).seen_before == 6
    assert finding(Relation.below, LOW, HIGH, known=False).lacking == ([3, 4, 5], [3, 4, 5])


def test_no_difference_is_an_answer_where_the_sweep_states_a_margin() -> None:
    near = (51.5, 50.5, 52.0)
    assert finding(Relation.below, LOW, near, margin=5.0).outcome is Outcome.no_difference
    assert finding(Relation.below, LOW, near, margin=1.0).outcome is Outcome.undecided
    assert finding(Relation.below, LOW, HIGH, margin=50.0).outcome is Outcome.supported
    assert margins_of({"margins": {"full": 0.5, "deep": 2}}) == {"full": 0.5, "deep": 2}
    assert margins_of(None) == {}
    for wrong in (0.5, {"full": "0.5"}, {"full": 0}, {"full": float("nan")}, {"full": True}):
        with pytest.raises(UserError, match=r"sweep\.margins=.*must be percent points by scale"):
            margins_of({"margins": wrong})


def test_a_fail_is_not_shown_where_rows_that_learn_in_the_paper_fail_too() -> None:
    assert finding(Relation.fails, (90.0,) * 3, LOW, learns=False).outcome is Outcome.not_shown
    assert finding(Relation.fails, (90.0,) * 2, LOW, learns=False).outcome is Outcome.undecided


@pytest.mark.slow
def test_the_chance_of_the_next_look_is_how_often_it_shows_such_a_difference() -> None:
    draw = np.random.default_rng(0)
    for seeds, spent in LOOKS.items():
        pairs = [(draw.normal(0, 1, seeds), draw.normal(2, 1, seeds)) for _ in range(2000)]
        shown = np.mean([stats.ttest_ind(*pair).pvalue < spent for pair in pairs])
        assert power(2.0, 1.0, seeds, spent) == pytest.approx(shown, abs=0.03)
    assert power(100.0, 1.0, 10, 0.03) == 1
    assert power(1.0, 0.0, 3, 0.005) == 0  # rows without spread are not tested


def answers(draw: Callable[[int], tuple[np.ndarray, np.ndarray]], trials: int = 2000) -> tuple[float, float, float]:
    """The shares of sweeps that are answered on either side of 0 by looks, and seeds of a row that they take."""
    low = high = seeds = 0
    for _ in range(trials):
        first, second = draw(max(LOOKS))
        found = finding(Relation.above, tuple(first), tuple(second))
        decided = next((look for look in found.looks if look.low > 0 or look.high < 0), None)
        seeds += decided.seeds if decided else max(LOOKS)
        if decided:
            low, high = low + (decided.high < 0), high + (decided.low > 0)
    return low / trials, high / trials, seeds / trials


def rows_of_shape(shape: str, difference: float, random: np.random.Generator) -> Callable:
    """Draws of two rows whose true means are `difference` standard deviations of the second row apart."""

    def draw(seeds: int) -> tuple[np.ndarray, np.ndarray]:
        if shape == "heavy tails":
            first, second = (random.standard_t(3, seeds) / np.sqrt(3) for _ in range(2))
        else:
            first, second = (random.normal(0, 1, seeds) for _ in range(2))
        if shape == "spreads 3:1":
            first = 3 * first
        if shape == "fails now and then":  # one run in twenty of either row ends far away
            first, second = (np.where(random.random(seeds) < 0.05, 40.0, row) for row in (first, second))
        return first + difference, second

    return draw


@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["equal", "spreads 3:1", "heavy tails", "fails now and then"])
def test_looking_again_is_paid_for(shape: str) -> None:
    """False answers at a true difference of 0 are at most 5 %, within the simulation's error of 1.5 points."""
    random = np.random.default_rng(0)
    shown = {}
    for difference in (0.0, 0.5, 1.0, 2.0):
        low, high, seeds = shown[difference] = answers(rows_of_shape(shape, difference, random))
        print(f"{shape:<20} {difference:.1f}  wrong side {low:.3f}  right side {high:.3f}  seeds {seeds:.1f}")
    assert sum(shown[0.0][:2]) <= 0.05 + 0.015
    assert all(low <= 0.025 + 0.01 for low, _, _ in shown.values())
    if shape == "equal":
        assert shown[2.0][1] > 0.95
        assert shown[2.0][2] < 8  # a fixed plan takes 10


def test_an_answer_says_what_undecided_claims_wait_for() -> None:
    (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / "he2016_table2+scale=deep"]))
    title, *lines = claim_answers(table, 0)
    undecided = [line for sheet in claim_sheets(table) for line in sheet.lines if line[1] == Outcome.undecided]
    assert f"{len(undecided)} undecided" in title
    told, *others = [line for line in lines if "the next look lacks" in line]
    assert len([told, *others]) == min(len([line for line in undecided if line[-1] != NO_LOOK]), MOST_WAITING)
    assert any(line[-1] and line[-1].removesuffix("%)") in told for line in undecided)
    assert re.search(r"\(\S+, \S+ to \S+, 5 seeds each\); the next look lacks .*\d% chance of an answer\)", told)


def test_a_claim_that_no_further_look_decides_says_so_with_its_interval() -> None:
    near = (51.5, 53.5, 52.5)
    spent = finding(Relation.below, LOW * 4, LOW * 4)
    assert claim_line(spent)[1::10] == (Outcome.undecided, "no further look")
    assert claim_line(finding(Relation.fails, (90.0, 79.0), LOW[:2]))[-1] == "no further look"
    assert claim_line(finding(Relation.below, LOW, near))[-1].startswith("seeds 3 4 (")
    assert claim_line(finding(Relation.below, LOW, HIGH))[-1] == ""
    (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / "he2015_fig6+scale=deep"]))
    found = [line for sheet in claim_sheets(table) for line in sheet.lines if line[-1] == "no further look"]
    told = [line for line in claim_answers(table, 9) if "undecided, no further look: " in line]
    assert len(found) == len(told) == 1


def test_the_next_look_names_the_seeds_that_each_row_lacks() -> None:
    near = (51.5, 53.5, 52.5)
    found = finding(Relation.below, LOW, near)
    assert found.lacking == ([3, 4], [3, 4])
    assert found.chance == pytest.approx(power(-1.5, 1.0, 5, 0.015))
    assert finding(Relation.below, LOW, near[:2]).lacking == ([], [2])
    assert finding(Relation.below, LOW, HIGH).lacking is None
    assert finding(Relation.below, LOW * 4, near * 4).lacking is None  # no look is left
    assert finding(Relation.fails, (90.0, 79.0), LOW[:2]).lacking is None  # one learns, whatever others do
    assert finding(Relation.fails, (90.0, 89.0), (50.0, 90.0)).lacking is None
    assert finding(Relation.fails, (90.0, 89.0), LOW[:2]).lacking == ([2], [2])
    assert finding(Relation.fails, LOW[:1], HIGH[:1]).next_look == 3  # no run of it fails, so it may be contradicted
    assert finding(Relation.fails, (90.0, 79.0), LOW[:2], margin=3.0).next_look == 3
    assert finding(Relation.fails, (90.0, 79.0), LOW[:2], learns=False).next_look == 3


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


@pytest.mark.slow
def test_claims_of_a_sweep_file_are_tested_on_its_runs(trained: Trained, table: Table, sweeps: Path) -> None:
    below, training, fails, pair, sibling, nowhere = findings_of(table, 0, sweeps)
    errors = [np.array(trained.errors(row)) for row in ("identity", "none")]
    assert below.difference == pytest.approx(errors[0].mean() - errors[1].mean())
    assert below.seeds == sibling.seeds == (4, 3)
    assert sibling.difference == below.difference
    assert below.image_noise is not None
    assert below.image_noise > 0
    ((sheet, _),) = comparison_sheets(table)
    pair_line = next(line for line in sheet.lines if {line[0], line[8]} == {"identity", "none"})
    assert pair_line[4] == percent(below.image_noise)
    train = [[result["train_error"] for result in trained.results(row)] for row in ("identity", "none")]
    assert training.difference == pytest.approx(np.mean(train[0]) - np.mean(train[1]))
    assert training.image_noise is None
    assert 100 in fails.sides[0].errors  # a diverged run
    assert fails.fail_above == 60
    assert (pair.seeds, pair.outcome) == ((4, 2), Outcome.undecided)
    assert (nowhere.seeds, nowhere.difference) == ((4, 0), None)


def test_a_row_of_two_names_is_one_experiment_also_with_other_seeds(
    trained: Trained, sweeps: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(trained.path, tmp_path / trained.path.name)
    shutil.copytree(path / "none", tmp_path / "elsewhere" / "none")
    shutil.rmtree(tmp_path / "elsewhere" / "none" / "seed0")
    (table,) = tables_of(read_runs([path]))
    below, *_, sibling, _ = findings_of(table, 0, sweeps)
    assert (below.seeds, sibling.seeds) == ((4, 3), (4, 2))
    assert _experiment(below) == _experiment(sibling)
    assert len(below.sides[0].identities) == len(below.sides[1].identities) == 1
    assert below.sides[0].identities != below.sides[1].identities


DIFFERENT = "different versions of your own code trained them"


def test_seeds_by_different_code_are_marked_and_count_for_no_claim(
    trained: Trained, table: Table, sweeps: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(trained.path.parent, tmp_path / "root") / trained.path.name
    for seed, digit in ((0, "a"), (1, "a"), (2, "a"), (3, "b")):
        file = root / "identity" / f"seed{seed}" / "result.json"
        result = json.loads(file.read_text())
        file.write_text(json.dumps(result | {"code": {"0": {"hash": 16 * digit, "modules": {"own": 16 * digit}}}}))
    (mixed,) = tables_of(read_runs([root]))
    assert findings_of(mixed, 0, sweeps)[0].seeds == (0, 3)
    assert mixed.cells["identity", 0].remarks.startswith(MIXED_CODE)
    assert MIXED_CODE not in mixed.cells["none", 0].remarks
    (warning,) = [line for line in warnings_of(mixed.columns[0]) if DIFFERENT in line]
    versions = f"{16 * 'a'} seeds 0, 1, 2; {16 * 'b'} seeds 3 ("
    assert f"identity counts for no claim, because {DIFFERENT}: {versions}" in warning
    shutil.copytree(root / "identity", root / "same")
    (column,) = tables_of(read_runs([root]))[0].columns
    (warning,) = [line for line in warnings_of(column) if DIFFERENT in line]
    assert f"identity and same count for no claim, because {DIFFERENT}: {versions}" in warning


def test_a_report_says_that_rows_were_trained_by_different_versions_of_a_file(trained: Trained, tmp_path: Path) -> None:
    root = shutil.copytree(trained.path.parent, tmp_path / "root") / trained.path.name
    digits = {"identity": "a", "none": "b"}
    for file in [file for name in digits for file in root.glob(f"{name}/seed*/result.json")]:
        modules = {"own.units": 16 * digits[file.parent.parent.name], "own.parts": 16 * "c"}
        code = {"hash": 16 * digits[file.parent.parent.name], "modules": modules}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"code": {"0": code}}))
    (table,) = tables_of(read_runs([root]))
    (warning,) = [line for line in warnings_of(table.columns[0]) if "different versions" in line]
    groups = f"{16 * 'a'} identity; {16 * 'b'} none"
    assert f"rows were trained by different versions of own/units.py: {groups}; if rows use what has changed" in warning


def named(trained: Trained, path: Path) -> Path:
    """The trained table as `name=` puts it into a folder of another name."""
    shutil.copytree(trained.path, path)
    for file in path.glob("*/seed*/config.yaml"):
        file.write_text(file.read_text().replace("\nname: null\n", f"\nname: {path.name}\n"))
        origin = RunFolder(file.parent).origin
        origin.model_copy(update={"choices": {"sweep": trained.path.name}}).write(file.parent)
    return path


def test_a_table_in_a_folder_that_the_command_named_is_that_of_its_sweep(
    trained: Trained, table: Table, sweeps: Path, tmp_path: Path
) -> None:
    path = named(trained, tmp_path / "mine")
    shutil.copytree(trained.path / "none", tmp_path / "elsewhere" / "none")
    (own,) = tables_of(read_runs([path]))
    assert (own.name, own.published) == (table.name, table.published)
    assert [column.label for column in own.columns] == ["full"]
    assert own.columns[0].is_published_protocol
    assert own.title(0) == f"{table.name}, in mine"
    report([path], tmp_path / "report", {}, False)
    assert f"<title>{table.name}, in mine</title>" in (tmp_path / "report" / "report.html").read_text()
    lines = [[finding.text, finding.seeds, finding.difference] for finding in findings_of(own, 0, sweeps)]
    assert lines == [[each.text, each.seeds, each.difference] for each in findings_of(table, 0, sweeps)]
    keep([path], tmp_path / "records")  # a record too
    (kept,) = tables_of(read_runs([tmp_path / "records" / "mine"]))
    assert (kept.name, kept.published) == (table.name, table.published)
    path.rename(tmp_path / "mine+scale=mini")
    (mini,) = tables_of(read_runs([tmp_path / "mine+scale=mini"]))
    assert (mini.name, mini.columns[0].label) == (table.name, "scale=mini")
    assert mini.title(0) == f"{table.name}, scale=mini in mine"


def test_a_named_table_stands_beside_the_one_of_its_sweep(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.path / "identity", tmp_path / trained.path.name / "identity")
    path = named(trained, tmp_path / "mine")
    shutil.rmtree(path / "identity")
    (both,) = tables_of(read_runs([tmp_path]))
    assert [column.label.partition(" ")[0] for column in both.columns] == ["in", "in"]
    assert [both.title(index).count(" in ") for index in (0, 1)] == [1, 1]


@pytest.mark.attack
@pytest.mark.parametrize("sweep", ["../../etc/passwd", "", "a/b", "\x1b[1m"])
def test_a_sweep_that_is_no_name_is_not_looked_for(trained: Trained, tmp_path: Path, sweep: str) -> None:
    path = named(trained, tmp_path / "mine")
    for file in path.glob("*/seed*/origin.json"):
        Origin(choices={"sweep": sweep}).write(file.parent)
    (table,) = tables_of(read_runs([path]))
    assert table.name == "mine"


def test_the_sheet_and_the_page_show_each_claim(table: Table, sweeps: Path, tmp_path: Path) -> None:
    (sheet,) = claim_sheets(table, sweeps)
    assert len(sheet.lines) == 6
    assert sheet.lines[0][:4] == ("identity is lower than none", sheet.lines[0][1], "test", "Table 1")
    assert "7 seen before" in sheet.lines[0][4]
    page = claims_page(tmp_path, [table], sweeps)
    assert "6 claims, of which 5 have runs" in page
    assert page.count("| identity is lower than none |") == 1
    assert page.count("| identity is lower than elsewhere/none |") == 1
    command = f"python scripts/train.py sweep={table.name} 'seed=range(3)' dataset.root=DIR"
    assert f"Without runs of both rows (`{command}`): identity is lower than nowhere/none." in page
    assert (
        "Registered, without a test yet:\n\n* The gain grows (gain in nats; margin 0.5; rows identity; none); Fig. 4."
        in page
    )
    empty = claims_page(tmp_path, [], sweeps)
    assert f"Without runs of both rows (`{command}`): identity is lower than none;" in empty
    assert "identity is lower than nowhere/none" in empty


def test_a_claim_never_shows_the_p_of_another_one() -> None:
    tested = finding(Relation.below, LOW, HIGH)
    later = finding(Relation.fails, LOW, HIGH, known=False)  # written down when all runs had been seen
    mirrored = finding(Relation.above, HIGH, LOW)
    assert later.p is None
    assert [each.p_holm for each in _with_holm([tested, later])] == [tested.p, None]
    assert [each.p_holm for each in _with_holm([tested, mirrored])] == pytest.approx([tested.p, tested.p])


def test_where_no_paper_prints_fails_a_row_fails_near_guessing() -> None:
    (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / "ordering_warmup_transformer"]))
    without, *_ = findings_of(table, 0, CONF / "sweep")
    assert table.columns[0].is_published_protocol
    assert (without.fail_above, without.outcome) == (80.0, Outcome.supported)


def test_a_row_fails_by_the_plain_net_of_its_own_depth() -> None:
    records = [ROOT / "outputs" / "records" / f"he2015_{name}+scale=deep" for name in ("fig6", "table6")]
    column = Column("all", False, frame_of(read_runs(records)))
    for depth in (20, 56):
        errors = [run.error for run in column.rows[f"plain{depth}"]]
        assert _fails_here(column, f"resnet{depth}") == pytest.approx(fmean(errors) - 10)
    assert _fails_here(column, "plain56") == _fails_here(column, "none of them") == 80
    (digits,) = tables_of(read_runs([ROOT / "outputs" / "records" / "digits_shortcuts"]))
    assert _fails_here(digits.columns[0], "identity") == 20  # where the plain net learns, too


def test_guessing_is_that_of_the_classes_that_the_runs_have() -> None:
    column = Column("all", False, frame_of(read_runs([ROOT / "outputs" / "records" / "digits_shortcuts"])))
    for classes, bound in ((2, 40), (4, 65), (100, 89)):
        runs = [
            replace(run, result=run.result | {"input": {"classes": list(map(str, range(classes)))}})
            for run in column.runs
        ]
        assert _fails_here(Column("all", False, frame_of(runs)), "none of them") == bound


def test_a_claim_about_an_axis_is_about_each_pair_of_rows() -> None:
    claim = Claim("full", Relation.below, "original", Measured.test, "Table 2")
    rows = ("basic,original", "basic,full", "bottleneck,original", "bottleneck,full", "wide,full")
    assert pairs_of(claim, rows, 2) == [("basic,full", "basic,original"), ("bottleneck,full", "bottleneck,original")]
    whole = Claim("basic,full", Relation.below, "wide,full", Measured.test, "Table 2")
    assert pairs_of(whole, rows, 2) == [("basic,full", "wide,full")]
    assert pairs_of(whole, (), 2) == [("basic,full", "wide,full")]


def test_a_claim_is_about_the_rows_that_the_file_has_now(tmp_path: Path) -> None:
    """The names of rows that were deleted from the file are values of an axis now."""
    claims = 'claims: [{claim: "a is lower than b", place: p}]'
    (tmp_path / "t.yaml").write_text(f"sweep: {{rows: {{model: [a, b], model.depth: [8, 14]}}, {claims}}}")

    def run(row: str, *axes: str) -> Run:
        config = {"seed": 0, "scale": {"name": "full"}, "sweep": {"axes": list(axes)}, "model": {}}
        return Run(RunFolder(f"t/{row}/seed0"), config, {}, {"test_error": 5.0}, State("finished"))

    now = [run(row, "model", "model.depth") for row in ("a,8", "b,8", "a,14", "b,14")]
    (table,) = tables_of([run("a", "model"), run("b", "model"), *now], tmp_path)
    found = findings_of(table, 0, tmp_path)
    assert [tuple(side.row for side in each.sides) for each in found] == [("a,8", "b,8"), ("a,14", "b,14")]


def test_claims_are_tested_on_nets_of_the_papers_depth_alone() -> None:
    """Table 1 at scale=mini has 20 layers for 110; each net of Table 6 has the depth that its row names."""
    for name, is_tested in (("he2016_table1", False), ("he2016_table2", False), ("he2015_fig6", True)):
        (table,) = tables_of(read_runs([ROOT / "outputs" / "records" / f"{name}+scale=mini"]))
        assert bool(findings_of(table, 0, CONF / "sweep")) is is_tested
        (sheet,) = claim_sheets(table)
        assert sheet.note.startswith("Not tested: nets of another depth") is not is_tested
        assert (f"Not tested at scale=mini: {OTHER_DEPTH}." in claims_page(Path(), [table])) is not is_tested


def test_the_page_says_how_and_where_runs_were_trained() -> None:
    records = ROOT / "outputs" / "records"
    names = ("ordering_warmup_transformer", "he2015_fig6+scale=mini", "he2016_table1+scale=deep")
    names += ("he2016_table1+precision=bf16+scale=deep",)
    page = claims_page(Path(), [table for name in names for table in tables_of(read_runs([records / name]))])
    assert "| (own setting) | post_norm,0 fails against pre_norm,0 (above 80%) | supported |" in page
    assert "About rows that scale=mini leaves out: plain110 fails against plain20." in page
    assert "| (scale=deep precision=fp32) | identity is lower than none | supported |" in page


def test_where_a_paper_counts_its_best_epochs_claims_do_too(table: Table, sweeps: Path) -> None:
    rows = {row: PublishedRow(best_epochs=2) for row in table.rows}
    ruled = replace(table, published=replace(table.published, rows=rows))
    runs = table.columns[0].rows["identity"]
    means = [np.mean(sorted(epoch["test_error"] for epoch in run.history)[:2]) for run in runs]
    last, best = (findings_of(each, 0, sweeps)[0].sides[0].errors for each in (table, ruled))
    assert best == pytest.approx(means)
    assert best != last


def test_images_are_those_of_the_error(table: Table) -> None:
    run = table.columns[0].rows["identity"][0]
    assert run.test_wrong is not None
    other_view = replace(run, result=run.result | {"test_error": run.result["test_error"] + 0.5})
    diverged = replace(run, state=State("diverged"))
    assert (other_view.test_wrong, diverged.test_wrong) == (None, None)


DIGITS = ["sweep=digits_shortcuts", "model.depth=8", "model.widths=[4,4,4]", "epochs=1", "device=cpu", "threads=1"]
CLAIM = 'sweep.claims=[{claim: "identity is lower than none", place: Table 1}]'


@pytest.mark.slow
def test_a_grid_says_what_its_claims_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(tmp_path, *DIGITS, CLAIM, f"model/shortcut={name}") for name in ("identity", "none")]
    show_seeds(rows)
    assert "claims     1, each looks at its pairs of rows with 3, 5, 10 seeds" in capsys.readouterr().out
    show_seeds([row(tmp_path, "sweep=he2016_table1", "scale=mini")])
    assert "not tested: nets of another depth than the paper's" in capsys.readouterr().out
    show_seeds([row(tmp_path, "sweep=he2016_table1", "scale=deep")])
    assert "each looks at its pairs of rows with 3, 5, 10 seeds" in capsys.readouterr().out
    show_seeds([row(tmp_path, *DIGITS)])
    show_seeds([row(tmp_path, "dataset=digits")])
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="identity is better than none"):
        show_seeds([row(tmp_path, *DIGITS, CLAIM.replace("lower", "better"))])
    assert launch(rows) == 0
    capsys.readouterr()
    show_seeds(rows)
    assert "claims     1, each" in capsys.readouterr().out  # of this claim no sweep file knows
    tiny = [*DIGITS[1:3], "epochs=null", "iterations=2", "schedule=constant", *DIGITS[4:], "dataset=digits"]
    table = [row(tmp_path, "sweep=he2015_fig6", *tiny, f"model={name}") for name in ("plain20", "plain56")]
    assert launch(table) == 0
    capsys.readouterr()
    show_seeds(table)
    shown = capsys.readouterr().out
    assert "plain56 is higher than plain20" in shown
    assert "1, 1" in shown
    again = "overwrite=true"
    show_seeds([row(tmp_path, "sweep=he2015_fig6", *tiny, f"model={name}", again) for name in ("plain20", "plain56")])
    assert "each looks at its pairs of rows with 3, 5, 10 seeds" in capsys.readouterr().out
