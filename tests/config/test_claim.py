"""Claims of a sweep file: how they are written, and that each is about rows that the sweep has."""

import pytest
import yaml

from deepnets.config.claim import Claim, Measured, Relation, claims_of
from deepnets.config.compose import compose
from deepnets.config.identity import plain
from deepnets.config.places import CONF
from deepnets.errors import UserError
from tests.config.test_sweeps import grid

CLAIMED = [file.stem for file in sorted((CONF / "sweep").glob("*.yaml")) if "claims:" in file.read_text()]


def written(sweep: str) -> list[Claim]:
    return claims_of(yaml.safe_load((CONF / "sweep" / f"{sweep}.yaml").read_text())["sweep"])


def rows_of(sweep: str) -> set[str]:
    """The names of its rows, of all scales' values that stand in its command."""
    axes = compose([f"sweep={sweep}"]).config.sweep.axes
    return {
        plain(",".join(dict(word.partition("=")[::2] for word in row)[axis] for axis in axes)) for row in grid(sweep)
    }


@pytest.mark.parametrize("sweep", CLAIMED)
def test_each_claim_is_about_rows_of_its_sweep(sweep: str) -> None:
    rows = rows_of(sweep)
    parts = {part for row in rows for part in row.split(",")}
    for claim in written(sweep):
        other, _, second = claim.second.rpartition("/")
        assert claim.first in rows | parts, claim.text
        assert second in (rows_of(other) if other else rows | parts), claim.text


def test_there_is_no_claim_twice() -> None:
    written_down = [(sweep, claim.hash) for sweep in CLAIMED for claim in written(sweep)]
    assert len(set(written_down)) == len(written_down) >= 25


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
        {"claim": "identity is lower than none"},
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
