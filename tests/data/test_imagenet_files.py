import shutil
from pathlib import Path

import pytest
import torch

from deepnets.config.compose import compose
from deepnets.data.imagenet import ARCHIVES, PUBLISHED, ImageNet
from deepnets.errors import UserError
from deepnets.launch.local import Local
from deepnets.training.assembly import dataset_of, prepare
from deepnets.training.checks import check, check_settings
from deepnets.training.fit import fit
from tests.photographs import archives, photograph_tree

CPU = torch.device("cpu")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return photograph_tree(tmp_path / "tree", classes=4, train=3, val=2)


def dataset(root: Path, *overrides: str) -> ImageNet:
    words = ["model=imagenet_resnet18", "dataset=imagenet", f"dataset.root={root}", "dataset.workers=0", *overrides]
    found = dataset_of(compose(words).config)
    assert isinstance(found, ImageNet)
    return found


def test_a_tree_of_class_folders_is_read(tree: Path) -> None:
    images = dataset(tree, "dataset.classes=4", "dataset.size=32", "dataset.normalization=channel")
    assert (images.training_size, images.classes, images.shape) == (12, 4, (3, 32, 32))
    splits = images.load(CPU)
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert splits.train.location(3).endswith("train/n00000001/train_0000.JPEG")
    assert splits.contents() == {**splits.contents(), "train": 12, "test": 8}
    grey = torch.full((1, 32, 32, 3), 128, dtype=torch.uint8)
    wanted = (128 / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(splits.normalization(grey)[0, 0, 0], wanted, atol=1e-5)


def test_every_second_class_and_a_hold_out(tree: Path) -> None:
    images = dataset(tree, "dataset.classes=4", "dataset.every_class=2", "dataset.validation=2", "dataset.size=32")
    splits = images.load(CPU)
    assert (images.classes, images.training_size) == (2, 4)
    assert splits.train.classes == ("n00000000", "n00000002")
    assert sorted(splits.validation.labels.tolist()) == [0, 1]
    assert set(images.batches_to_evaluate(splits, batch_size=4)) == {"validation", "test"}


def test_the_view_of_the_result_is_evaluated_in_the_end_only(tree: Path) -> None:
    images = dataset(tree, "dataset.classes=4", "dataset.size=32", "dataset.view=ten_crop")
    batches = images.batches_to_evaluate(images.load(CPU), batch_size=20)
    assert {name: each.is_final for name, each in batches.items()} == {"test": False, "ten_crop": True}
    views, labels = next(iter(batches["ten_crop"]))
    assert (views[0].shape, len(labels)) == ((20, 3, 32, 32), 2)


def refused(root: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        dataset(root, *overrides).training_size  # noqa: B018
    return str(caught.value)


def test_what_is_wrong_with_a_tree_is_said(tree: Path, tmp_path: Path) -> None:
    assert "has 4 class folders, but 1000 are expected" in refused(tree)
    assert "dataset.classes=4" in refused(tree)
    assert "at least two of the 4 classes" in refused(tree, "dataset.classes=4", "dataset.every_class=3")
    shutil.rmtree(tree / "val" / "n00000002")
    assert "val has 3 class folders, but 4 are expected" in refused(tree, "dataset.classes=4")
    (tree / "val" / "other").mkdir()
    assert "no images in" in refused(tree, "dataset.classes=4")
    shutil.copy(tree / "train" / "n00000000" / "train_0000.JPEG", tree / "val" / "other")
    assert "differ between train/ and val/: n00000002, other" in refused(tree, "dataset.classes=4")
    shutil.rmtree(tree / "val")
    assert "has train/ but no val/: it is half copied" in refused(tree, "dataset.classes=4")
    assert "no images in" in refused(tmp_path / "nowhere", "dataset.classes=4")


def test_a_half_copied_imagenet_is_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for label in range(1000):
            (tmp_path / split / f"n{label:08}").mkdir(parents=True)
            (tmp_path / split / f"n{label:08}" / "a.JPEG").touch()
    assert "has 1,000 training and 1,000 validation images, ImageNet has 1,281,167 and 50,000" in refused(tmp_path)
    assert dataset(tmp_path, "dataset.incomplete=true").training_size == 1000
    assert dataset(tmp_path, "dataset.every_class=10").training_size == 100


def test_without_imagenet_the_settings_can_be_checked_and_the_data_cannot(tmp_path: Path) -> None:
    words = ["model=imagenet_resnet18", "dataset=imagenet", f"dataset.root={tmp_path}", "device=cpu"]
    config = compose(words).config
    found, iterations = check_settings(config)
    assert found.training_size == PUBLISHED[0]
    assert iterations == 164 * -(-PUBLISHED[0] // 128)
    assert "no images in" in found.source.found.missing
    with pytest.raises(UserError, match=r"no images in .* ILSVRC2012_img_train.tar"):
        check(config)


def test_the_official_archives_are_unpacked(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import imagenet
    from torchvision.datasets.utils import calculate_md5

    archives(tree, folder := tmp_path / "packed")
    images = dataset(folder, "dataset.size=32", "dataset.normalization=channel")
    assert images.training_size == PUBLISHED[0]  # as long as they are packed
    with pytest.raises(UserError, match=r"archives in .* cannot be unpacked: .*corrupted"):
        images.load(CPU)
    for key, name in zip(("devkit", "train", "val"), ARCHIVES, strict=True):  # ours have other checksums
        monkeypatch.setitem(imagenet.ARCHIVE_META, key, (name, calculate_md5(folder / name)))
    splits = dataset(folder, "dataset.size=32", "dataset.classes=4", "dataset.normalization=channel").load(CPU)
    assert splits.contents()["train"] == 12
    assert splits.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for label, wnid in enumerate(splits.train.classes):
        original = sorted(file.read_bytes() for file in (tree / "val" / wnid).iterdir())
        there = [i for i, y in enumerate(splits.test.labels.tolist()) if y == label]
        assert sorted(splits.test.read(i).numpy().tobytes() for i in there) == original


def test_a_plan_knows_what_reading_and_the_last_view_take(tree: Path) -> None:
    few = dataset(tree, "dataset.classes=4", "dataset.size=32", "dataset.view=ten_crop")
    shared = dataset(tree, "dataset.classes=4", "dataset.size=32", "dataset.workers=1000")
    assert 0 < 100 * shared.reading_seconds < few.reading_seconds < 1
    assert (few.final_passes, shared.final_passes) == (10, 0)


def test_decoding_on_a_gpu_is_refused_without_one(tree: Path) -> None:
    words = ["dataset.classes=4", "dataset.size=32", "dataset.decoder=gpu", "dataset.normalization=channel"]
    images = dataset(tree, *words)
    with pytest.raises(UserError, match=r"dataset.decoder=gpu: .* needs CUDA, and this run's device is cpu; .*=cpu$"):
        images.training_batches(images.load(CPU), batch_size=4, seed=0)
    row = compose(["model=imagenet_resnet18", "dataset=imagenet", f"dataset.root={tree}", "device=cpu", *words])
    with pytest.raises(UserError, match=r"dataset.decoder=gpu: "):
        Local(stacked=1, retry=None).check(row.config)


def test_resnet18_memorises_a_small_tree(tree: Path) -> None:
    words = ["model=imagenet_resnet18", "model.widths=[8,8,16,16]", "dataset=imagenet", f"dataset.root={tree}"]
    words += ["dataset.classes=4", "dataset.size=32", "dataset.crop=none", "dataset.flip=false", "dataset.lighting=0"]
    words += ["dataset.normalization=channel", "dataset.workers=0", "batch_size=12", "epochs=20", "optimizer.lr=0.05"]
    training = prepare(compose([*words, "schedule=cosine", "device=cpu"]).config, CPU, torch.float32)
    errors = [state.completed["train"].error for state in fit(training) if state.completed]
    assert (len(errors), errors[-1]) == (20, 0)
