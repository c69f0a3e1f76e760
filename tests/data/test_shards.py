"""Shards hold what the files held, and damaged ones are refused."""

import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from deepnets.config.compose import compose
from deepnets.data.class_folders import list_images
from deepnets.data.loading import Loading
from deepnets.data.shards import ABOUT, sharded
from deepnets.errors import UserError
from deepnets.training.assembly import dataset_of
from tests.command import ENVIRONMENT, ROOT
from tests.photographs import photograph_tree

pytestmark = pytest.mark.attack

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tree of files, and its shards."""
    files = photograph_tree(tmp_path_factory.mktemp("files"), classes=4, train=6, val=3)
    shards = tmp_path_factory.mktemp("shards")
    words = [sys.executable, "-m", "deepnets.data.shards", str(files), str(shards)]
    written = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    assert "24 images of 4 classes" in written.stdout
    return files, shards


@pytest.mark.nightly  # litdata takes a minute or two to write
@pytest.mark.skipif(find_spec("litdata") is None, reason="litdata reads shards")
def test_shards_hold_the_bytes_of_the_files_in_their_order(trees: tuple[Path, Path]) -> None:
    files, shards = trees
    for every in (1, 2):
        there, here = list_images(files / "train", 4, every), sharded(shards / "train", 4, every)
        assert torch.equal(here.labels, there.labels)
        assert (here.classes, here.fingerprint) == (there.classes, there.fingerprint)
        assert all(torch.equal(here.read(i), there.read(i)) for i in range(len(there)))
        chosen = torch.tensor([5, 0, 7])
        assert torch.equal(here.select(chosen).read(2), there.read(7))
        assert here.location(0).endswith("train_0000.JPEG")


@pytest.mark.nightly  # litdata takes a minute or two to write
@pytest.mark.skipif(find_spec("litdata") is None, reason="litdata reads shards")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_sees_the_same_batches_of_either(trees: tuple[Path, Path], workers: int) -> None:
    seen, contents = [], []
    for root in trees:
        words = ["classes=4", "size=32", "normalization=channel", f"workers={workers}", f"root={root}"]
        dataset = dataset_of(compose(["dataset=imagenet", *(f"dataset.{word}" for word in words)]).config)
        splits = dataset.load(CPU)
        assert splits.loading == Loading(workers, CPU, False)
        seen.append(list(dataset.training_batches(splits, batch_size=5, seed=1).epoch(3, start=1)))
        contents.append(splits.contents())
    assert contents[0] == contents[1]
    for (images, labels), (others, other_labels) in zip(*seen, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_some_classes_of_shards_are_the_data_set_that_those_of_files_are(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/longer.png", "c/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = list_images(tmp_path)
    np.savez(tmp_path / ABOUT, labels=files.labels.numpy(), names=files.names, classes=np.array(files.classes))
    for every in (1, 2):
        assert sharded(tmp_path, 3, every).fingerprint == list_images(tmp_path, 3, every).fingerprint


@pytest.mark.nightly  # litdata takes a minute or two to write
@pytest.mark.skipif(find_spec("litdata") is None, reason="litdata reads shards")
def test_damaged_shards_are_named(trees: tuple[Path, Path], tmp_path: Path) -> None:
    draw = random.Random(0)
    for number in range(40):
        folder = tmp_path / str(number)
        shutil.copytree(trees[1] / "train", folder)
        file = draw.choice(sorted(folder.iterdir()))
        content = bytearray(file.read_bytes())
        if number % 2:
            content = content[: draw.randrange(len(content))]
        else:
            for _ in range(20):
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        said = ""
        try:
            images = sharded(folder, 4, 1)
            for image in range(len(images)):
                images.decoded(image)
        except UserError as error:
            said = str(error)
        assert not said or (str(folder) in said and "\n" not in said)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.array([0, 5, 1])},
        {"labels": np.array([0.0, 1.0, 1.0])},
        {"labels": np.array([0, 1])},
        {"names": np.array([1, 2, 3])},
        {"classes": np.array(5)},
        None,
    ],
)
def test_what_describes_shards_is_checked(tmp_path: Path, change: dict[str, np.ndarray] | None) -> None:
    about = {"names": np.array([b"a", b"b", b"c"]), "labels": np.array([0, 1, 1]), "classes": np.array(["x", "y"])}
    np.savez(tmp_path / ABOUT, **about)
    assert len(sharded(tmp_path, 2, 1)) == 3
    if change is None:
        (tmp_path / ABOUT).write_bytes(b"no zip")
    else:
        np.savez(tmp_path / ABOUT, **{**about, **change})
    with pytest.raises(UserError, match="does not describe shards"):
        sharded(tmp_path, 2, 1)
