"""Claims of a sweep file: how they are written, and that each is about rows that the sweep has."""

import math
from functools import cache
from pathlib import Path

import pytest
import yaml

from deepnets.config.claim import (
    Claim,
    Measured,
    Registered,
    Relation,
    check_claims,
    claims_of,
    claims_on_file,
    decidable_of,
    registered_of,
)
from deepnets.config.project import CONF, PACKAGE
from deepnets.config.sweep import names_at
from deepnets.errors import UserError

CLAIMED = [file.stem for file in sorted((CONF / "sweep").glob("*.yaml")) if "claims:" in file.read_text()]


def node(sweep: str) -> dict:
    return yaml.safe_load((CONF / "sweep" / f"{sweep}.yaml").read_text())["sweep"]


def written(sweep: str) -> list[Claim]:
    return claims_of(node(sweep))


@cache
def rows_of(sweep: str) -> set[str]:
    """The names of its rows at all scales; tests/config/test_sweeps.py compares them with what Hydra composes."""
    return {name for scale in ("full", "mini", "deep") for name in names_at(CONF / "sweep" / f"{sweep}.yaml", scale)}


@pytest.mark.parametrize("sweep", CLAIMED)
def test_each_registered_claim_names_rows_that_there_are(sweep: str) -> None:
    for claim in registered_of(node(sweep)):
        for name in claim.rows:
            other, _, row = name.rpartition("/")
            if other.startswith("analysis/"):
                assert (PACKAGE / "analysis" / "commands" / f"{other.removeprefix('analysis/')}.py").is_file(), name
                continue
            rows = rows_of(other or sweep) | {*(node(other or sweep).get("reported") or {}).get("literature", [])}
            parts = {part for each in rows for part in each.split(",")}
            assert row in rows | parts, claim.sentence
        for name in claim.test.rows if claim.test else ():
            other, _, row = name.rpartition("/")
            if not other.startswith("analysis/"):
                rows = rows_of(other or sweep)
                assert row in (rows if not claim.test.best else {each.rpartition(",")[0] for each in rows}), (
                    claim.sentence
                )


def test_there_is_no_claim_twice() -> None:
    on_file = claims_on_file(CONF / "sweep")
    assert len(set(on_file)) == len(on_file)
    assert len([claim for sweep in CLAIMED for claim in written(sweep)]) > 85
    assert len([claim for sweep in CLAIMED for claim in registered_of(node(sweep))]) > 35


LESION = {"analyze": "lesion --only single", "table": "single", "median": "error"}
REGISTERED = {
    "sentence": "the gain grows",
    "rows": ["a", "b"],
    "quantity": "gain in nats; above the margin",
    "margin": 0.5,
}


def test_a_registered_claim_is_known_by_all_but_its_place() -> None:
    (claim,) = registered_of({"claims": [REGISTERED | {"place": "Fig. 1"}]})
    assert claim == Registered("the gain grows", ("a", "b"), "gain in nats; above the margin", 0.5, "Fig. 1")
    assert claims_of({"claims": [REGISTERED | {"place": "Fig. 1"}]}) == []
    (moved,) = registered_of({"claims": [REGISTERED | {"place": "Fig. 2"}]})
    assert claim.hash == moved.hash
    for change in ({"sentence": "it falls"}, {"rows": ["a"]}, {"quantity": "error"}, {"margin": 1}):
        (other,) = registered_of({"claims": [REGISTERED | change | {"place": "Fig. 1"}]})
        assert other.hash != claim.hash


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"margin": "some"}, "margin is a number"),
        ({"margin": True}, "margin is a number"),
        ({"margin": -1}, "margin is a number"),
        ({"margin": float("nan")}, "margin is a number"),
        ({"rows": "a"}, "rows is a list"),
        ({"rows": []}, "rows is a list"),
        ({"quantity": ""}, "sentence and quantity are texts"),
        ({"sentence": ["it"]}, "sentence and quantity are texts"),
        ({"unit": "nats"}, "first four are needed"),
    ],
)
def test_a_registered_claim_without_one_exact_test_is_refused(change: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        registered_of({"claims": [REGISTERED | {"place": "Fig. 1"} | change]})


def test_the_test_of_a_registered_claim_is_outside_its_hash_and_its_region_within() -> None:
    node = REGISTERED | {"place": "1", "quantity": "a minus b; must lie below minus the margin"}
    (claim,) = registered_of({"claims": [node]})
    test = {"of": "training loss", "at": 0.1, "log": 10, "slope": {1: "a", 3: "b minus 2", 5: "a minus b"}}
    (tested,) = registered_of({"claims": [node | {"test": test}]})
    assert tested.hash == claim.hash
    assert decidable_of({"claims": [node]}) == []
    assert decidable_of({"claims": [node | {"test": test}]}) == [tested]
    assert tested.test
    assert (tested.test.low, tested.test.high, tested.test.at, tested.test.log) == (-math.inf, -0.5, 0.1, 10)
    (slope,) = tested.test.contrasts  # weights -1/4, 0, 1/4
    assert dict(slope.weights) == pytest.approx({"a": 0.0, "b": -0.25})
    assert slope.constant == 0


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("a minus b", "must be as"),
        ({}, "one of each, mean, slope, log_slope, order, share_above"),
        ({"each": ["a"], "order": ["a", "b"]}, "one of each"),
        ({"each": ["a"], "unit": "nats"}, "only `of`, `at`, `log` and `best` may stand beside it; unit is unknown"),
        ({"each": ["a"], "of": "loss"}, "`of` is one of test error, training error, training loss"),
        ({"each": ["a"], "at": 0}, "`at` is a share"),
        ({"each": ["a"], "at": "half"}, "`at` is a share"),
        ({"each": ["a"], "log": 3}, "`log` is the base"),
        ({"each": "a minus b"}, "each is a list"),
        ({"each": ["a minus c"]}, "the claim's rows lack c"),
        ({"slope": ["a", "b"]}, "a slope is a mapping"),
        ({"slope": {1: "a"}}, "two or more numbers"),
        ({"log_slope": {0: "a", 1: "b"}}, "numbers above 0"),
        ({"log_slope": {8: ["a minus b"], 20: "b"}}, 'has one text for each number, as {8: "a minus b"}, and no lists'),
        ({"order": ["a", "a"]}, "two or more different rows"),
        ({"eech": ["a"]}, "eech is unknown; the nearest: each"),
        ({"each": ["a"], "of": "test eror"}, "the nearest: test error"),
        ({"each": ["a"], "best": 0.1}, "it needs `each` and `of: training loss`"),
        ({"share_above": ["a", "a"]}, "two different rows"),
        ({"share_above": ["a", "b"], "of": LESION}, "not for an analysis"),
        ({"each": ["a"], "of": LESION, "at": 0.5}, "not for an analysis"),
        ({"each": ["a"], "of": LESION | {"analyze": "lesions"}}, "no such analysis; the nearest: lesion"),
        ({"each": ["a"], "of": LESION | {"analyze": "lesion only single"}}, "only options with a value"),
        ({"each": ["a"], "of": LESION | {"wehre": {"unit": 1}}}, "wehre is unknown; the nearest: where"),
        ({"each": ["a"], "of": LESION | {"where": {"unit": [1, 2, 3]}}}, "a value or a range"),
        ({"each": ["a"], "of": LESION | {"where": "unit"}}, "a value or a range"),
        ({"each": ["a"], "of": LESION | {"tau": ["unit", "error"]}}, "one of mean, median, min"),
        ({"each": ["a"], "of": {"analyze": "lesion", "median": "error"}}, "with analyze, table and one of"),
        ({"each": ["a"], "of": LESION | {"median": ["unit", "error"]}}, "median takes a column"),
        ({"each": ["a"], "of": LESION | {"median": "ln error"}}, "log2, log10 or abs in front"),
        ({"order": ["a", "b"]}, "with margin 0"),
        ({"each": [1]}, "each is a list"),
    ],
)
def test_a_test_that_cannot_be_computed_is_refused(test: object, said: str) -> None:
    node = REGISTERED | {"place": "1", "quantity": "must lie above the margin", "test": test}
    with pytest.raises(UserError, match=said):
        registered_of({"claims": [node]})


def test_a_test_needs_a_quantity_that_says_where_it_must_lie() -> None:
    node = REGISTERED | {"place": "1", "quantity": "gain in nats", "test": {"each": ["a minus b"]}}
    with pytest.raises(UserError, match="the quantity 'gain in nats' must say where it must lie, in"):
        registered_of({"claims": [node]})


def test_a_file_whose_claims_cannot_be_read_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, broken, other = (tmp_path / name for name in ("mine.yaml", "broken.yaml", "other.yaml"))
    mine.write_text("sweep: {claims: [{claim: a beats b, place: here}]}")
    broken.write_text("sweep: [")
    other.write_text("sweep: {claims: [{claim: a is lower than b, place: here}]}")
    assert [claim.partition("/")[0] for claim in claims_on_file(tmp_path)] == ["other"]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == [str(broken), str(mine)]
    assert all(line.endswith("; the claims of this file are left out") for line in said)
    with pytest.raises(UserError, match=r"sweep\.claims: .*a beats b"):
        check_claims(mine)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"claims": [{"claim": "identity is lower than none", "place": "1"}]}, None),
        ({"claims": [{"claim": "identity is lower than none"}]}, None),
        ({"claims": [{"claim": "identiy is lower than none", "place": "1"}]}, "no row identiy; the nearest: identity"),
        (
            {"claims": [{"claim": "identity is lower than he2015_fig6/plain21", "place": "1"}]},
            "no row plain21;",
        ),
        ({"claims": [{"claim": "identity is lower than nowhere/none", "place": "1"}]}, "no row none"),
        ({"claims": [{"claim": "identity is lower than he2015_fig6/plain20", "place": "1"}]}, None),
        ({"margins": {"fulll": 1}}, "no scale fulll; the nearest: full"),
        ({"margins": {"full": 1, "deep": 2}}, None),
        (
            {"claims": [REGISTERED | {"place": "1", "quantity": "must lie above the margin", "test": {"each": ["b"]}}]},
            "the gain grows: no row b",
        ),
    ],
)
def test_a_claim_about_a_row_that_does_not_exist_is_refused(tmp_path: Path, node: dict, said: str | None) -> None:
    (tmp_path / "sweep").mkdir()
    file = tmp_path / "sweep" / "mine.yaml"
    file.write_text(yaml.safe_dump({"sweep": {"rows": {"model/shortcut": ["identity", "none"]}, "seeds": 2} | node}))
    if said is None:
        check_claims(file)
        return
    with pytest.raises(UserError, match=f"mine.yaml: sweep.*{said}"):
        check_claims(file)


@pytest.mark.parametrize("sweep", CLAIMED)
def test_the_claims_of_every_sweep_are_about_rows_that_exist(sweep: str) -> None:
    assert rows_of(sweep)  # or nothing is checked
    check_claims(CONF / "sweep" / f"{sweep}.yaml")


def test_what_a_claim_says() -> None:
    (claim,) = claims_of({"claims": [{"claim": "a,b is higher than c", "error": "training", "place": "Fig. 1"}]})
    assert claim == Claim("a,b", Relation.above, "c", Measured.training, "Fig. 1")
    assert claim.text == "a,b is higher than c, in training error"
    (moved,) = claims_of({"claims": [{"claim": "a,b is higher than c", "error": "training", "place": "Fig. 2"}]})
    (other,) = claims_of({"claims": [{"claim": "a,b is higher than c", "place": "Fig. 1"}]})
    assert claim.hash == moved.hash != other.hash
    fails = {"claim": "a fails against b", "place": "4.2"}
    bound, free = claims_of({"claims": [fails | {"above": 60}, fails]})
    assert (bound.above, free.above) == (60, None)
    assert bound.hash == free.hash
    assert claims_of(None) == []


@pytest.mark.parametrize(
    "node",
    [
        "identity is lower than none",
        {"claim": "identity < none", "place": "Table 1"},
        {"claim": "identity is lower than none", "place": "Table 1", "error": "validation"},
        {"claim": "identity is lower than none", "place": "Table 1", "rows": "all"},
        {"claim": "identity is lower than none", "place": "Table 1", "above": 60},
        {"claim": "none fails against identity", "place": "Table 1", "above": 100},
    ],
)
def test_what_is_no_claim_is_refused_with_an_example(node: object) -> None:
    with pytest.raises(UserError, match=r"sweep\.claims: .*must be as \{claim: identity is lower than none"):
        claims_of({"claims": [node]})


def test_claims_are_a_list() -> None:
    with pytest.raises(UserError, match="must be a list of claims"):
        claims_of({"claims": "identity is lower than none"})
