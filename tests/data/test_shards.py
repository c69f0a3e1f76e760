"""Shards hold what the files held. Without litdata, which reads them, these tests are skipped."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepnets.config.compose import compose
from deepnets.data.decoding import Loading
from deepnets.data.image_files import listed
from deepnets.data.shards import sharded
from deepnets.training.assembly import dataset_of
from tests.command import ENVIRONMENT, ROOT
from tests.photographs import photograph_tree

pytest.importorskip("litdata")
pytestmark = pytest.mark.nightly  # litdata takes a minute or two to write

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


def test_shards_hold_the_bytes_of_the_files_in_their_order(trees: tuple[Path, Path]) -> None:
    files, shards = trees
    for every in (1, 2):
        there, here = listed(files / "train", 4, every), sharded(shards / "train", 4, every)
        assert torch.equal(here.labels, there.labels)
        assert (here.classes, here.fingerprint) == (there.classes, there.fingerprint)
        assert all(torch.equal(here.read(i), there.read(i)) for i in range(len(there)))
        chosen = torch.tensor([5, 0, 7])
        assert torch.equal(here.select(chosen).read(2), there.read(7))
        assert here.name(0).endswith("train_0000.JPEG")


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
