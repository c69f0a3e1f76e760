import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest
from torch import Tensor, nn

from deepnets.data.augmentation import random_crop, views
from deepnets.data.class_folders import ImageFiles, list_images
from deepnets.data.imagenet import mean_image
from deepnets.data.loading import Loading, StreamedEvaluation, StreamedTraining, at_size
from deepnets.data.normalization import Normalization
from deepnets.distributed.world import ALONE, World
from deepnets.errors import UserError
from deepnets.training.fit import Sums, evaluate, logits_of
from tests.command import ENVIRONMENT, ROOT
from tests.photographs import jpeg, photograph_tree

CPU, SIZE = torch.device("cpu"), 32
HERE = Loading(0, CPU, skip_unreadable=False)
RAW = Normalization(torch.zeros(SIZE, SIZE, 3), torch.ones(SIZE, SIZE, 3))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photograph_tree(tmp_path_factory.mktemp("tree"), classes=2, train=7, val=6)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Two classes of four files each, of which one is cut off, one empty and one a text."""
    photograph_tree(tmp_path, classes=2, train=4, val=1)
    first, second = (tmp_path / "train" / name for name in ("n00000000", "n00000001"))
    whole = (first / "train_0001.JPEG").read_bytes()
    (first / "train_0001.JPEG").write_bytes(whole[: len(whole) // 2])
    (first / "train_0002.JPEG").write_bytes(b"")
    (second / "train_0003.JPEG").write_bytes(b"no image")
    return tmp_path


def files(tree: Path, split: str = "train") -> ImageFiles:
    return list_images(tree / split)


def training(tree: Path, world: World = ALONE, loading: Loading = HERE, **changes: float) -> StreamedTraining:
    settings = {"lights": 0.1, "jitter": 0.4, "batch_size": 4, "seed": 3} | changes
    return StreamedTraining(files(tree), RAW, random_crop("aspect_ratio", SIZE, True), loading, world=world, **settings)


def whole(batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("kind", ["RGB", "L", "CMYK", "EXIF"])
def test_files_are_read_as_pillow_and_torchvision_read_them(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "n0"
    place.mkdir()
    (place / "a.JPEG").write_bytes(content := jpeg(0, 1, kind))
    read = list_images(tmp_path).decoded(0).permute(1, 2, 0).numpy()
    assert np.array_equal(read, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


def test_an_epoch_holds_each_image_once_in_an_order_of_seed_and_epoch(tree: Path) -> None:
    same = nn.Identity()  # of images of several sizes; the first pixel says which it is
    batches = StreamedTraining(
        files(tree), RAW, lambda image: same(image[:, :SIZE, :SIZE]), HERE, lights=0, jitter=0, batch_size=4, seed=3
    )
    assert (len(batches), batches.images_in(3)) == (4, 2)
    epochs = [whole(batches.epoch(epoch)) for epoch in (0, 1, 0)]
    keys = [[tuple(x.flatten().tolist()) for x in images] for images, _ in epochs]
    everything = {tuple(files(tree).decoded(i)[:, :SIZE, :SIZE].float().flatten().tolist()) for i in range(14)}
    assert set(keys[0]) == set(keys[1]) == everything
    assert keys[0] == keys[2] != keys[1]
    order = np.random.default_rng((3, 0)).permutation(14)
    assert torch.equal(epochs[0][1], files(tree).labels[order])


def test_processes_share_the_same_batches(tree: Path) -> None:
    alone = list(training(tree).epoch(0))
    parts = [list(training(tree, World(rank, 2)).epoch(0)) for rank in range(2)]
    for batch, (images, labels) in enumerate(alone):
        assert torch.equal(images, torch.cat([part[batch][0] for part in parts]))
        assert torch.equal(labels, torch.cat([part[batch][1] for part in parts]))


def test_workers_and_a_later_start_change_no_pixel(tree: Path) -> None:
    images, labels = whole(training(tree).epoch(2))
    others = whole(training(tree, loading=replace(HERE, workers=2)).epoch(2))
    assert torch.equal(images, others[0])
    assert torch.equal(labels, others[1])
    resumed = training(tree)
    assert torch.equal(images[8:], whole(resumed.epoch(2, start=2))[0])
    assert resumed.share.parts == [slice(0, 2)]
    assert not torch.equal(images, whole(training(tree, seed=4).epoch(2))[0])


def test_workers_are_children_whatever_starts_processes_by_default(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", get_context("forkserver"))
    assert len(whole(training(tree, loading=replace(HERE, workers=1)).epoch(0))[1]) == 14


def test_reading_here_draws_nothing_from_the_generator_of_the_run(tree: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    whole(training(tree).epoch(0))
    assert torch.equal(before, torch.get_rng_state())


def test_lighting_moves_all_pixels_of_an_image_by_one_colour(tree: Path) -> None:
    scaled = Normalization(RAW.mean, RAW.scale * 2)
    with_light, without = training(tree), training(tree, lights=0)
    with_light.normalization = without.normalization = scaled
    moved = whole(with_light.epoch(0))[0] - whole(without.epoch(0))[0]
    assert moved.std((2, 3)).max() < 1e-3
    assert 1 < moved.abs().max() < 2 * 255 * 0.1 * 5


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named(damaged: Path, workers: int) -> None:
    with pytest.raises(UserError, match=r"n0000000\d/train_000\d.JPEG is not a readable image .*skip_unreadable=true"):
        whole(training(damaged, loading=replace(HERE, workers=workers)).epoch(0))


def test_an_image_of_16_bits_a_channel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n0").mkdir()
    Image.fromarray(np.full((40, 40), 40_000, np.uint16)).save(tmp_path / "n0" / "a.png")
    with pytest.raises(UserError, match=r"a.png is not a readable image \(it has more than 8 bits per channel\)"):
        list_images(tmp_path).decoded(0)


def test_unreadable_images_are_skipped_and_counted_when_asked(damaged: Path, capsys: pytest.CaptureFixture) -> None:
    loading = Loading(2, CPU, skip_unreadable=True)
    images, labels = whole(training(damaged, loading=loading).epoch(0))
    assert len(images) == 8
    # In place of 1 and 2 stands 3; behind 7, the last, comes 0.
    assert labels.bincount().tolist() == [5, 3]
    said = capsys.readouterr().err
    assert said.count("cannot be read; skipped") == 3
    assert "(3 so far)" in said
    evaluated = StreamedEvaluation(files(damaged), RAW, "center", SIZE, loading, batch_size=4)
    assert whole(iter(evaluated))[1].tolist() == [0, 0, 0, 0, 1, 1, 1, 0]
    assert "skipped" not in capsys.readouterr().err


def test_a_training_set_without_a_readable_image_is_an_error(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "x.JPEG").write_bytes(b"")
    with pytest.raises(UserError, match="not a readable image"):
        whole(training(tmp_path, loading=Loading(0, CPU, skip_unreadable=True)).epoch(0))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_evaluation_sees_every_image_once_in_as_many_batches(tree: Path, size: int) -> None:
    parts = [
        StreamedEvaluation(files(tree, "val"), RAW, "center", SIZE, HERE, batch_size=2, world=World(rank, size))
        for rank in range(size)
    ]
    assert len({len(list(part)) for part in parts} | {len(part) for part in parts}) == 1
    labels = [label for part in parts for _, y in part for label in y.tolist()]
    assert labels == files(tree, "val").labels.tolist()


class Net(nn.Module):
    """Small, of images of any size, neither linear nor blind for mirroring."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 8, 5, 3), nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x / 64 - 2).relu().mean((2, 3)))


def slow_scores(model: nn.Module, image: Tensor, view: str) -> Tensor:
    """One view after the other, the mean of their probabilities."""
    seen = [one for same in views(view, SIZE)(image) for one in same]
    return sum(model(one[None].float()).softmax(1)[0] for one in seen) / len(seen)


@pytest.mark.parametrize(("view", "count"), [("center", 1), ("center_320", 1), ("ten_crop", 10), ("multi_scale", 10)])
def test_errors_of_a_view_are_those_of_a_slow_reference(tree: Path, view: str, count: int) -> None:
    model, val = Net().eval(), files(tree, "val")
    with torch.no_grad():
        slow = torch.stack([slow_scores(model, val.decoded(i), view) for i in range(len(val))])
        batches = StreamedEvaluation(val, RAW, view, SIZE, HERE, batch_size=5)
        seen = [(logits_of(model, x, len(y)), y) for x, y in batches]
    logits = torch.cat([scores for scores, _ in seen])
    assert torch.allclose(logits.softmax(1), slow, atol=1e-5)
    sums = Sums(CPU, top=batches.top)
    for _ in evaluate(model, batches, sums, torch.float32):
        pass
    ranks = (slow.argsort(1, descending=True) == val.labels[:, None]).int().argmax(1)
    assert sums.mean().error == pytest.approx(100 * (ranks > 0).float().mean().item())
    assert sums.mean().top_error == pytest.approx(100 * (ranks > 4).float().mean().item())
    assert sum(len(one) for same in [views(view, SIZE)(val.decoded(0))] for one in same) == count


def test_the_mean_image_is_that_of_the_centre_crops(tree: Path) -> None:
    crops = [views("center", SIZE)(files(tree).decoded(i))[0][0].double() for i in range(14)]
    wanted = torch.stack(crops).mean(0).permute(1, 2, 0)
    assert torch.allclose(mean_image(files(tree), SIZE, HERE), wanted)


def test_a_mean_image_is_scaled_to_larger_views() -> None:
    slope = torch.arange(SIZE, dtype=torch.float32)[None, :, None].expand(SIZE, SIZE, 3).contiguous()
    larger = at_size(Normalization(slope, torch.ones(SIZE, SIZE, 3)), 48, 64)
    assert larger.mean.shape == larger.scale.shape == (48, 64, 3)
    assert torch.allclose(larger.mean[0, 2:-2, 0].diff(), torch.tensor(0.5))


def test_a_pipe_is_refused_and_not_waited_for(tree: Path, tmp_path: Path) -> None:
    photograph_tree(tmp_path, 2, 1, 1)
    os.mkfifo(tmp_path / "train" / "n00000000" / "pipe.JPEG")
    with pytest.raises(UserError, match=r"pipe.JPEG is not a file"):
        files(tmp_path)


@pytest.mark.parametrize("place", ["train/n00000000/loop.JPEG", "train/n00000002"])
def test_a_link_to_itself_is_refused(tmp_path: Path, place: str) -> None:
    photograph_tree(tmp_path, 2, 1, 1)
    (tmp_path / place).symlink_to(tmp_path / place)
    with pytest.raises(UserError, match=rf"{Path(place).name} (is not a file|cannot be read|is no folder)"):
        files(tmp_path)


def test_colours_are_drawn_evenly_for_each_image(tree: Path) -> None:
    """Of a grey image only its brightness changes; the factors lie within `jitter` of 1, and each image has its own."""
    grey = lambda image: torch.full((3, SIZE, SIZE), 100, dtype=torch.uint8)  # noqa: E731
    batches = StreamedTraining(files(tree), RAW, grey, HERE, lights=0, jitter=0.4, batch_size=14, seed=3)
    factors = torch.cat([whole(batches.epoch(epoch))[0][:, 0, 0, 0] / 100 for epoch in range(20)])
    assert len(factors.unique()) == len(factors)
    assert kstest(factors.numpy(), "uniform", (0.6, 0.8)).pvalue > 1e-3


def test_a_device_that_decodes_sees_the_same_images(tree: Path, damaged: Path) -> None:
    """Here the CPU stands for it. Where torchvision refuses a batch as a whole, its images are decoded one by one."""
    there = Loading(0, CPU, skip_unreadable=True, decoder="gpu")
    for root, workers in ((tree, 0), (tree, 2), (damaged, 0)):
        images, labels = whole(training(root, loading=replace(HERE, skip_unreadable=True)).epoch(0))
        others = whole(training(root, loading=replace(there, workers=workers)).epoch(0))
        assert torch.equal(images, others[0])
        assert torch.equal(labels, others[1])
    for view in ("ten_crop", "multi_scale"):
        here, at_device = (
            [x for xs, _ in StreamedEvaluation(files(tree, "val"), RAW, view, SIZE, one, batch_size=20) for x in xs]
            for one in (HERE, there)
        )
        assert all(torch.equal(*pair) for pair in zip(here, at_device, strict=True))


@pytest.mark.slow
def test_torchvisions_farewell_to_its_decoders_is_not_printed(tree: Path) -> None:
    """Also where all warnings are asked for."""
    code = (
        "import sys, torch; from pathlib import Path; from deepnets.data.augmentation import views; "
        "from deepnets.data.loading import *; from deepnets.data.class_folders import list_images; "
        "images = Views(list_images(Path(sys.argv[1])), views('center', 32), Loading(0, torch.device('cpu'), False)); "
        "print(len(list(loaded(images, [np.arange(2)]))))"
    )
    words = [sys.executable, "-W", "default", "-c", code, str(tree / "train")]
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
    assert "TorchVision" not in done.stderr


def occupied() -> tuple[list[int], int]:
    """Bytes of this process and of its workers, and this one's open files."""
    processes = [os.getpid(), *sorted(child.pid for child in active_children())]
    pages = [int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in processes]
    return [page * os.sysconf("SC_PAGE_SIZE") for page in pages], len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.nightly
def test_memory_is_steady_over_5000_batches(tree: Path) -> None:
    """That of this process and of its workers after 500 batches and after nearly all."""
    images = files(tree).select(torch.arange(20_000) % 14)
    loading = replace(HERE, workers=2)
    batches = StreamedTraining(
        images, RAW, random_crop("aspect_ratio", SIZE, True), loading, lights=0.1, jitter=0.4, batch_size=4, seed=0
    )
    seen = []
    for number, _ in enumerate(batches.epoch(0), 1):
        if number in (500, 4990):
            seen.append(occupied())
    assert number == 5000
    ((early, opened), (late, opened_late)) = seen
    assert len(early) == len(late) == 3
    print([(before >> 20, after >> 20) for before, after in zip(early, late, strict=True)], opened, opened_late)
    assert all(after - before < 4 << 20 for before, after in zip(early, late, strict=True)), seen
    assert opened_late <= opened + 4
