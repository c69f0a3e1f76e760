"""Building, checking, running and loading within one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from deepnets.config.compose import register, typed
from deepnets.config.project import CONF
from deepnets.config.schema import Config
from deepnets.errors import UserError
from deepnets.run import build_model, load_run
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import Locked, RunFolder
from deepnets.training.checks import check

SMALL = ["model.depth=8", "model.widths=[4,8,16]", "epochs=2", "precision=fp32", "device=cpu"]


def config(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("train", list(overrides)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.freeze(config(*SMALL), Origin())
    run(folder)
    return folder


def test_a_loaded_run_makes_the_errors_of_its_result(trained: RunFolder) -> None:
    model, loaded = load_run(trained.path)
    assert loaded.model["depth"] == 8
    assert not model.training
    digits = load_digits()
    train, test, _, labels = train_test_split(
        digits.images, digits.target, test_size=360, random_state=0, stratify=digits.target
    )
    images = torch.tensor((test - train.mean()) / train.std(), dtype=torch.float32)[:, None]
    with torch.inference_mode():
        wrong = (model(images).argmax(1) != torch.tensor(labels)).float().mean().item()
    assert 100 * wrong == pytest.approx(trained.result.test_error)
    assert trained.result.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_same_run_gives_the_same_numbers(trained: RunFolder, tmp_path: Path) -> None:
    again = RunFolder(tmp_path)
    again.freeze(config(*SMALL), Origin())
    changing = ("seconds", "images_per_second")
    first, second = (result.model_dump(exclude={*changing}) for result in (trained.result, run(again)))
    assert first == second


def test_a_finished_run_is_returned_without_training(trained: RunFolder) -> None:
    before = {file: file.stat().st_mtime_ns for file in trained.path.iterdir()}
    assert run(trained) == trained.result
    assert {file: file.stat().st_mtime_ns for file in trained.path.iterdir()} == before


def test_a_model_is_built_for_data_that_are_elsewhere() -> None:
    model = build_model(["model=resnet20", "dataset=cifar100", "dataset.root=/nowhere"])
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    assert sum(parameter.numel() for parameter in model.parameters()) == 275_572


def test_the_seed_makes_the_weights() -> None:
    one, same, other = (build_model([f"seed={seed}"]).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["stem.0.weight"], other["stem.0.weight"])


def test_a_run_that_blows_up_in_its_last_update_has_diverged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.freeze(config(*SMALL, "optimizer.lr=1e30", "epochs=null", "iterations=1"), Origin())
    result = run(folder)
    assert result.status == "diverged"
    assert result.test_error is None


def test_a_run_diverges_at_the_same_iteration_every_time(tmp_path: Path) -> None:
    ends = set()
    for number in range(2):
        folder = RunFolder(tmp_path / str(number))
        folder.freeze(config(*SMALL, "optimizer.lr=1e30", "batch_size=4"), Origin())
        ends.add(run(folder).iterations)
    assert ends == {50}


@pytest.mark.parametrize(
    ("shift", "brightness", "message"), [(1, 15, "train 12 then, 13 now"), (0, 14, r"images \d+ then")]
)
def test_a_run_does_not_continue_on_other_data(tmp_path: Path, shift: int, brightness: int, message: str) -> None:
    settings = [*SMALL[:2], "dataset=image_folder", "batch_size=4", "epochs=1", "checkpoint_seconds=0", "device=cpu"]
    digits = load_digits()
    for place, more, factor in (("a", 0, 15), ("b", shift, brightness)):
        for split in ("train", "test"):
            for label in (0, 1):
                folder = tmp_path / place / "pets" / split / str(label)
                folder.mkdir(parents=True)
                for number in range(6 + more * label):
                    image = digits.images[digits.target == label][number] * factor
                    Image.fromarray(image.astype(np.uint8)).save(folder / f"{number}.png")
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config(*settings, f"dataset.root={tmp_path}/a/pets"), Origin())
    run(folder)
    (folder.path / "result.json").unlink()
    folder.freeze(config(*settings, f"dataset.root={tmp_path}/b/pets"), Origin())
    with pytest.raises(UserError, match=f"began on other data .* {message}.* overwrite=true"):
        run(folder)


def test_a_folder_without_checkpoint_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        load_run(tmp_path)
    seed = RunFolder(tmp_path / "row" / "seed0")
    seed.freeze(config(), Origin())
    for above in (tmp_path, tmp_path / "row"):
        with pytest.raises(UserError, match=f"no config.yaml in it.; name one below it, as {seed}$"):
            load_run(above)
    with pytest.raises(UserError, match="no checkpoint to load"):
        load_run(seed.path)


def test_a_grid_does_not_hand_its_threads_to_the_next_row(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    results = []
    for number, threads in enumerate(("threads=2", "threads=null")):
        folder = RunFolder(tmp_path / str(number))
        folder.freeze(config(*SMALL, threads), Origin())
        results.append(run(folder).threads)
    assert results == [2, before]


def test_who_finds_a_folder_taken_writes_nothing_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.freeze(config(*SMALL, "device=cuda:77"), Origin())  # which would be a failure of one's own run
    with folder.hold(), pytest.raises(Locked):
        run(folder)
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(UserError, match="not on this machine"):
        run(folder)
    assert folder.result.status == "failed"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+model.dropping=0.5"], "model: unknown key 'dropping'"),
        (["model.depth=deep"], r"model\.depth: got 'deep'"),
        (["optimizer.lr=-1"], r"optimizer\.lr: got -1"),
        (["dataset.pad=x"], r"dataset\.pad: got 'x'"),
        (["schedule.milestones=[5,4]"], r"schedule: milestones \[5, 4\] of 164: must rise"),
        (["batch_size=5000"], "larger than the training set of 1437 images"),
        (["evaluation_batch_size=0"], "evaluation_batch_size: got 0; must be at least 1"),
        (["log_iterations=0"], "log_iterations: got 0; must be at least 1"),
        (["threads=0"], "threads: got 0; must be at least 1"),
        (["dataset.validation=1437"], "validation=1437: hold out 0 to 1436"),
        (["epochs=null"], "set one of them"),
        (["iterations=5"], "set one of them"),
        (["seed=-1"], "seed: got -1; must be at least 0"),
        ([f"seed={2**63}"], "seed: got .*; must be below"),
        (["schedule=he_warmup", "epochs=30"], "warmup_iterations=400: the budget is only 360 iterations"),
        (["batch_size=4", "model.widths=[4,8,16,32]", "model.depth=10"], "a batch of 1 images leaves one image alone"),
        (
            ["model.widths=[4,8,16,32]", "model.depth=10", "model.batchnorm_images=2", "batch_size=13"],
            "one image alone",
        ),
        (["checkpoint_seconds=nan"], "checkpoint_seconds: got nan; must be a finite number"),
        (["dataset.root=null"], r"dataset\.root: got None"),
        (["dataset.source=null"], r"dataset\.source: got None"),
        (["epochs=0"], "epochs: got 0; must be at least 1"),
        (["optimizer.lr=fast"], r"optimizer\.lr: got 'fast'"),
        (["device=cuda:77"], "not on this machine, which has: cpu"),
        (["device=abacus"], "not the name of a device"),
        (["device=meta"], "not on this machine, which has: cpu"),
        (["selection=best_validation"], "needs a validation split"),
        (
            ["dataset=imagenet", "dataset.view=ten_crop", "dataset.validation=9", "selection=best_validation"],
            "dataset.view=ten_crop is tested in the last epoch only",
        ),
        (["model=highway_fc10", "model/shortcut=highway_batchnorm_b6"], "model: its layers.* do not fit together"),
        (["model=thin_crelu", "model/shortcut=highway_b2"], "model: its layers.* do not fit together"),
        (["model.layer=[linear,relu]"], "model: its layers.* do not fit together"),
    ],
)
def test_what_cannot_run_is_refused_by_the_check(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(config(*overrides))
