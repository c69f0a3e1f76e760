"""`report.py --compare`: what differs between a record and a run of one's own, and whether seeds explain it."""

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy import stats

from deepnets.commands.report import main
from deepnets.errors import UserError
from deepnets.runs.folder import RunFolder
from tests.results.test_verify import change, stored, trained, without_generation

Said = Callable[..., str]
SEEDS, EPOCHS = 4, "epochs=10"


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds 0 to 3 of a row; not to be changed."""
    row = tmp_path_factory.mktemp("records") / "table" / "row"
    for seed in range(SEEDS):
        trained(row / f"seed{seed}", EPOCHS, f"seed={seed}")
    return row


@pytest.fixture
def copy(row: Path, tmp_path: Path) -> RunFolder:
    """A copy of seed 0 in a row of its own, to be changed."""
    return RunFolder(shutil.copytree(row / "seed0", tmp_path / "mine" / "row" / "seed0"))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    def compare(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["report.py", "--compare", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "400")
        capsys.readouterr()  # of training
        assert main() == 0
        return capsys.readouterr().out

    return compare


@pytest.mark.slow
def test_a_run_again_is_the_same_result_bit_for_bit(row: Path, tmp_path: Path, said: Said) -> None:
    again = trained(tmp_path / "mine" / "row" / "seed2", EPOCHS, "seed=2")
    before = {file: file.read_bytes() for file in row.rglob("*") if file.is_file()}
    words = said(row / "seed2", again.path)
    assert words.splitlines()[-1] == "Mine is the same result bit for bit."
    assert "Equal, as far as both noted it: settings, data, execution, versions, beginning." in words
    of_row = said(row, again.path)  # of whose seeds the one of equal seed is taken
    assert f"seed2, one of {SEEDS} seeds\n" in of_row
    assert words == of_row.replace(f", one of {SEEDS} seeds", "")
    assert {file: file.read_bytes() for file in row.rglob("*") if file.is_file()} == before


def test_settings_that_changed_nothing_are_named(row: Path, tmp_path: Path, said: Said) -> None:
    again = trained(tmp_path / "mine" / "row" / "seed0", EPOCHS, "clip_gradient_norm=1000000.0")
    sentence = said(row / "seed0", again.path).splitlines()[-1]
    assert sentence == "Mine is the same result bit for bit, though these differ: clip_gradient_norm."


@pytest.mark.parametrize(
    ("override", "key", "is_extreme"),
    [
        ("seed=4", "seed", False),
        ("optimizer.lr=0.000001", "optimizer.lr", True),
        ("model.width=11", "model.width", False),
    ],
)
def test_seeds_explain_what_lies_in_the_interval_of_one_more_run(
    row: Path, tmp_path: Path, said: Said, override: str, key: str, is_extreme: bool
) -> None:
    mine = trained(tmp_path / "mine" / "row" / "seed4", EPOCHS, "seed=4", *[override] * (key != "seed"))
    errors = [stored(RunFolder(row / f"seed{seed}"))["test_error"] for seed in range(SEEDS)]
    error = stored(mine)["test_error"]
    half = stats.t.ppf(0.975, SEEDS - 1) * stdev(errors) * math.sqrt(1 + 1 / SEEDS)
    is_within = abs(error - fmean(errors)) <= half
    assert not (is_extreme and is_within)
    *lines, sentence = said(row / "seed1", mine.path).splitlines()
    found = re.search(
        r"[Tt]he errors differ by ([\d.]+) percent points; one more run of this row lies within ±([\d.]+) of its mean "
        r"with 95% probability, and mine is ([\d.]+) from it: (.*)\.$",
        sentence,
    )
    printed = [float(number) for number in found.groups()[:3]]
    assert printed == pytest.approx([abs(error - errors[1]), half, abs(error - fmean(errors))], abs=0.0051)
    assert any(re.search(rf"\b{re.escape(key)} ", line) for line in lines)
    assert any(re.search(rf"\b{errors[1]:.2f} +{error:.2f} ", line) for line in lines)
    if key == "seed":
        assert found[4] == "seeds explain it" if is_within else found[4].startswith("seeds do not explain it; nothing")
    else:
        assert sentence.startswith(f"Mine is another experiment, by {key}: ")
        outside = f"seeds do not explain it; look first at: {key}"
        assert found[4] == ("seeds alone may differ so much" if is_within else outside)


def test_a_run_is_no_seed_that_it_is_compared_with(row: Path, said: Said) -> None:
    assert f"{SEEDS - 1} seeds of the record's row: mean " in said(row / "seed0", row / "seed1")
    assert f"{SEEDS} seeds" not in said(row / "seed0", row / "seed1")


def test_of_too_few_seeds_nothing_can_be_said(row: Path, tmp_path: Path, said: Said) -> None:
    record = shutil.copytree(row / "seed0", tmp_path / "record" / "row" / "seed0")
    shutil.copytree(row / "seed1", tmp_path / "record" / "row" / "seed1")
    words = said(record, row / "seed3")
    assert words.rstrip().endswith("percent points; with fewer than three seeds of this row nothing can be said.")
    assert "one more run" not in words


def test_where_bits_of_equal_settings_begin_to_differ(row: Path, copy: RunFolder, said: Said) -> None:
    beginning = stored(copy)["beginning"]
    losses = beginning["losses"]
    change(copy, beginning=beginning | {"losses": [*losses[:2], losses[2] * 1.001, *losses[3:]]}, device="another CPU")
    words = said(row / "seed0", copy.path)
    assert "bits differ from loss 3 on (usual cause: device): the errors differ by 0.00 percent points; " in words
    assert re.search(rf"beginning  loss 3 +{losses[2]:.6}\d* ", words)
    assert re.search(r"execution +device .* another CPU", words)
    change(copy, beginning=beginning | {"losses": [losses[0] * 1.5, *losses[1:]]})
    assert "from loss 1 (by 33%, as with other initial weights or images) on" in said(row / "seed0", copy.path)
    change(copy, beginning=beginning | {"weights": "0" * 16}, device=stored(RunFolder(row / "seed0"))["device"])
    words = said(row, copy.path)
    assert "from the weights after the first 20 losses on (usual cause: another version of this code)" in words
    change(copy, processor="GenuineIntel family 6 model 85")
    assert "from the weights after the first 20 losses on (usual cause: processor)" in said(row, copy.path)
    without_generation(copy)
    assert "from the weights after the first 20 losses on (usual cause: another generation" in said(row, copy.path)
    change(copy, beginning=beginning)
    metrics = copy.path / "metrics.csv"
    loss = metrics.read_text().splitlines()[2].split(",")[3]
    metrics.write_text(metrics.read_text().replace(loss, f"{float(loss) + 1e-6}"))
    assert "bits differ from epoch 2 on" in said(row / "seed0", copy.path)


def test_data_own_code_and_versions_are_named(row: Path, copy: RunFolder, said: Said) -> None:
    record = RunFolder(shutil.copytree(row / "seed0", copy.path.parents[2] / "record" / "row" / "seed0"))
    codes = [{"hash": digit * 16, "modules": {"my.nets": digit, "my.data": "0"}} for digit in "12"]
    result = stored(copy)
    change(record, code={"0": codes[0]}, beginning={"losses": [1.0], "weights": "0"})
    versions = result["versions"] | {"torch": "1.0"}
    change(copy, code={"0": codes[1]}, data=result["data"] | {"content": "0" * 16}, versions=versions, commit="a" * 40)
    words = said(record.path, copy.path)
    assert re.search(rf"data +content +{result['data']['content']} +0000000000000000 ", words)
    assert re.search(r"own code +my/nets\.py +1111111111111111 +2222222222222222 ", words)
    assert re.search(rf"versions +torch +{re.escape(result['versions']['torch'])} +1\.0 ", words)
    assert "(usual cause: content, my/nets.py, torch)" in words
    for side, code in ((record, codes[0]), (copy, codes[1])):
        change(RunFolder(shutil.copytree(row / "seed1", side.path.parent / "seed1")), code={"0": code})
    words = said(record.path.parent, copy.path.parent)
    assert re.search(r"trained: own code +1111111111111111 +2222222222222222 ", words)


def test_what_older_results_did_not_note_is_no_difference(row: Path, copy: RunFolder, said: Said) -> None:
    kept = {name: value for name, value in stored(copy).items() if name not in ("beginning", "test_right", "data")}
    (copy.path / "result.json").write_text(json.dumps(kept))
    words = said(row / "seed0", copy.path)
    assert "Not noted by one or both: data, beginning." in words
    assert words.rstrip().endswith("Mine is the same result bit for bit.")


def lose_result(run: Path) -> None:
    (run / "result.json").unlink()


def break_settings(run: Path) -> None:
    (run / "config.yaml").write_text("model: [")


def contradict(run: Path) -> None:
    change(RunFolder(run), last_test_error=1.0)


def change_settings(run: Path) -> None:
    """Another learning rate, with the epochs of the record."""
    config, kept = run / "config.yaml", stored(RunFolder(run))
    config.write_text(config.read_text().replace("momentum: 0.9", "momentum: 0.5"))
    (run / "result.json").write_text(json.dumps({name: kept[name] for name in kept if name != "identity"}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lose_result, r"has no final error to compare \(running"),
        (break_settings, r"has no final error to compare \(failed: cannot be read: config.yaml: "),
        (contradict, "contradicts itself: last_test_error is 1.0, but test_right has "),
        (
            change_settings,
            "contradicts itself: all epochs equal those of .*, bit by bit; optimizer.momentum is 0.[59] here",
        ),
        (shutil.rmtree, "no such folder"),
        (lambda run: (run / "config.yaml").unlink(), "no run folder in it"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    row: Path, copy: RunFolder, said: Said, damage: Callable[[Path], None], reason: str
) -> None:
    damage(copy.path)
    for sides in ((row / "seed0", copy.path), (copy.path, row / "seed0")):
        with pytest.raises(UserError, match=reason) as raised:
            said(*sides)
        assert "\n" not in str(raised.value)


def test_curves_of_two_runs_are_drawn_where_a_folder_is_named(row: Path, tmp_path: Path, said: Said) -> None:
    with pytest.raises(UserError, match="--log is for the curves; add --output DIR, "):
        said(row / "seed0", row / "seed1", "--log")
    words = said(row / "seed0", row / "seed1", "--log", "--output", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"compare.html", "compare.png", "compare.svg"}
    sentence = next(line for line in words.splitlines() if line.startswith("The errors differ"))
    assert sentence in (tmp_path / "compare.html").read_text()
