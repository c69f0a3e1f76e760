"""What a run tells: it is complete, and telling it does not change the run."""

import csv
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deepnets.config.schema import Config
from deepnets.runs.contents import Result
from deepnets.runs.folder import RunFolder
from deepnets.runs.log import Log
from deepnets.runs.record import describe_result, protocol_of_training
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training, fit
from tests.command import row

# Dropout draws random numbers in training, gates are observed by a pass of their own.
RUN = ["model.depth=8", "model.widths=[4,4,4]", "model/shortcut=exclusive_gating_b6", "epochs=4", "batch_size=512"]
RUN += ["log_iterations=2", "device=cpu", "precision=fp32", "model/survival=uniform"]


@pytest.fixture(scope="module")
def config() -> Config:
    return row("/nowhere", *RUN).config


def training_of(config: Config) -> Training:
    return prepare(config, torch.device("cpu"), torch.float32)


def follow(
    folder: Path, config: Config, training: Training, history: list[Any], observed: list[Any], until: int
) -> dict[str, Any]:
    """Log the run up to that iteration, as if it were killed there; returns what a checkpoint would hold."""
    with Log(RunFolder(folder), training, config, history, observed, 0.0) as log:
        for state in fit(training):
            log.iteration(state)
            if state.completed:
                log.epoch(state)
            if state.iteration == until and (state.completed or until % len(training.batches)):
                break
    return deepcopy({"training": training.state_dict(), "history": history, "observed": observed})


@pytest.fixture(scope="module")
def logged(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training, dict[str, Any]]:
    folder, training = tmp_path_factory.mktemp("logged"), training_of(config)
    return folder, training, follow(folder, config, training, [], [], until=12)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_console_shows_what_changed_in_the_protocol(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, slower = "protocol: sgd (lr 0.1, momentum 0.9), batches of 8, 9 epochs", "sgd (lr 0.01, momentum 0.9)"
    lines = [first, first, f"protocol: {slower}, batches of 8, 9 epochs", f"{first}, clipped", first]
    changes = [f"protocol: as before, but {slower}", "protocol: as before, but sgd (lr 0.1, momentum 0.9), clipped"]
    monkeypatch.setattr("deepnets.runs.log.PROTOCOLS", [])
    with Log(RunFolder(tmp_path), training_of(config), config, [], [], 0.0) as log:
        for line in lines:
            log.protocol(line)
    assert capsys.readouterr().out.splitlines() == [first, *changes, first]
    assert (tmp_path / "log.txt").read_text().splitlines() == lines


def test_logging_does_not_change_the_training(config: Config, logged: tuple[Path, Training, dict[str, Any]]) -> None:
    silent = training_of(config)
    for _ in fit(silent):
        pass
    for name, weight in silent.model.state_dict().items():
        assert torch.equal(logged[1].model.state_dict()[name], weight), name


def test_tensorboard_holds_the_numbers_of_metrics_csv(logged: tuple[Path, Training, dict[str, Any]]) -> None:
    folder, _, _ = logged
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    curves = scalars(folder)
    assert [int(row["iteration"]) for row in rows] == [3, 6, 9, 12]
    names = {
        **{f"{what}/{split}": f"{split}_{what}" for what in ("loss", "error") for split in ("train", "test")},
        "schedule/learning_rate": "learning_rate",
        "speed/images_per_second": "images_per_second",
    }
    for tag, column in names.items():
        expected = [(int(row["iteration"]), pytest.approx(float(row[column]), rel=1e-6)) for row in rows]
        assert curves[tag] == expected, tag
    assert [step for step, _ in curves["loss/iteration"]] == [2, 4, 6, 8, 10, 12]
    assert {tag.split("/")[0] for tag in curves} == {"loss", "error", "schedule", "speed", "gradients", "gates"}


def test_curves_of_the_units_are_what_the_checkpoint_keeps(logged: tuple[Path, Training, dict[str, Any]]) -> None:
    folder, _, saved = logged
    curves, observed = scalars(folder), saved["observed"]
    assert [entry["epoch"] for entry in observed] == [1, 2, 3, 4]
    expected = {
        "gradients/first_unit": [entry["gradients"][0] for entry in observed],
        "gradients/last_unit": [entry["gradients"][2] for entry in observed],
        "gates/lowest_unit": [min(entry["gates"]) for entry in observed],
        "gates/mean": [sum(entry["gates"]) / 3 for entry in observed],
        "gates/highest_unit": [max(entry["gates"]) for entry in observed],
    }
    for tag, values in expected.items():
        assert curves[tag] == [(3 * i, pytest.approx(value, rel=1e-6)) for i, value in enumerate(values, 1)], tag
    assert all(0.001 < gate < 0.01 for entry in observed for gate in entry["gates"])  # sigmoid(-6) is 0.0025


@pytest.mark.parametrize(("saved_at", "killed_at"), [(6, 6), (6, 8), (8, 8), (8, 10)])
def test_a_continued_run_shows_what_an_undisturbed_one_does(
    config: Config, logged: tuple[Path, Training, dict[str, Any]], tmp_path: Path, saved_at: int, killed_at: int
) -> None:
    first = training_of(config)
    saved = follow(tmp_path, config, first, [], [], until=saved_at)
    history, observed = saved["history"], saved["observed"]
    if killed_at > saved_at:  # what is logged beyond the checkpoint must not show
        time.sleep(1.1)
        again = training_of(config)
        again.load_state_dict(deepcopy(saved["training"]))
        follow(tmp_path, config, again, list(history), list(observed), until=killed_at)
    time.sleep(1.1)  # event files are read in the order of the second in their name
    second = training_of(config)
    second.load_state_dict(saved["training"])
    ended = follow(tmp_path, config, second, history, observed, until=12)
    assert ended["observed"] == logged[2]["observed"]
    ours, theirs = scalars(tmp_path), scalars(logged[0])
    del ours["speed/images_per_second"], theirs["speed/images_per_second"]
    assert ours == theirs


def test_units_are_observed_about_twenty_times_and_in_the_first_and_last_epoch(tmp_path: Path) -> None:
    config = row("/nowhere", *RUN[:3], "epochs=45", "batch_size=50", "device=cpu", "dataset=synthetic").config
    config.dataset["source"] |= {"train": 50, "test": 20, "size": 8, "channels": 1}
    observed: list[dict[str, Any]] = []
    follow(tmp_path, config, training_of(config), [], observed, until=45)
    assert [entry["epoch"] for entry in observed] == [1, *range(3, 46, 3)]


def test_an_epoch_continued_behind_its_last_batch_tells_no_gradients(tmp_path: Path, config: Config) -> None:
    first, second = training_of(config), training_of(config)
    next(state for state in fit(first) if state.batch == len(state.batches))
    second.load_state_dict(first.state_dict())
    for parameter in second.model.parameters():  # as rows that are stacked have them from the start
        parameter.grad = torch.zeros_like(parameter)
    observed: list[dict[str, Any]] = []
    with Log(RunFolder(tmp_path), second, config, [], observed, 0.0) as log:
        log.epoch(next(state for state in fit(second) if state.completed))
    assert [entry["gradients"] for entry in observed] == [[]]


@pytest.mark.parametrize(("batch_size", "devices", "images"), [(128, 1, 64), (96, 1, 48), (32, 1, 32), (128, 4, 64)])
def test_the_protocol_tells_over_how_many_images_is_normalised(batch_size: int, devices: int, images: int) -> None:
    changes = ["model.batchnorm_images=64", f"batch_size={batch_size}", f"devices={devices}"]
    config = row("/nowhere", *RUN, *changes).config
    assert f", normalised over {images} images," in protocol_of_training(config, training_of(config))


def test_the_end_of_a_diverged_run_tells_how_far_it_came() -> None:
    result = Result(status="diverged", selection="best_validation", last_test_error=61.5, epochs=38, seconds=62.0)
    assert describe_result(result) == "diverged: last test error 61.50% after 38 epochs in 1:02 (no epoch timed)"
    assert "diverged: in epoch 38 in 1:02" in describe_result(result.model_copy(update={"last_test_error": None}))


def test_a_run_counts_its_share_of_the_time(config: Config, tmp_path: Path) -> None:
    with Log(RunFolder(tmp_path), training_of(config), config, [], [], 10.0, own_seconds=4.0) as log:
        assert log.times() == pytest.approx({"seconds": 10, "own_seconds": 4}, abs=0.5)
        log.share(2)
        log.started -= 60
        log.share(1)
        log.started -= 20
        assert log.times() == pytest.approx({"seconds": 90, "own_seconds": 54}, abs=0.5)
    with Log(RunFolder(tmp_path), training_of(config), config, [], [], 10.0) as log:
        assert log.times().keys() == {"seconds"}
