"""`report.py --verify`: honest records pass on any processor, changed ones differ, and what it found is noted."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepnets.commands.report import main
from deepnets.errors import UserError
from deepnets.results.records import keep, records_pages
from deepnets.results.statistics import FLOOR, largest_gap
from deepnets.results.verify import MOVED, Verifications, _moved_images, verify
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.initial_weights import with_weights
from deepnets.training.assembly import prepare
from deepnets.training.hardware import processor_model
from tests.command import row

NET = ["model=highway_fc10", "model.depth=4", "model.width=10", "dataset=digits", "epochs=2", "device=cpu", "threads=1"]
ELSEWHERE = {"device": "another CPU"}


def trained(folder: Path, *overrides: str) -> RunFolder:
    run_folder = RunFolder(folder)
    run_folder.freeze(row(folder.parent, *NET, "precision=fp32", *overrides).config, Origin())
    run(run_folder)
    return run_folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("records") / "table" / "row" / "seed0")


@pytest.fixture
def verifiable(original: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(original.path, tmp_path / "table" / "row" / "seed0")
    return RunFolder(tmp_path / "table" / "row" / "seed0")


def stored(folder: RunFolder) -> dict[str, Any]:
    """Read result.json here, and not by what is tested."""
    return json.loads((folder.path / "result.json").read_text())


def change(folder: RunFolder, **facts: object) -> None:
    (folder.path / "result.json").write_text(json.dumps(stored(folder) | facts))


def without_generation(folder: RunFolder) -> None:
    """Drop the processor's generation from result.json, which older versions did not note."""
    result = stored(folder)
    result.pop("processor", None)
    (folder.path / "result.json").write_text(json.dumps(result))


def losses_times(folder: RunFolder, factor: float) -> dict[str, Any]:
    return {"losses": [loss * factor for loss in stored(folder)["beginning"]["losses"]], "weights": "0" * 16}


def test_a_run_again_is_equal_bit_by_bit(verifiable: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([verifiable.path], "data") == 0
    assert "verified: the first 20 of 24 iterations, equal bit by bit\n" in capsys.readouterr().out


@pytest.mark.parametrize("elsewhere", [{}, ELSEWHERE])
def test_weights_may_differ_after_equal_losses(
    verifiable: RunFolder, elsewhere: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """As weights do on another generation of a processor, in a net whose losses hardly move."""
    change(verifiable, beginning=losses_times(verifiable, 1), **elsewhere)
    assert verify([verifiable.path], "data", note=True) == 0
    words = "the losses are equal bit by bit, the weights after them are not"
    assert f"verified: the first 20 of 24 iterations, {words}" in capsys.readouterr().out
    (note,) = Verifications.read(verifiable.path).verifications
    assert (note.passed, note.is_equal) == (True, False)


def test_another_generation_of_a_processor_of_the_same_name_is_told(
    verifiable: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    processor = processor_model()
    assert stored(verifiable).get("processor", "") == processor
    change(verifiable, beginning=losses_times(verifiable, 1 + 1e-6), processor=processor)
    assert verify([verifiable.path], "data") == 0
    assert "; torch and the processor are the record's; the first" in capsys.readouterr().out
    change(verifiable, processor="GenuineIntel family 6 model 85")
    assert verify([verifiable.path], "data") == 0
    said = capsys.readouterr().out
    assert f"(processor GenuineIntel family 6 model 85 then, {processor} now)" in said
    without_generation(verifiable)
    assert verify([verifiable.path], "data") == 0
    assert "; torch and the processor's name are the record's, but processors of one name" in capsys.readouterr().out


def test_a_record_that_contradicts_itself_is_not_trained(
    verifiable: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    change(verifiable, last_test_error=1.0)
    assert verify([verifiable.path], "data") == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{verifiable.path}: contradicts itself: last_test_error is 1.0, but test_right has ")


@pytest.mark.parametrize(("factor", "verdict"), [(1 + 1e-6, "verified"), (1.001, "DIFFERS")])
def test_losses_of_another_processor_may_be_apart_as_far_as_rounding_moves_them(
    verifiable: RunFolder, factor: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(verifiable, beginning=losses_times(verifiable, factor), **ELSEWHERE)
    assert verify([verifiable.path], "data") == (verdict == "DIFFERS")
    said = capsys.readouterr().out
    assert f"{verdict}: the first 20 of 24 iterations, loss " in said
    assert "where rounding explains " in said
    assert "(device another CPU then" in said


@pytest.mark.parametrize("override", ["optimizer.lr=0.102", "seed=1", "batch_size=127", "model.width=11"])
def test_a_record_of_other_settings_differs(verifiable: RunFolder, override: str) -> None:
    other = trained(verifiable.path.parents[1] / "other" / "seed0", "optimizer.lr=0.1", override)
    change(verifiable, beginning=stored(other)["beginning"], **ELSEWHERE)
    assert verify([verifiable.path], "data") == 1


def test_losses_that_are_not_finite_are_not_compared(verifiable: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    beginning = losses_times(verifiable, 1 + 1e-6)
    change(verifiable, beginning=beginning | {"losses": [*beginning["losses"][:3], *[None] * 17]}, **ELSEWHERE)
    assert verify([verifiable.path], "data") == 0
    assert "the first 3 are compared, as later ones are not finite" in capsys.readouterr().out
    change(verifiable, beginning=beginning | {"losses": [None] * 20})
    with pytest.raises(UserError, match="not even its first loss is finite, here or in the record"):
        verify([verifiable.path], "data")


def test_what_cannot_be_compared_is_named_with_the_reason(
    verifiable: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    result = stored(verifiable)
    change(verifiable, data={**result["data"], "content": "0" * 16})
    with pytest.raises(UserError, match="was trained on other data than those in data: content 0000000000000000 then"):
        verify([verifiable.path], "data")
    old = RunFolder(verifiable.path.parents[1] / "old" / "seed0")
    shutil.copytree(verifiable.path, old.path)
    (old.path / "result.json").write_text(
        json.dumps({name: value for name, value in result.items() if name != "beginning"})
    )
    with pytest.raises(UserError, match=r"^1 of 1 runs cannot be compared:\n  \S+old/seed0: its result has no"):
        verify([old.path], "data")
    change(verifiable, data=result["data"])
    assert verify([old.path, verifiable.path], "data") == 1
    (told,) = re.findall(r"1 of 2 runs cannot be compared:\n  (.*)", capsys.readouterr().out)
    assert told == f"{old}: its result has no first iterations to compare with"


@pytest.mark.slow
def test_a_record_that_started_from_weights_is_told_where_they_are(original: RunFolder, tmp_path: Path) -> None:
    (warm,) = with_weights([row(tmp_path, *NET, "precision=fp32", "seed=3", f"weights={original.path}")])
    started = RunFolder(tmp_path / "warm" / "row" / "seed3")
    started.freeze(warm.config, Origin())
    run(started)
    keep([started.path], tmp_path / "records")
    (record,) = (tmp_path / "records").glob("*/row/seed3")
    with pytest.raises(UserError, match=f"started from weights of the hash {warm.config.weights_hash}: name the run"):
        verify([record], "data")
    with pytest.raises(UserError, match="name the run or file that has them, as in --weights"):
        verify([record], "data", weights=[started.path])
    assert verify([record], "data", weights=[started.path, original.path]) == 0
    assert verify([record], "data", weights=[original.path], scratch=tmp_path / "again") == 0


def test_verdicts_are_noted_and_a_failed_one_stays(verifiable: RunFolder) -> None:
    records = verifiable.path.parents[2]
    assert "Verified" not in records_pages(records)["README.md"]
    honest = stored(verifiable)
    change(verifiable, beginning=losses_times(verifiable, 1.01), **ELSEWHERE)
    assert verify([verifiable.path], "data", note=True) == 1
    (note,) = Verifications.read(verifiable.path).verifications
    assert (note.passed, note.is_equal, note.versions["torch"]) == (False, False, honest["versions"]["torch"])
    assert note.gap > note.allowed > 0
    assert note.compared >= note.loss >= 1
    failed = f"row/seed0 differed on {note.device} ({note.date[:10]})"
    assert f"* Verified: 0 of 1 runs; {failed}\n" in records_pages(records)["README.md"]
    change(verifiable, **honest)
    assert "Verified" not in records_pages(records)["README.md"]  # that note is about another result
    assert verify([verifiable.path], "data", note=True) == 0
    assert [each.passed for each in Verifications.read(verifiable.path).verifications] == [False, True]
    line = f"* Verified: 1 of 1 runs, on 1 kind of processor ({note.device})\n"
    assert line in records_pages(records)["README.md"]


def test_a_record_is_trained_to_its_end_and_that_is_resumable(
    verifiable: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    assert verify([verifiable.path], "data", note=True, scratch=scratch) == 0
    assert "seed0: verified: all 24 iterations, error " in capsys.readouterr().out
    (note,) = Verifications.read(verifiable.path).verifications
    assert (note.is_whole, note.is_equal, note.compared) == (True, True, 24)
    again = scratch / "table" / "row" / "seed0"
    written = (again / "metrics.csv").stat().st_mtime_ns
    lines = (verifiable.path / "metrics.csv").read_text().splitlines()
    losses = [line.split(",") for line in lines]
    place = losses[0].index("train_loss")
    losses[1][place] = str(float(losses[1][place]) + 1e-6)
    (verifiable.path / "metrics.csv").write_text("".join(",".join(line) + "\n" for line in losses))
    assert verify([verifiable.path], "data", scratch=scratch) == 1
    assert "seed0: DIFFERS: all 24 iterations" in capsys.readouterr().out
    assert (again / "metrics.csv").stat().st_mtime_ns == written  # it was not trained a third time


def test_elsewhere_the_final_error_must_be_as_seeds_would_have_it(
    verifiable: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    first, beginning = stored(verifiable)["beginning"], losses_times(verifiable, 1 + 1e-6)
    without_generation(verifiable)
    change(verifiable, beginning=beginning)
    generation = (
        r"bits cannot be equal \(the first iterations .* processors of one name .* the row has 1 of 3 seeds, too few"
    )
    with pytest.raises(UserError, match=generation):
        verify([verifiable.path], "data", scratch=scratch)
    change(verifiable, **ELSEWHERE)
    with pytest.raises(
        UserError, match=r"bits cannot be equal \(device .* 1 of 3 seeds, .*; it was not trained to its"
    ):
        verify([verifiable.path], "data", scratch=scratch)
    assert not scratch.exists()
    metrics = verifiable.path / "metrics.csv"
    honest, (header, *epochs) = metrics.read_text(), metrics.read_text().splitlines()
    place = header.split(",").index("train_loss")
    late = [line.split(",") for line in epochs]
    late[-1][place] = str(float(late[-1][place]) + 1e-6)
    change(verifiable, beginning=first)
    metrics.write_text("\n".join([header, *(",".join(line) for line in late), ""]))
    with pytest.raises(
        UserError, match=r"bits are not equal \(device another CPU then, .* 1 of 3 seeds, too few for an"
    ):
        verify([verifiable.path], "data", scratch=scratch)  # only the last epoch tells
    metrics.write_text(honest)
    change(verifiable, beginning=beginning)
    for seed in (1, 2):
        trained(verifiable.path.with_name(f"seed{seed}"), f"seed={seed}")
    assert verify([verifiable.path], "data", scratch=scratch) == 0
    assert "the interval of the row's 3 seeds is " in capsys.readouterr().out
    shutil.rmtree(scratch)
    trained(scratch / "table" / "row" / "seed0", "optimizer.lr=0.001")  # another run is there
    with pytest.raises(UserError, match="is another run; name another --scratch"):
        verify([verifiable.path], "data", scratch=scratch)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--note"], "--note goes with --verify only"),
        (["--verify", "data", "--scratch", "again"], "--scratch goes with --whole only"),
        (["--weights", "outputs"], "--weights goes with --verify only"),
        (["--verify", "data", "--trust", "none.py", "--trust", "deepnets"], "--trust none.py: no such file"),
    ],
)
def test_options_of_verify_are_refused_elsewhere(
    verifiable: RunFolder, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["report.py", str(verifiable.path), *words])
    with pytest.raises(UserError, match=message):
        main()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_images_are_moved_by_a_rounding_of_the_precision(original: RunFolder, precision: torch.dtype) -> None:
    training = prepare(original.config, torch.device("cpu"), precision)
    plain, _ = next(training.batches.epoch(0))
    moved, _ = next(_moved_images(training, training.batches.epoch, 1, 0, 0))
    rounded, pixels = moved.to(precision), plain.to(precision)
    assert not (rounded == pixels)[plain != 0].any()
    steps = (moved - plain).abs()[plain != 0] / (torch.finfo(precision).eps * plain.abs()[plain != 0])
    assert steps.min() > 0.4
    assert steps.max() < 1.6


def runs_apart(trials: int, spread: float, growth: float, jumps: float) -> np.ndarray:
    """Losses (trials, 1 + MOVED, 8) whose gaps grow by a factor e^growth, from 1e-6 to at most 0.02.

    Each run has a lognormal factor of its own, of deviation `spread`, and jumps a thousandfold with probability `jumps`
    in each iteration.
    """
    draws = np.random.default_rng(0)
    factor = np.exp(spread * draws.standard_normal((trials, 1 + MOVED, 1)))
    size = 1e-6 * factor * np.exp(growth * np.arange(8))
    if jumps:
        has_jumped = np.arange(8) >= draws.geometric(jumps, (trials, 1 + MOVED, 1))
        size = np.where(has_jumped, np.maximum(1000 * size, 1e-4), size)
    return 2.3 + np.minimum(size, 0.02) * draws.standard_normal((trials, 1 + MOVED, 8))


@pytest.mark.parametrize(
    ("spread", "growth", "jumps", "most"),
    [(0, 0, 0, 0.001), (0, 2.5, 0, 0.001), (1, 0, 0, 0.01), (1, 2.5, 0, 0.01), (2, 1, 0, 0.01), (0, 1, 0.05, 0.04)],
)
def test_the_rate_of_false_alarms_is_as_the_page_says(spread: float, growth: float, jumps: float, most: float) -> None:
    here = np.full(8, 2.3)
    found = [largest_gap(runs[0], here, runs[1:]) for runs in runs_apart(4000, spread, growth, jumps)]
    assert sum(gap.gap > gap.allowed for gap in found) / len(found) <= most


@pytest.mark.parametrize(("spread", "power"), [(0, 0.99), (1, 0.9)])
def test_a_gap_a_thousand_times_the_typical_one_is_found(spread: float, power: float) -> None:
    here = np.full(8, 2.3)
    found = [largest_gap(here + 1e-3, here, runs[1:]) for runs in runs_apart(1000, spread, 0, 0)]
    assert sum(gap.gap > gap.allowed for gap in found) / len(found) > power


def test_equal_losses_and_a_rounded_sum_are_allowed_where_rounding_moves_nothing() -> None:
    here, moved = np.full(5, 2.0), np.full((MOVED, 5), 2.0)
    for gap, is_allowed in ((0.0, True), (FLOOR * 2.0, True), (1e-3, False)):
        found = largest_gap(here + np.array([0, 0, gap, 0, 0]), here, moved)
        assert (found.gap <= found.allowed) == is_allowed
