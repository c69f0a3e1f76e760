"""`until=decided`: the next seeds follow from the results alone, whenever and wherever they were trained.

Also as a user types it: rounds of real runs, hours, and words that cannot be meant.
"""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepnets.commands.until import _Grid, next_round, within
from deepnets.config.claim import decidable_of
from deepnets.config.sweep import sweep_of
from deepnets.results.finding import Outcome
from deepnets.results.read import Run
from deepnets.runs.contents import FINISHED
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import State
from tests.command import call, row, train

ROWS = ("identity", "none", "projection", "dropout", "scaled_0.5_1")
SWEEP = """sweep:
  axes: [model/shortcut]
  claims:
    - {claim: "identity is lower than none", place: here}
    - {claim: "identity is lower than projection", place: here}
    - {claim: "identity is lower than dropout", place: here}
    - {claim: "identity is lower than elsewhere/none", place: there}
    - {claim: "identity is lower than unknown", place: here}
"""
# Far apart, near, and equal: decided at the first look, later, and never.
MEANS = {"identity": 50.0, "none": 80.0, "projection": 51.8, "dropout": 50.0}

Trained = set[tuple[str, int]]
SHORT_SWEEP = """# @package _global_
sweep:
  rows:
    model/shortcut: [identity, none, projection, scaled_0.5_1]
  seeds: 2
  margins: {full: 90}
  claims:
    - {claim: "identity is lower than none", place: here}
    - {claim: "identity is lower than scaled_0.5_1", place: here}
epochs: 1
batch_size: 256
precision: fp32
model: {widths: [2, 2, 2]}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sweeps") / "small.yaml"
    file.write_text(SWEEP)
    return file


@cache
def config_of(name: str) -> dict[str, Any]:
    config = asdict(row(Path("/nowhere"), "sweep=digits_shortcuts", f"model/shortcut={name}").config)
    return config | {"precision": "fp32", "sweep": {"axes": ["model/shortcut"], "deep": False}}


def error(name: str, seed: int) -> float:
    return MEANS[name] + float(np.random.default_rng([len(name), seed]).normal())


def runs_of(trained: Iterable[tuple[str, int]], file: Path) -> list[Run]:
    hashes = [f"small/{claim.hash}" for claim in decidable_of(sweep_of(file))]
    return [
        Run(
            RunFolder(f"/nowhere/small/{name}/seed{seed}"),
            config_of(name) | {"seed": seed},
            {},
            {"status": FINISHED, "test_error": error(name, seed), "claims": hashes, "precision": "float32"},
            State(FINISHED),
        )
        for name, seed in sorted(trained)
    ]


def decide(file: Path, stop: Callable[[Sequence[tuple[str, int]]], int] = len) -> tuple[Trained, list[str]]:
    """All that is trained to the end, if of each round only the first `stop(round)` runs end before all are killed."""
    trained: Trained = set()
    reasons: list[str] = []
    while True:
        found = next_round(ROWS, runs_of(trained, file), file)
        asked = [(name, seed) for name, seeds in found.seeds.items() for seed in seeds]
        reasons += [found.why] if found.why not in reasons else []
        if not asked:
            return trained, reasons
        assert not {*asked} & trained
        trained |= {*asked[: stop(asked)]}


def test_rounds_go_from_a_first_seed_over_the_looks_to_the_end(file: Path) -> None:
    trained, reasons = decide(file)
    seeds = {name: sorted(seed for other, seed in trained if other == name) for name in ROWS}
    assert seeds["none"] == [0, 1, 2]  # decided at the first look
    assert seeds["dropout"] == seeds["identity"] == [*range(10)]  # equal rows are never decided
    assert seeds["scaled_0.5_1"] == []  # no claim is about it
    assert reasons[0] == "a first seed of 4 rows"
    assert reasons[1] == "look 1 of 3, at 3 seeds, for 3 undecided claims"
    assert reasons[-1] == "claims tested: 3; 1 undecided, which no further look decides"


def test_hours_that_are_not_enough_for_a_look_complete_the_cheapest_claims(file: Path) -> None:
    first = [("identity", 0), ("none", 0), ("projection", 0), ("dropout", 0)]
    look = next_round(ROWS, runs_of(first, file), file)
    asked = sorted([(name, seed) for name, seeds in look.seeds.items() for seed in seeds], key=lambda run: run[1])
    assert len(asked) == 8
    hours = {"identity": 1.0, "none": 2.0, "projection": 1.5, "dropout": 4.0}

    def cost(runs: Iterable[tuple[str, int]]) -> float:
        return sum(hours[name] for name, _ in runs)

    def rows_within(left: float) -> set[str]:
        chosen = within(left, asked, look.looks, cost)
        assert cost(chosen) <= left
        assert chosen == [run for run in asked if run in chosen]
        assert sorted(chosen) == sorted((name, seed) for name in {name for name, _ in chosen} for seed in (1, 2))
        return {name for name, _ in chosen}

    assert rows_within(4.9) == set()  # the first look at projection takes 5 hours
    assert rows_within(5) == {"identity", "projection"}
    assert rows_within(9) == {"identity", "projection", "none"}
    assert rows_within(17) == {"identity", "projection", "none", "dropout"}
    begun = [("dropout", 1), ("dropout", 2), ("identity", 1)]
    assert {name for name, _ in within(10, asked, look.looks, cost, begun)} == {"identity", "dropout"}
    assert within(-1, asked, look.looks, cost) == []
    assert within(3, first, [], cost) == [("identity", 0), ("none", 0)]  # single runs of the first round


def test_a_command_says_for_which_claims_its_hours_are_enough(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("identity", "none", "projection", "dropout")
    runs = runs_of([(name, 0) for name in names], file)
    for run in runs:
        run.result.update(seconds=3600.0, processes={"0": 1})
    planned = next_round(names, runs, file)

    def chosen(hours: float) -> list[tuple[str, int]]:
        words = ("sweep=digits_shortcuts", "until=decided", f"hours={hours}", "precision=fp32")
        rows = {name: row(Path("/nowhere"), *words, f"model/shortcut={name}") for name in names}
        grid = _Grid(rows, Path("/nowhere/small"), file)
        return [(row.choices["model/shortcut"], row.config.seed) for row in grid.affordable(planned, runs)]

    assert len(chosen(12.9)) == 8
    assert (
        "look 1 of 3, at 3 seeds, for 3 undecided claims: 8 runs (4 hours used of 12.9, by all runs of these rows)"
        in capsys.readouterr().out
    )
    assert len(chosen(8.2)) == 4
    assert "8 runs, the hours are enough for 4, which are all for 1 of these claims" in capsys.readouterr().out
    assert chosen(5) == []
    told = capsys.readouterr().out
    assert "the hours are not enough for look 1 of 3" in told
    assert re.search(r"the cheapest of these looks takes about (4|3\.\d+) hours \(4 hours used of 5, by all", told)
    assert "undecided: identity is lower than none; the next look lacks seeds 1 2" in told


def test_claims_about_rows_that_are_not_here_are_named(file: Path) -> None:
    found = next_round(ROWS, [], file)
    assert found.left_out == ["identity is lower than elsewhere/none", "identity is lower than unknown"]
    few = next_round(("identity", "none"), [], file)
    assert [*few.seeds] == ["identity", "none"]
    assert len(few.left_out) == 4


@pytest.mark.slow
def test_a_hundred_random_kills_change_no_decision(file: Path) -> None:
    undisturbed, reasons = decide(file)
    draw = random.Random(0)
    kills = 0

    def stop(asked: Sequence[tuple[str, int]]) -> int:
        nonlocal kills
        ended = draw.randint(0, len(asked))
        kills += ended < len(asked)
        return ended

    while kills < 100:
        trained, told = decide(file, stop)
        assert trained == undisturbed
        assert told[-1] == reasons[-1]


def test_a_registered_claim_asks_for_the_rows_of_its_test(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("""sweep:
  axes: [model/shortcut]
  claims:
    - sentence: identity is the best
      rows: [identity, none, projection]
      quantity: the largest difference; must lie below minus the margin
      margin: 0
      place: here
      test: {each: [identity minus none, identity minus projection]}
""")
    found = next_round(ROWS, [], file)
    assert found.seeds == {name: [0] for name in ("identity", "none", "projection")}
    trained, reasons = decide(file)
    assert {name for name, _ in trained} == {"identity", "none", "projection"}
    assert reasons[-1] == "claims tested: 1; all are decided"
    assert next_round(("identity", "none"), [], file).left_out == ["identity is the best"]


def test_what_was_seen_before_the_claim_is_trained_by_other_seeds(file: Path) -> None:
    seen = runs_of([("identity", 0), ("none", 0), ("projection", 0), ("dropout", 0)], file)
    for run in seen:
        run.result["claims"] = []
    found = next_round(ROWS, seen, file)
    assert found.seeds == {name: [1, 2, 3] for name in ("identity", "none", "projection", "dropout")}
    assert {finding.outcome for finding in found.findings} == {Outcome.undecided}


@pytest.fixture
def lab(tmp_path: Path) -> list[str]:
    silent = re.sub(r"  claims:\n(    - .*\n)+", "", SHORT_SWEEP)
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    for name, text in (("small", SHORT_SWEEP), ("silent", silent)):
        (tmp_path / "conf" / "sweep" / f"{name}.yaml").write_text(text)
    rows = "model/shortcut=identity,none,projection"
    return ["--config-dir", str(tmp_path / "conf"), "sweep=small", rows, f"output_root={tmp_path}/outputs"]


@pytest.mark.slow
def test_it_trains_until_the_claims_are_decided_and_no_further(lab: list[str], tmp_path: Path) -> None:
    planned = train(*lab, "until=decided", "plan=true", cwd=tmp_path)
    assert "a first seed of 2 rows: 2 runs (0 hours used)" in planned.stdout, planned.stderr
    assert not (tmp_path / "outputs").exists()
    done = train(*lab, "until=decided", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not decided here, as its rows are not among these: identity is lower than scaled") == 1
    rounds = re.findall(r"^(a first seed .*|look .*): (\d+) runs", done.stdout, re.MULTILINE)
    assert rounds == [("a first seed of 2 rows", "2"), ("look 1 of 3, at 3 seeds, for 1 undecided claim", "4")]
    assert "claims tested: 1; all are decided" in done.stdout
    runs = sorted(str(file.parent.relative_to(tmp_path)) for file in tmp_path.glob("outputs/small/*/*/result.json"))
    assert runs == [f"outputs/small/{row}/seed{seed}" for row in ("identity", "none") for seed in range(3)]
    again = train(*lab, "until=decided", cwd=tmp_path)
    assert "claims tested: 1; all are decided" in again.stdout
    assert "epoch" not in again.stdout.replace("epochs", "")


@pytest.mark.slow
def test_a_command_says_which_of_its_seeds_count_for_no_claim(lab: list[str], tmp_path: Path) -> None:
    before = ["sweep=silent" if word == "sweep=small" else word for word in lab]
    file = (tmp_path / "conf" / "sweep" / "small.yaml").rename(tmp_path / "small.yaml")
    assert train(*before, "seed=0,1", cwd=tmp_path).returncode == 0
    file.rename(tmp_path / "conf" / "sweep" / "small.yaml")
    told = (
        r"runs first set up before claims about their rows were written down, which count only for older claims: 2, of "
        r"identity, none; claims: identity is lower than none, identity is lower than scaled_0.5_1; first set up in "
        r"\S*outputs/silent/identity/seed{0}, \S*silent/none/seed{0}: reuse=true copies such seeds where it can"
    )
    assert "first set up" not in train(*lab, "seed=2", cwd=tmp_path).stdout
    for seed, word in ((0, "plan=true"), (0, "reuse=false"), (1, "reuse=true"), (1, "overwrite=true")):
        assert re.search(told.format(seed), train(*lab, f"seed={seed}", word, cwd=tmp_path).stdout)
    reported = call("report.py", str(tmp_path / "outputs" / "small")).stdout
    assert "undecided: identity is lower than none (4 of 6 seen before); the next look lacks seeds 3 4 (" in reported

    # A claim about a row that has ended and about a new one.
    file = tmp_path / "conf" / "sweep" / "small.yaml"
    file.write_text(
        file.read_text().replace("claims:", "claims:\n    - {claim: projection is lower than scaled_0.5_1}")
    )
    told = train(*lab, "seed=2", "model/shortcut=none,projection,scaled_0.5_1", cwd=tmp_path).stdout
    late = "which count only for older claims: 1, of projection; claims: projection is lower than scaled_0.5_1"
    assert late in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["until=decided", "hours=1e-9"], r"hours=1e-09: too few for one run; \w+ takes about .* hours"),
        (["hours=1"], "hours: limits only until=decided; add until=decided"),
        (["until=decided", "hours=much"], "hours"),
        (["sweep=silent", "until=decided"], "needs a sweep with claims"),
    ],
)
def test_words_that_cannot_be_meant_are_a_line(lab: list[str], tmp_path: Path, words: list[str], said: str) -> None:
    given = [word for word in lab if not (word.startswith("sweep=") and words[0].startswith("sweep="))]
    done = train(*given, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    lines = done.stderr.strip().splitlines()
    assert len([line for line in lines if not line.startswith("runs composed: ")]) == 1  # which a slow machine shows
    assert not (tmp_path / "outputs").exists()
