"""Registered claims tested: each form of a test against numbers computed here, and how often it is wrong.

Also claims about numbers of an analysis, about a search's best trials, and about two runs epoch by epoch.
"""

import json
import math
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import signal, stats

from deepnets.commands.until import next_round
from deepnets.config.claim import Registered, registered_of, registered_on_file
from deepnets.config.quantity import Analysed
from deepnets.config.sweep import SWEEPS, sweep_of
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.results.claims import drawn_findings, findings_of
from deepnets.results.claims_page import claim_line, claims_page
from deepnets.results.finding import LOOKS, Outcome, Side
from deepnets.results.read import read_runs
from deepnets.results.records import keep
from deepnets.results.registered import RegisteredFinding, analysed_number, number_of, share_above
from deepnets.results.statistics import weighted_sum, welch
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import CHECKPOINTS, WEIGHTS
from deepnets.system.printing import NOTHING
from tests.command import ROOT, row
from tests.trained import Trained

ABOVE, BELOW, WITHIN = "lie above the margin", "lie below the margin", "lie within plus and minus the margin"
RECORDS = ROOT / "outputs" / "records"
CSV = """run,unit,time,error,norm
row/seed0,1,initial,9,1
row/seed0,1,trained,3,8
row/seed0,2,trained,5,4
row/seed0,3,trained,-4,1
row/seed1,1,trained,1000,1000
"""
MEASURED = {"analyze": "lesion --only single", "table": "single"}
CLAIMS = """sweep:
  axes: [model/shortcut]
  claims:
    - sentence: deleting a unit costs much
      rows: [identity]
      quantity: error; must lie above the margin
      margin: 2
      place: here
      test: {of: {analyze: lesion --only single, table: single, mean: error}, each: [identity]}
    - sentence: identity is worse in all epochs
      rows: [identity, none]
      quantity: share; must lie above the margin
      margin: 0.5
      place: here
      test: {of: training error, share_above: [identity, none]}
"""


def registered(test: dict, where: str = ABOVE, margin: float = 0, rows: str = "a b c d e f") -> Registered:
    node = {"sentence": "s", "rows": rows.split(), "quantity": f"it must\n {where}", "margin": margin, "place": "p"}
    (claim,) = registered_of({"claims": [node | {"test": test}]})
    return claim


def finding(claim: Registered, **rows: list[float]) -> RegisteredFinding:
    assert claim.test
    sides = [
        Side(row, tuple(rows[row]), (True,) * len(rows[row]), tuple(range(len(rows[row])))) for row in claim.test.rows
    ]
    return RegisteredFinding(claim, tuple(sides))


LOW, HIGH, TOP = [10.0, 10.2, 9.9], [12.0, 12.3, 12.1], [30.0, 30.2, 29.9]


def test_a_sum_of_two_rows_has_welchs_interval() -> None:
    for error in LOOKS.values():
        expected = welch(LOW, TOP, error)
        assert weighted_sum([1, -1], [LOW, TOP], error) == pytest.approx(expected[:3])


def test_a_slope_is_that_of_least_squares() -> None:
    claim = registered({"log_slope": {10: "a", 100: "b", 1000: "c"}})
    rows = {"a": LOW, "b": HIGH, "c": TOP}
    slope = stats.linregress([1, 2, 3], [np.mean(row) for row in rows.values()]).slope
    assert finding(claim, **rows).difference == pytest.approx(slope)
    gain = registered({"slope": {20: "b minus a", 50: "d minus c"}})
    rows |= {"d": [value + 5 for value in TOP]}
    expected = (5 - (np.mean(HIGH) - np.mean(LOW))) / 30
    assert finding(gain, **rows).difference == pytest.approx(expected)


@pytest.mark.parametrize(
    ("test", "where", "margin", "rows", "outcome"),
    [
        ({"each": ["a minus b"]}, WITHIN, 5, {"a": LOW, "b": HIGH}, "supported"),  # comparable
        ({"each": ["a minus b"]}, WITHIN, 1, {"a": LOW, "b": TOP}, "contradicted"),
        ({"each": ["a minus b"]}, WITHIN, 2, {"a": LOW, "b": HIGH}, "undecided"),
        ({"each": ["b minus a"]}, BELOW, 5, {"a": LOW, "b": HIGH}, "supported"),  # no worse than
        ({"each": ["b minus a"]}, BELOW, 1, {"a": LOW, "b": TOP}, "contradicted"),
        ({"each": ["a minus b", "a minus c"]}, BELOW, 0, {"a": LOW, "b": HIGH, "c": TOP}, "supported"),  # the best
        ({"each": ["b minus a", "b minus c"]}, BELOW, 0, {"a": LOW, "b": HIGH, "c": TOP}, "contradicted"),
        ({"each": ["a minus b", "a minus c"]}, BELOW, 0, {"a": LOW, "b": [9.9, 10.1, 10], "c": TOP}, "undecided"),
        ({"log_slope": {10: "a", 100: "b", 1000: "c"}}, ABOVE, 0, {"a": LOW, "b": HIGH, "c": TOP}, "supported"),
        ({"slope": {1: "c", 2: "b", 3: "a"}}, ABOVE, 0, {"a": LOW, "b": HIGH, "c": TOP}, "contradicted"),
        ({"slope": {1: "a", 2: "b"}}, WITHIN, 4, {"a": LOW, "b": HIGH}, "supported"),  # constant within
        ({"order": ["a", "b", "c", "d"]}, ABOVE, 0, {"a": LOW, "b": HIGH, "c": TOP, "d": [40, 41, 39]}, "supported"),
        ({"order": ["d", "c", "b", "a"]}, ABOVE, 0, {"a": LOW, "b": HIGH, "c": TOP, "d": [40, 41, 39]}, "contradicted"),
        ({"each": ["a minus 9"]}, ABOVE, 0, {"a": [10.0, 10.01, 9.99]}, "supported"),  # a printed number
        ({"mean": ["a minus b", "c minus b"]}, ABOVE, 0, {"a": LOW, "b": HIGH, "c": TOP}, "supported"),
        ({"each": ["a minus b"]}, ABOVE, 0, {"a": LOW, "b": [math.nan, 1, 2]}, "undecided"),  # a run diverged
    ],
)
def test_outcomes_of_each_form(test: dict, where: str, margin: float, rows: dict, outcome: str) -> None:
    assert finding(registered(test, where, margin), **rows).outcome == outcome


def test_the_line_shows_the_number_that_is_worst_and_what_it_takes_to_go_on() -> None:
    claim = registered({"each": ["a minus b", "a minus c"]}, BELOW)
    undecided = finding(claim, a=LOW, b=[10.1, 10.0, 9.8], c=TOP)
    assert undecided.difference == pytest.approx(np.mean(LOW) - np.mean([10.1, 10.0, 9.8]))
    assert undecided.lacking == ([3, 4], [3, 4], [3, 4])
    assert undecided.chance is not None
    assert undecided.chance < 0.2
    line = claim_line(undecided)
    assert (line[0], line[1], line[4]) == ("s", "undecided", "3, 3, 3")
    assert line[-1].startswith("seeds 3 4 (")
    more = replace(
        undecided, sides=(undecided.sides[0], *(replace(s, known=(True, True, False)) for s in undecided.sides[1:]))
    )
    assert "b: seed 3; c: seed 3" in claim_line(more)[-1]
    assert more.seen_before == 2


def test_the_line_shows_the_bounds_that_decide() -> None:
    claim = registered({"each": ["a minus b", "a minus c"]}, "lie below minus the margin", 1)
    noisy = [30.0, 0.0, 20.0, 5.0, 15.0]  # the bounds of "a minus c" reach further out than those of "a minus b"
    found = finding(claim, a=[20.0, 20.1, 19.9, 20.0, 20.1], b=[19.0, 19.2, 18.9, 19.1, 19.0], c=noisy)
    assert found.outcome is Outcome.contradicted
    assert found.interval is not None
    assert found.interval[0] > -1
    rows = {"a": [30.0, 31.0, 33.0], "b": [28.0, 27.0, 30.0], "c": [29.0, 30.0, 31.0]}
    waits = finding(registered({"each": ["a minus b", "a minus c"]}, BELOW, 0), **rows)
    assert waits.outcome is Outcome.undecided
    wide = [weighted_sum([1, -1], [rows["a"], rows[other]], LOOKS[3] / 2) for other in "bc"]
    assert waits.interval in [bounds[1:] for bounds in wide]


def test_a_number_that_is_not_finite_allows_no_further_look() -> None:
    diverged = finding(registered({"each": ["a minus b"]}), a=[math.nan, 2.0, 2.1], b=LOW)
    assert (diverged.outcome, diverged.next_look, diverged.lacking) == (Outcome.undecided, None, None)
    assert claim_line(diverged)[6:8] + claim_line(diverged)[-1:] == (NOTHING, NOTHING, "no further look")
    before = finding(registered({"each": ["a minus b"]}), a=[2.0, math.nan], b=LOW)
    assert before.next_look is None


def test_two_rows_without_spread_are_not_tested() -> None:
    dead = finding(registered({"each": ["a minus b"]}, BELOW), a=[90.0] * 3, b=[100.0] * 3)
    assert (dead.outcome, dead.interval, dead.difference) == (Outcome.undecided, None, -10)
    assert finding(registered({"each": ["a"]}, ABOVE, 0.9), a=[1.0] * 3).outcome is Outcome.supported


def test_what_of_a_run_is_measured(tmp_path: Path) -> None:
    launch([row(tmp_path, "model.depth=8", "model.widths=[4,4,4]", "epochs=4", "device=cpu")])
    (read,) = read_runs([tmp_path])
    history = read.history
    tests = {
        "test error": read.error,
        "training error": read.result["train_error"],
        "training loss": history[-1]["train_loss"],
    }
    for of, expected in tests.items():
        claim = registered({"of": of, "each": ["a"]})
        assert number_of(read, claim.test, None) == expected
    early = registered({"of": "training loss", "at": 0.25, "log": 10, "each": ["a"]})
    assert number_of(read, early.test, None) == pytest.approx(math.log10(history[0]["train_loss"]))
    later = registered({"at": 0.26, "each": ["a"]})
    assert number_of(read, later.test, None) == history[1]["test_error"]
    assert finding(early, a=LOW).number == "log10 training loss at 0.25; claimed: above 0"
    assert finding(later, a=LOW).number == "test at 0.26; claimed: above 0"


GATES = {"analyze": "gates", "table": "blocks", "by": "layer", "tau": ["layer", "bias"]}
BEST = {"of": "training loss", "best": 0.1, "log": 10}
FAILING = 0.7  # of the trials of one row
MEAN, SPREAD = -3.0, 2.3  # of the logarithm of a trial's loss


def tail(share: float) -> float:
    """The mean of the lowest share of a lognormal distribution."""
    return math.exp(MEAN + SPREAD**2 / 2) * stats.norm.cdf(stats.norm.ppf(share) - SPREAD) / share


SHIFT = math.log10(tail(0.1 / (1 - FAILING)) / tail(0.1))  # the best tenth of all is a third of those that do not fail


def numbers(form: str, row: str, mean: float, draw: np.random.Generator) -> list[float]:
    """Draw the numbers of a row's ten runs, or of its hundred trials."""
    if form == "measured":
        return [stats.kendalltau(range(50), draw.normal(size=50)).statistic for _ in range(10)]
    if form == "share":  # the differences of 108 epochs, each like its neighbours: an autocorrelation of 0.8
        steps = draw.normal(0, 0.6, (10, 300))
        above = signal.lfilter([1], [1, -0.8], steps)[:, -108:] > stats.norm.isf(mean)
        return above.mean(1).tolist()
    if "trials" in form:
        losses = np.exp(draw.normal(MEAN, SPREAD, 100))
        return np.where((draw.random(100) < FAILING) & (form == "other_trials") & (row == "a"), 2.3, losses).tolist()
    return draw.normal(mean, 1, 10).tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["within", "best", "slope", "order", "measured", "share", "trials", "other_trials"])
def test_how_often_a_registered_claim_is_answered_wrongly(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At the edge of the claimed region, and where rows do not differ; spreads of 1, looks as they are paid for.

    measured: a number of an analysis, as an order over 50 layers by Kendall's tau. share: of 108 epochs, 0.9 in the
    mean. trials: losses of a search, normal in their logarithms; other_trials: of one row most of them fail.
    """
    names, trials, draw = "abcd", 1000, np.random.default_rng(1)
    margin = {"within": 1.0, "share": 0.9}.get(form, 0.0)
    test, where, means = {
        "within": ({"each": ["a minus b"]}, WITHIN, [1.0, 0.0, 0, 0]),
        "best": ({"each": ["a minus b", "a minus c", "a minus d"]}, BELOW, [0.0, 0.0, 9, 9]),
        "slope": ({"slope": {1: "a minus b", 2: "c minus d"}}, ABOVE, [0.0] * 4),
        "order": ({"order": [*names]}, ABOVE, [0.0] * 4),
        "measured": ({"of": GATES, "each": ["a"]}, ABOVE, [0.0] * 4),
        "share": ({"of": "training error", "share_above": ["a", "b"]}, ABOVE, [0.9] * 4),
        "trials": (BEST | {"each": ["a minus b"]}, ABOVE, [0.0] * 4),
        "other_trials": (BEST | {"each": [f"a minus b minus {SHIFT:.4f}"]}, ABOVE, [0.0] * 4),
    }[form]
    claim = registered(test, where, margin)
    assert claim.test
    outcomes = []
    for _ in range(trials):
        rows = {name: numbers(form, name, mean, draw) for name, mean in zip(names, means, strict=True)}
        outcomes.append(finding(claim, **{row: rows[row] for row in claim.test.rows}).outcome)
    supported, contradicted = (outcomes.count(each) / trials for each in (Outcome.supported, Outcome.contradicted))
    with capsys.disabled():
        print(f"\n{form}: supported {100 * supported:.1f}%, contradicted {100 * contradicted:.1f}%")
    error = 2 * math.sqrt(0.05 * 0.95 / trials)
    side = 0.055 if form == "share" else 0.025  # shares near 1 are skewed: docs/claims.md says so
    assert supported <= side + error
    assert supported + contradicted <= max(0.05, side) + error


def of(**more: object) -> Analysed:
    claim = registered({"of": MEASURED | more, "each": ["a"]})
    assert claim.test
    assert isinstance(claim.test.of, Analysed)
    return claim.test.of


def write(folder: Path, text: str = CSV, **noted: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lesion_single.csv").write_text(text)
    (folder / "lesion.json").write_text(json.dumps({"options": {"only": "single"}} | noted))
    return folder


@pytest.mark.parametrize(
    ("more", "number"),
    [
        ({"mean": "error"}, 13 / 4),
        ({"median": "error", "where": {"time": "trained"}}, 3),
        ({"min": "error", "where": {"unit": [1, 2]}}, 3),
        ({"max": "abs error", "where": {"unit": [3, 9]}}, 4),
        ({"mean": "error below 5"}, 2 / 4),
        ({"mean": "log2 norm", "where": {"time": "trained", "unit": 1}, "minus": {"unit": 2}}, 1),
        ({"max": "error", "where": {"unit": 2}, "minus": {"time": "initial", "unit": 1}}, -4),
        ({"slope": ["unit", "log2 norm"], "where": {"time": "trained"}}, -1.5),
        ({"tau": ["unit", "norm"], "where": {"time": "trained"}}, -1),
        ({"pearson": ["unit", "error"], "where": {"time": "trained"}}, np.corrcoef([1, 2, 3], [3, 5, -4])[0, 1]),
        ({"slope": ["unit", "error"], "by": "unit"}, stats.linregress([1, 2, 3], [6, 5, -4]).slope),
        ({"mean": "log10 error"}, math.nan),
    ],
)
def test_each_reduction_is_of_the_lines_of_the_folders_own_run(more: dict, number: float, tmp_path: Path) -> None:
    assert analysed_number(write(tmp_path), of(**more)) == pytest.approx(number, nan_ok=True)


def test_an_analysis_counts_if_it_is_there_and_was_done_as_the_claim_says(tmp_path: Path) -> None:
    assert analysed_number(tmp_path, of(mean="error")) is None
    assert analysed_number(write(tmp_path), of(mean="error")) is not None
    assert analysed_number(write(tmp_path, options={"only": "random"}), of(mean="error")) is None


@pytest.mark.parametrize(
    ("noted", "counts"),
    [
        ({"changed": ["only"]}, True),
        ({"changed": ["only", "iteration"]}, False),
        ({"changed": ["only", "images"]}, False),
        ({"changed": ["only", "allow_previous"]}, False),
        ({"options": {"only": "single", "iteration": "1,4"}}, False),  # earlier versions noted no more
        ({"options": {"only": "single", "iteration": None}}, True),
    ],
)
def test_an_analysis_with_options_that_the_claim_does_not_name_does_not_count(
    noted: dict, counts: bool, tmp_path: Path
) -> None:
    assert (analysed_number(write(tmp_path, **noted), of(mean="error")) is not None) == counts


@pytest.mark.parametrize(
    ("more", "text", "said"),
    [
        ({"mean": "eror"}, CSV, r"lesion_single\.csv: has no column eror; the nearest: error"),
        ({"mean": "error", "where": {"unti": 1}}, CSV, "has no column unti; the nearest: unit"),
        ({"mean": "error", "by": "block"}, CSV, "has no column block"),
        ({"mean": "error", "where": {"unit": 7}}, CSV, "no line has unit 7"),
        ({"mean": "error"}, "", "cannot be read: "),
    ],
)
def test_a_test_that_does_not_fit_its_table_is_told_in_a_line(more: dict, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as error:
        analysed_number(write(tmp_path, text), of(**more))
    assert "\n" not in str(error.value)


@pytest.fixture
def claimed(trained: Trained, tmp_path: Path) -> tuple[Path, Table, Path]:
    """The trained table, whose runs note the claims of the sweep file in the folder that comes last."""
    sweeps = tmp_path / "sweeps"
    sweeps.mkdir()
    file = sweeps / f"{trained.path.name}.yaml"
    file.write_text(CLAIMS)
    names = [f"{file.stem}/{claim.hash}" for claim in registered_of(sweep_of(file))]
    path = tmp_path / "outputs" / trained.path.name
    shutil.copytree(trained.path, path)
    for result in path.glob("*/seed*/result.json"):
        result.write_text(json.dumps(json.loads(result.read_text()) | {"claims": names}))
    (table,) = tables_of(read_runs([path]))
    return path, table, sweeps


def test_a_run_waits_for_its_analysis_and_then_counts(claimed: tuple[Path, Table, Path], tmp_path: Path) -> None:
    path, table, sweeps = claimed
    waits, _ = findings_of(table, 0, sweeps)
    assert isinstance(waits, RegisteredFinding)
    assert (waits.seeds, waits.difference, waits.lacking) == ((0,), None, ([],))
    command = f"python scripts/analyze.py lesion {path}/identity/seed0 --only single"
    assert waits.analyses[0] == command
    assert claim_line(waits)[-1] == f"the analysis `{command}`, and 2 more"
    page = claims_page(tmp_path / "records", [table], sweeps)
    assert f"next: the analysis `{command}`, and 2 more." in page
    file = sweeps / f"{path.name}.yaml"
    rounds = next_round(["identity"], [run for run in table.runs(0) if run.row == "identity"], file)
    assert not rounds.seeds
    assert rounds.why.endswith(f"an analysis is lacking: {command} and 2 more")

    for seed in range(3):
        write(path / "identity" / f"seed{seed}" / "analysis", CSV.replace(",9,", f",{9 + seed},"))
    counts, _ = findings_of(table, 0, sweeps)
    assert counts.seeds == (3,)
    assert counts.difference == pytest.approx(13 / 4 + 1 / 4)
    assert (counts.looks[0].seeds, counts.next_look, counts.lacking) == (3, 5, ([4],))  # seed 3 waits
    assert counts.analyses == [f"python scripts/analyze.py lesion {path}/identity/seed3 --only single"]

    for name in (*CHECKPOINTS, WEIGHTS):
        (path / "identity" / "seed3" / name).unlink(missing_ok=True)
    counts, _ = findings_of(table, 0, sweeps)
    assert (counts.analyses, counts.lacking) == ([], ([4, 5],))  # nobody can analyse seed 3 any more


def test_the_analysis_of_a_claim_is_kept_with_the_record(
    claimed: tuple[Path, Table, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, sweeps = claimed
    monkeypatch.setattr("deepnets.results.records.SWEEPS", sweeps)
    analysis = write(path / "identity" / "seed0" / "analysis", options={"only": "single", "output": "/home/me"})
    (analysis / "lesion_random.csv").write_text("of no claim")
    keep([path], tmp_path / "records")
    kept = tmp_path / "records" / path.name / "identity" / "seed0" / "analysis"
    assert {file.name for file in kept.iterdir()} == {"lesion.json", "lesion_single.csv"}
    assert "/home/me" not in (kept / "lesion.json").read_text()
    assert analysed_number(kept, of(mean="error")) == analysed_number(analysis, of(mean="error"))


def test_a_share_of_epochs_compares_runs_of_one_seed(claimed: tuple[Path, Table, Path]) -> None:
    _, table, sweeps = claimed
    share = findings_of(table, 0, sweeps)[1]
    runs = {(run.row, run.seed): run.history for run in table.runs(0)}
    expected = [
        np.mean([a["train_error"] > b["train_error"] for a, b in zip(*histories, strict=True)])
        for seed in range(3)
        for histories in [(runs["identity", seed], runs["none", seed])]
    ]
    assert share.sides[0].errors == pytest.approx(expected)
    assert share.difference == pytest.approx(np.mean(expected))
    assert share.seeds == (3, 3)


def test_after_its_divergence_a_run_has_the_worst_number(tmp_path: Path) -> None:
    learns = [{"iteration": 10.0 * epoch, "train_error": 50.0} for epoch in range(1, 11)]
    fails = [{"iteration": 10.0 * epoch, "train_error": 40.0} for epoch in range(1, 4)]
    runs: dict[str, Any] = {}
    for name, history, error in (("learns", learns, 50.0), ("fails", fails, math.inf), ("at once", [], math.inf)):
        runs[name] = SimpleNamespace(
            history=history, error=error, has_ended=True, typed_config=row(tmp_path, "epochs=10").config
        )
    test = registered({"of": "training error", "share_above": ["a", "b"]}).test
    assert test is not None
    assert share_above(runs["fails"], runs["learns"], test) == 0.7
    assert share_above(runs["learns"], runs["fails"], test) == 0.3
    assert share_above(runs["at once"], runs["learns"], test) == 1
    assert share_above(runs["learns"], runs["at once"], test) == 0
    assert share_above(runs["at once"], runs["at once"], test) is None


def test_a_draw_counts_if_it_noted_the_claim_and_its_seed(tmp_path: Path) -> None:
    row = "analysis/lesion/net"
    claim = registered({"of": MEASURED | {"mean": "error"}, "each": [row]}, rows=row)
    (nothing,) = drawn_findings("mine", [claim], tmp_path)
    draws = tmp_path / "analysis" / "lesion"
    assert nothing.analyses[0] == f"python scripts/analyze.py lesion --only single --seed 0 --output {draws}/seed0"
    assert len(nothing.analyses) == 3
    for seed in range(5):
        noted = [] if seed == 0 else [f"mine/{claim.hash}"]
        write(draws / f"seed{seed}", options={"only": "single", "seed": seed if seed < 4 else 3}, claims=noted)
    (found,) = drawn_findings("mine", [claim], tmp_path)
    assert (found.seeds, found.seen_before, found.looks[0].seeds) == ((4,), 1, 3)
    assert found.outcome is Outcome.supported  # all draws are equal here
    assert found.sides[0].at(3) == [13 / 4] * 3


def test_the_best_tenth_of_trials_is_looked_at_with_ten_times_the_seeds(tmp_path: Path) -> None:
    for kind, depth, trial in product(("highway", "plain"), (10, 100), range(10)):  # these the claims do not count
        row = Path(f"srivastava2015_fig1_{kind}+scale=mini", f"{kind}_fc{depth},{trial}")
        shutil.copytree(RECORDS / row, tmp_path / row)
    (table,) = tables_of(read_runs([tmp_path / "srivastava2015_fig1_highway+scale=mini"]))
    highway, both = findings_of(table, 0, SWEEPS)
    nets = table.column(0)
    best = {row: math.log10(nets[row].best_tenth) for row in ("highway_fc10", "highway_fc100")}  # type: ignore[attr-defined]
    assert highway.difference == pytest.approx(best["highway_fc100"] - best["highway_fc10"])
    assert (highway.seeds, highway.next_look) == ((10, 10), 30)
    (plain,) = tables_of(read_runs([tmp_path / "srivastava2015_fig1_plain+scale=mini"]))
    (elsewhere,) = findings_of(plain, 0, SWEEPS)  # a claim of the other file about this table's rows alone
    assert elsewhere.text == "the training loss of plain nets rises from 10 to 100 layers"
    assert both.difference == pytest.approx(
        math.log10(plain.column(0)["plain_fc100"].best_tenth) - best["highway_fc100"]  # type: ignore[attr-defined]
    )
    claim = registered({"of": "training loss", "best": 0.1, "log": 10, "each": ["a minus b"]}, ABOVE, 2.0)
    draw = np.random.default_rng(0)
    rows = {"a": draw.lognormal(3, 1, 100), "b": draw.lognormal(-6, 1, 100)}
    apart = finding(claim, **{name: row.tolist() for name, row in rows.items()})
    assert [look.seeds for look in apart.looks] == [30, 50, 100]
    means = [np.log10(np.sort(row)[:10].mean()) for row in rows.values()]
    assert apart.looks[2].difference == pytest.approx(means[0] - means[1])
    assert apart.outcome is Outcome.supported


def test_each_registered_claim_has_a_test_but_for_the_one_that_every_run_answers_alike() -> None:
    tested = {claim.sentence for _, claim in registered_on_file(SWEEPS)}
    claims = {claim.sentence for file in SWEEPS.glob("*.yaml") for claim in registered_of(sweep_of(file))}
    assert claims - tested == {
        "the error grows with the number of effective paths removed, not with the number of units"
    }
