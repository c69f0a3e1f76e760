"""Weights of log-spaced iterations, which `keep_checkpoints=N` keeps in the run folder."""

import csv
import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepnets.commands.clean import clean
from deepnets.commands.export import main as export
from deepnets.config.identity import identity
from deepnets.distributed.world import ALONE
from deepnets.errors import UserError
from deepnets.launch.local import run_together
from deepnets.run import load_classifier, load_run
from deepnets.runs import checkpoint
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.resume import Execution, session
from deepnets.runs.weights import kept_files, kept_iterations, read_state
from deepnets.training.assembly import dataset_of, prepare, splits_of
from deepnets.training.fit import fit
from tests.analyzing import analyze
from tests.command import row

BUDGET = ["dataset=synthetic", "dataset.source.train=160", "dataset.source.test=20", "epochs=2", "batch_size=16"]
BUDGET += ["precision=fp32", "device=cpu", "threads=1"]
RUN = [*BUDGET, "model.widths=[2,2,2]", "model.depth=8"]
FEW = "keep_checkpoints=4"
KEPT = [1, 3, 7, 20]  # 20 iterations, each 2.7 times the one before


def frozen(path: Path, *overrides: str) -> RunFolder:
    folder = RunFolder(path)
    folder.freeze(row(path.parent, *overrides).config, Origin())
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = frozen(tmp_path_factory.mktemp("kept") / "seed0", *RUN, FEW)
    run(folder)
    return folder


def weights(folder: RunFolder) -> dict[str, Tensor]:
    return checkpoint.load(folder.path)[0]["training"]["model"]


def assert_equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    ("count", "iterations", "kept"),
    [
        (1, 20, [20]),
        (2, 20, [1, 20]),
        (4, 64_000, [1, 40, 1600, 64_000]),
        (5, 20, [1, 2, 4, 9, 20]),
        (8, 9, [1, 2, 3, 4, 5, 6, 7, 9]),
        (12, 9, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_iterations_are_log_spaced_and_different(count: int, iterations: int, kept: list[int]) -> None:
    assert kept_iterations(count, iterations) == kept


def test_the_files_hold_the_weights_of_their_iterations(trained: RunFolder) -> None:
    assert list(kept_files(trained.path)) == KEPT
    training = prepare(trained.config, torch.device("cpu"), torch.float32)
    for state in fit(training):
        if state.iteration in KEPT and state.model.training:
            assert_equal(read_state(kept_files(trained.path)[state.iteration]), state.model.state_dict())
    assert_equal(read_state(kept_files(trained.path)[20]), weights(trained))


def test_they_change_neither_the_run_nor_its_identity(trained: RunFolder, tmp_path: Path) -> None:
    plain = frozen(tmp_path / "seed0", *RUN)
    run(plain)
    assert not kept_files(plain.path)
    assert identity(plain.config) == identity(trained.config)
    assert plain.result
    assert trained.result
    assert plain.result.weights_sha256 == trained.result.weights_sha256
    assert plain.check(trained.config) == plain.config, "the same command with keep_checkpoints finds the same run"


def test_a_resumed_run_keeps_what_is_there_and_writes_the_rest(trained: RunFolder, tmp_path: Path) -> None:
    folder = frozen(tmp_path / "seed0", *RUN, FEW)
    with ExitStack() as held:
        opened = held.enter_context(session(folder, folder.config))
        assert opened
        execution = Execution(folder, folder.config, ALONE, opened, held, None)
        execution.begin()
        for state in fit(execution.training):
            execution.note()
            if state.iteration == 7:
                execution.save()
                break
        execution.logging.close()
    assert list(kept_files(folder.path)) == [1, 3, 7]
    before = {iteration: file.stat() for iteration, file in kept_files(folder.path).items()}
    run(folder)
    after = {iteration: file.stat() for iteration, file in kept_files(folder.path).items()}
    assert list(after) == KEPT
    for iteration, stat in before.items():
        assert (after[iteration].st_ino, after[iteration].st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    for iteration, file in kept_files(folder.path).items():
        assert_equal(read_state(file), read_state(kept_files(trained.path)[iteration]))


SELECTED = [*RUN, "dataset.validation=40", "selection=best_validation", "epochs=6", "optimizer.lr=0.3"]


def epochs(folder: RunFolder) -> list[dict[str, str]]:
    with (folder.path / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = frozen(tmp_path_factory.mktemp("selected") / "row" / "seed0", *SELECTED)
    run(folder)
    best = min(epochs(folder), key=lambda epoch: float(epoch["validation_error"]))
    assert folder.result.selected_epoch == int(best["epoch"]) < 6, "the last epoch is another one"
    return folder


def test_selection_by_validation_keeps_the_weights_of_the_result(
    selected: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (iteration,) = kept_files(selected.path)
    assert epochs(selected)[selected.result.selected_epoch - 1]["iteration"] == str(iteration)
    test = splits_of(dataset_of(selected.config), torch.device("cpu")).test
    errors = []
    for chosen in (None, iteration):
        classifier = load_classifier(selected.path, iteration=chosen)
        predicted = classifier.predict(test.images).argmax(1)
        errors.append(100 * (predicted != test.labels).double().mean().item())
    assert errors == pytest.approx([selected.result.last_test_error, selected.result.test_error])
    last, epoch = len(epochs(selected)) * 8, selected.result.selected_epoch
    told = (
        f"weights of iteration {last}, the last; the result is of epoch {epoch}, whose weights --iteration {iteration} "
        f"takes (in Python, iteration={iteration})"
    )
    assert told in capsys.readouterr().out

    assert export([str(selected.path), "--to", str(tmp_path), "--iteration", str(iteration)]) == 0
    card = (tmp_path / "README.md").read_text()
    error = selected.result.test_error
    assert f"test error in percent after epoch {epoch}, selected by validation: {error:.2f} %" in card
    assert_equal(load_run(tmp_path)[0].state_dict(), load_run(selected.path, iteration=iteration)[0].state_dict())


@pytest.mark.parametrize("ended", [8, 16, 24, 32, 40])
def test_a_resumed_run_keeps_the_weights_that_validation_selects(
    selected: RunFolder, tmp_path: Path, ended: int
) -> None:
    folder = frozen(tmp_path / "seed0", *SELECTED)
    with ExitStack() as held:
        opened = held.enter_context(session(folder, folder.config))
        execution = Execution(folder, folder.config, ALONE, opened, held, None)
        execution.begin()
        for state in fit(execution.training):
            execution.note()
            if state.iteration == ended and state.completed:
                execution.save()
            if state.iteration == ended + 7:
                break  # killed
        execution.logging.close()
    run(folder)
    assert list(kept_files(folder.path)) == list(kept_files(selected.path))
    for file in kept_files(folder.path).values():
        assert_equal(read_state(file), read_state(selected.path / file.name))


def test_runs_trained_at_once_keep_the_weights_that_validation_selects(tmp_path: Path) -> None:
    folders = [frozen(tmp_path / f"seed{seed}", *SELECTED, FEW, f"seed={seed}") for seed in (0, 1)]
    run_together(folders)
    for folder in folders:
        chosen = int(epochs(folder)[folder.result.selected_epoch - 1]["iteration"])
        assert sorted({*kept_iterations(4, 48), chosen}) == list(kept_files(folder.path))
    assert_equal(read_state(kept_files(folders[0].path)[48]), weights(folders[0]))


def test_an_export_of_other_weights_has_no_card(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(trained.path), "--to", str(tmp_path)]
    assert export(words) == 0
    assert (tmp_path / "README.md").is_file()
    assert export([*words, "--iteration", "3"]) == 0
    assert not (tmp_path / "README.md").exists()
    assert "card         not written: " in capsys.readouterr().out
    assert_equal(load_run(tmp_path, iteration=3)[0].state_dict(), load_run(trained.path, iteration=3)[0].state_dict())


def test_runs_trained_at_once_keep_their_own(tmp_path: Path) -> None:
    net = [*BUDGET, "model=highway_fc10", "model.depth=4", "model.width=4", "optimizer=sgd", FEW]
    folders = [frozen(tmp_path / f"seed{seed}", *net, f"seed={seed}") for seed in (0, 1)]
    run_together(folders)
    for folder in folders:
        assert list(kept_files(folder.path)) == KEPT
        assert_equal(read_state(kept_files(folder.path)[20]), weights(folder))
    first, second = (read_state(kept_files(folder.path)[7])["head.weight"] for folder in folders)
    assert not torch.equal(first, second)


def test_one_of_them_is_loaded_and_another_iteration_refused(trained: RunFolder, tmp_path: Path) -> None:
    assert_equal(
        load_run(trained.path, iteration=3)[0].state_dict(), read_state(trained.path / "weights.3.safetensors")
    )
    with pytest.raises(UserError, match="no weights of iteration 2 are kept; choose from 1, 3, 7, 20"):
        load_run(trained.path, iteration=2)
    copy = RunFolder(shutil.copytree(trained.path, tmp_path / "seed0"))
    shutil.copy(copy.path / "weights.3.safetensors", copy.path / "weights.2.safetensors")
    with pytest.raises(UserError, match=r"weights.2.safetensors: holds weights of iteration 3; restore"):
        load_run(copy.path, iteration=2)
    for file in kept_files(copy.path).values():
        file.unlink()
    with pytest.raises(UserError, match="no weights of iteration 3 are kept; train it with keep_checkpoints=N"):
        load_run(copy.path, iteration=3)


@pytest.mark.attack
def test_a_flipped_bit_in_a_weight_is_named(trained: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(trained.path, tmp_path / "seed0"))
    file = copy.path / "weights.3.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for read in (lambda: load_run(copy.path, iteration=3), lambda: read_state(file)):
        with pytest.raises(UserError, match=r"weights.3.safetensors: is damaged: .*checksum"):
            read()


@pytest.mark.slow
def test_an_analysis_is_drawn_over_training(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--images", "16", "--test-images", "16", "--output", tmp_path]
    assert analyze("gradients", trained.path, "--iteration", "20,1", *options) == 0
    with (tmp_path / "gradients_units.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] == "1"]
    assert [(row["run"].partition(",")[2], row["time"]) for row in rows] == [
        ("iteration 1", "initial"),
        ("iteration 1", "trained"),
        ("iteration 20", "trained"),
    ]
    initial, early, late = (float(row["gradient_norm"]) for row in rows)
    assert initial != early != late
    assert json.loads((tmp_path / "gradients.json").read_text())["changed"] == ["iteration", "images", "test_images"]
    assert "will replace" not in capsys.readouterr().out
    assert analyze("gradients", trained.path, *options) == 0
    told = (
        f"gradients: will replace the results in {tmp_path} with other options: --iteration 20,1 then, not given now\n"
    )
    assert told in capsys.readouterr().out
    assert json.loads((tmp_path / "gradients.json").read_text())["changed"] == ["images", "test_images"]
    with (tmp_path / "gradients_units.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["unit"] == "1"][-1]
    assert float(last["gradient_norm"]) == late, "the last iteration is the checkpoint's"
    with pytest.raises(UserError, match="--iteration 1: weights are kept only in run folders"):
        analyze("gradients", *RUN, "--iteration", "1", *options)
    with pytest.raises(UserError, match="--iteration 1,3: this analysis takes one network; name one iteration"):
        analyze("gates", trained.path, "--iteration", "1,3", "--output", tmp_path)


@pytest.mark.parametrize("keep_weights", [True, False])
def test_clean_lists_them_and_keep_weights_leaves_them(
    trained: RunFolder, tmp_path: Path, keep_weights: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunFolder(shutil.copytree(trained.path, tmp_path / "runs" / "row" / "seed0"))
    (copy.path / "result.json").rename(tmp_path / "result.json")
    assert clean([copy.path], remove=True, keep_weights=keep_weights) == 0
    assert list(kept_files(copy.path)) == KEPT, "those of an unfinished run stay"
    (tmp_path / "result.json").rename(copy.path / "result.json")
    assert clean([copy.path], remove=False, keep_weights=False) == 0
    assert "weights of chosen iterations of finished runs (4)" in capsys.readouterr().out
    assert clean([copy.path], remove=True, keep_weights=keep_weights) == 0
    assert list(kept_files(copy.path)) == (KEPT if keep_weights else [])
    assert not (copy.path / checkpoint.LAST).exists()
