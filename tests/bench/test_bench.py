"""scripts/bench.py: every bench runs and gives ratios of what it says it measures. No test asserts a time."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from deepnets.bench import analyses
from deepnets.bench.comparison import Comparison, compose_run, in_turns
from deepnets.bench.peers import prepare_lightning, prepare_plain, prepare_timm, task_of, tensor_batches
from deepnets.bench.training import bytes_of, endless, floor_steps, kept_bytes
from deepnets.commands.bench import BENCHES as VERBS
from deepnets.config.trust import trusting
from deepnets.data.source import Split
from deepnets.errors import UserError
from deepnets.training.fit import fit
from tests.command import ROOT

TINY = ["dataset=synthetic", "dataset.source.train=64", "dataset.source.test=40", "model.depth=8", "batch_size=16"]
BENCHES = {
    "training": [*TINY, "--iterations", "2", "--peers", "plain", "--workers", "0"],
    "evaluation": [*TINY, "--sizes", "10,40", "--images", "30", "--workers", "0"],
    "checkpoint": ["--models", "resnet20,digits_resnet"],
    "ddp": [*TINY, "--iterations", "1"],
    "memory": ["--model", "resnet32", "--iterations", "1", "--modes", "full,recompute_segments"],
    "data": [*TINY, "--iterations", "1", "--workers", "0"],
    "imagenet": ["--images", "12", "--batch-size", "4", "--workers", "1"],
    "startup": [*TINY],
    "waiting": ["model.depth=8", "--iterations", "1"],
    "rows": [],
    "logging": ["--iterations", "1"],
    "grid": ["--rows", "2", "--iterations", "1"],
    "sweep": ["--runs", "10"],
    "stacked": [*TINY[:3], "model.depth=3", "--rows", "2", "--iterations", "2"],
    "seeds": ["model.depth=8", "--iterations", "1"],
    "lesion": [*TINY, "dataset.source.test=512", "--images", "20"],
}
LONG = {"ddp", "memory", "startup", "waiting", "rows", "logging", "grid", "sweep", "seeds"}  # processes, or a while
PEER = """
def prepare(task):
    task.model(task.images[:2].permute(0, 3, 1, 2).float())
    return lambda iterations: iterations / 100
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Callable[..., dict[str, Any]]]:
    """bench(file, "data", "--iterations", "1"): the tables it writes, by their title."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        main = importlib.import_module("bench").main

        def run(file: Path, *words: str) -> dict[str, Any]:
            assert main([*words, "--repeats", "1", "--json", str(file)]) == 0
            return json.loads(file.read_text())["tables"]

        yield run


def test_all_benches_are_tried_here() -> None:
    assert {*BENCHES, "analyses", "gpu"} == set(VERBS)  # the last two have tests of their own


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in LONG else pytest.mark.slow) for name in BENCHES],
)
def test_each_bench_prints_and_writes_ratios(
    bench: Callable[..., dict[str, Any]], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = bench(tmp_path / "figures.json", name, *BENCHES[name])
    if name == "memory":
        assert tables["memory of resnet32, batches of 128"]["candidates"]["recompute_segments"]["ratio_median"] > 1.3
    printed = capsys.readouterr().out
    for title, table in tables.items():
        assert title in printed
        first, *others = table["candidates"].values()
        assert first["ratio_median"] == 1
        assert others
        for other in others:
            assert other["ratio_median"] == pytest.approx(first["median"] / other["median"])


@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.nightly), "evaluation", "memory", "startup"])
@pytest.mark.slow
def test_a_network_with_a_class_of_the_users_own_is_measured(
    bench: Callable[..., dict[str, Any]], name: str, tmp_path: Path
) -> None:
    file = tmp_path / f"own_of_{name}.py"
    file.write_text("from deepnets.models.shortcuts import Identity\n\n\nclass Own(Identity):\n    pass\n")
    words = {"ddp": BENCHES["ddp"], "evaluation": BENCHES["evaluation"], "memory": [*TINY, "--modes", "full"]}
    options = [*words.get(name, TINY), "--trust", str(file)]
    with trusting(()):  # what the bench trusts is forgotten after it
        assert bench(tmp_path / "figures.json", name, f"model.shortcut._target_={file.stem}.Own", *options)


def test_a_ratio_is_of_the_same_repeat() -> None:
    comparison = Comparison("speed", "images/s", {"a": [2.0, 8.0, 3.0], "b": [1.0, 2.0, 3.0]})
    b = comparison.summary()["b"]
    assert (b["ratio_median"], b["ratio_low"], b["ratio_high"]) == (2, 1, 4)
    assert (b["median"], b["low"], b["high"]) == (2, 1, 3)


def test_candidates_take_turns_after_one_round_to_warm_up() -> None:
    calls: list[str] = []
    candidates = {name: lambda name=name: float(calls.append(name) or len(calls)) for name in "ab"}
    assert in_turns(candidates, 2) == {"a": [3, 6], "b": [4, 5]}
    assert calls == ["a", "b", "a", "b", "b", "a"]


def test_batches_of_the_plain_scripts_tensor_are_crops_of_the_images() -> None:
    run = compose_run([*TINY, "model=resnet20", "device=cpu"])
    images = torch.arange(6 * 4 * 4 * 3).reshape(6, 4, 4, 3).to(torch.uint8)
    task = task_of(run, Split(images, torch.arange(6)), pad=1, flip=True, workers=0)
    padded = torch.nn.functional.pad(images.permute(0, 3, 1, 2).float(), [1] * 4)
    mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (task.mean, task.std))
    seen = set()
    for crops, labels in islice(tensor_batches(replace(task, batch_size=2)), 60):
        for crop, label in zip(crops * std + mean, labels.tolist(), strict=True):
            windows = {(y, x): padded[label, :, y : y + 4, x : x + 4] for y in range(3) for x in range(3)}
            either = {(*place, side): w.flip(-1) if side else w for place, w in windows.items() for side in (0, 1)}
            (place,) = [place for place, window in either.items() if torch.allclose(crop, window, atol=1e-3)]
            seen.add(place)
    assert len(seen) == 18  # every window, as it is and mirrored
    task_without = replace(task, pad=0, flip=False, batch_size=6)
    crops, labels = next(tensor_batches(task_without))
    torch.testing.assert_close(crops * std + mean, images[labels].permute(0, 3, 1, 2).float(), atol=1e-3, rtol=0)


def test_the_floor_is_the_arithmetic_of_a_training_step() -> None:
    run = compose_run(["model=digits_resnet", "precision=fp32", "device=cpu"])
    ours, floor = run.training(), run.training()
    next(fit(ours))
    next(floor_steps(floor))
    for expected, weight in zip(ours.model.parameters(), floor.model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


def test_bytes_kept_are_the_activations_that_a_backward_pass_reads() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
    training = SimpleNamespace(model=model, precision=torch.float32, device=torch.device("cpu"))
    # The first layer's input, and the ReLU's output, which is also the second layer's input.
    assert kept_bytes(training, torch.zeros(7, 30)) == 4 * 7 * (30 + 20)


def test_the_least_bytes_grow_with_the_batch_and_the_parameters() -> None:
    def moved(batch: int) -> int:
        return bytes_of(compose_run([*TINY, "model=resnet20", f"batch_size={batch}"]))

    run = compose_run([*TINY, "model=resnet20"])
    parameters = sum(parameter.numel() for parameter in run.training().model.parameters())
    assert moved(32) - 24 * parameters == 2 * (moved(16) - 24 * parameters)


def test_steps_without_end_are_iterations_only() -> None:
    training = compose_run([*TINY, "model=resnet20", "epochs=1"]).training()
    steps = endless(training)
    seen = [(next(steps).iteration, training.epoch, training.batch) for _ in range(6)]
    assert seen == [(1, 0, 1), (2, 0, 2), (3, 0, 3), (4, 0, 4), (5, 1, 1), (6, 1, 2)]


@pytest.mark.parametrize(
    ("prepare", "library", "extra"),
    [(prepare_plain, "torch", 0), (prepare_timm, "timm", 0), (prepare_lightning, "lightning", 3)],
)
def test_peers_train_as_many_iterations_as_they_are_asked(prepare: Callable, library: str, extra: int) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: it is only compared with")
    run = compose_run([*TINY, "model=resnet20"])
    task = task_of(run, run.training().batches.split, 4, True, workers=0)
    before = [parameter.clone() for parameter in task.model.parameters()]
    assert prepare(task)(5) > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    (norm, *_) = (module for module in task.model.modules() if isinstance(module, nn.BatchNorm2d))
    assert norm.num_batches_tracked == 5 + extra  # 4 batches an epoch: it goes on into the next


@pytest.mark.slow
def test_a_peer_in_a_file_is_measured_and_absent_ones_are_named(
    bench: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fast_peer.py").write_text(PEER)
    monkeypatch.setitem(sys.modules, "timm", None)
    words = [*TINY, "--iterations", "1", "--peers", "timm", "--peer", str(tmp_path / "fast_peer.py")]
    (table,) = bench(tmp_path / "figures.json", "training", *words).values()
    assert table["candidates"]["fast_peer"]["median"] == pytest.approx(1600)
    assert "timm" in table["absent"]["timm"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training", *TINY, "--peers", "none", "--peer", "nowhere.py"], "--peer nowhere.py: no such file"),
        (["training", *TINY, "--peers", "none", "--peer", __file__], "defines no prepare"),
        (["ddp", *TINY, "--processes", "1"], "--processes 1: must be 2 or more, and no more than the 16 images"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    bench: Callable[..., dict[str, Any]], words: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        bench(tmp_path / "figures.json", *words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training", "--peers", "keras"], "--peers: keras: choose from plain, compiled, timm, lightning, none"),
        (["training", "--iterations", "0"], "--iterations: 0: must be a whole number, 1 or more"),
        (["evaluation", "--sizes", "10,x"], "--sizes: x: must be a whole number, 1 or more"),
        (["memory", "--modes", "none"], "--modes: none: choose from full, recompute_activations"),
    ],
)
def test_wrong_values_are_refused_with_what_is_right(
    bench: Callable[..., dict[str, Any]],
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        bench(tmp_path / "figures.json", *words)
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_every_analysis_is_timed_beside_its_limit() -> None:
    small = ["dataset=synthetic", "dataset.source.train=1000", "dataset.source.test=1000", "model.depth=8"]
    less = {"gradients": ["--images", "8", "--test-images", "8"], "landscape": ["--images", "8", "--points", "3"]}
    few = ["--images", "8"]
    less |= {"evaluate": [], "paths": [*few, "--draws", "8"], "shattering": ["--draws", "2"]}
    for name, words in analyses.ANALYSES.items():
        found = analyses.analysis_part(name, [*small, *words, *less.get(name, few)]).measure(60)
        assert found.get("within"), (name, found)
        assert found["limit"] == (1200 if name == "landscape" else 300)
        assert found["processor_seconds"] > 0.1
