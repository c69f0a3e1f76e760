"""Claims about numbers of an analysis, about a search's best trials, and about two runs epoch by epoch."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from deepnets.config.claim import registered_of, registered_on_file
from deepnets.config.claim_test import Analysed
from deepnets.config.sweep import SWEEPS, sweep_of
from deepnets.errors import UserError
from deepnets.results.analysed import analysed_number
from deepnets.results.claims import drawn_findings, findings_of
from deepnets.results.claims_page import claim_line, claims_page
from deepnets.results.decide import next_round
from deepnets.results.finding import Outcome
from deepnets.results.read import read_runs
from deepnets.results.records import keep
from deepnets.results.registered import RegisteredFinding
from deepnets.results.table import Table, tables_of
from deepnets.runs.folder import CHECKPOINTS, WEIGHTS
from tests.command import ROOT
from tests.results.test_registered import ABOVE, finding, registered
from tests.trained import Trained

RECORDS = ROOT / "outputs" / "records"
CSV = """run,unit,time,error,norm
row/seed0,1,initial,9,1
row/seed0,1,trained,3,8
row/seed0,2,trained,5,4
row/seed0,3,trained,-4,1
row/seed1,1,trained,1000,1000
"""
MEASURED = {"analyze": "lesion --only single", "table": "single"}


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
    assert claim_line(waits)[-1] == f"without its analysis (`{command}`, and 2 more)"
    page = claims_page(tmp_path / "records", [table], sweeps)
    assert f"next: without its analysis (`{command}`, and 2 more)." in page
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


def test_the_best_tenth_of_trials_is_looked_at_with_ten_times_the_seeds() -> None:
    (table,) = tables_of(read_runs([RECORDS / "srivastava2015_fig1_highway+scale=mini"]))
    highway, both = findings_of(table, 0, SWEEPS)
    nets = table.column(0)
    best = {row: math.log10(nets[row].best_tenth) for row in ("highway_fc10", "highway_fc100")}  # type: ignore[attr-defined]
    assert highway.difference == pytest.approx(best["highway_fc100"] - best["highway_fc10"])
    assert (highway.seeds, highway.next_look) == ((10, 10), 30)
    (plain,) = tables_of(read_runs([RECORDS / "srivastava2015_fig1_plain+scale=mini"]))
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
