"""`until=decided` as a user types it: rounds of real runs, hours, and words that cannot be meant."""

import re
from pathlib import Path

import pytest

from tests.command import train

SWEEP = """# @package _global_
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


@pytest.fixture
def lab(tmp_path: Path) -> list[str]:
    for name, text in (("small", SWEEP), ("silent", SWEEP.replace("  claims:\n", "  claims: []\n"))):
        lines = [line for line in text.splitlines() if name == "small" or "- {claim" not in line]
        (tmp_path / "conf" / "sweep").mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / "sweep" / f"{name}.yaml").write_text("\n".join(lines))
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
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["until=decided", "hours=1e-9"], r"hours=1e-09: do not pay one run; that of \w+ takes about .* hours"),
        (["hours=1"], "hours: limit until=decided; add it"),
        (["until=decided", "hours=much"], "hours"),
        (["sweep=silent", "until=decided"], "needs a sweep with claims"),
    ],
)
def test_words_that_cannot_be_meant_are_a_line(lab: list[str], tmp_path: Path, words: list[str], said: str) -> None:
    given = [word for word in lab if not (word.startswith("sweep=") and words[0].startswith("sweep="))]
    done = train(*given, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "outputs").exists()
