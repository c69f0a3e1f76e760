import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepnets.data.class_folders import tree
from deepnets.errors import UserError
from tests.command import ENVIRONMENT, ROOT

pytestmark = pytest.mark.attack

WriteTree = Callable[..., Path]


def test_images_and_labels_are_those_of_the_files(write_tree: WriteTree, digit_images: list[np.ndarray]) -> None:
    source = tree("x", write_tree(classes=3, train=4, test=2))
    assert (source.shape, source.classes, source.found.sizes) == ((1, 8, 8), ("0", "1", "2"), (12, 6))
    train, test = source.found.read()
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.array_equal(train.images[..., 0], np.concatenate([digit_images[c][:4] for c in range(3)]))
    assert np.array_equal(test.images[..., 0], np.concatenate([digit_images[c][4:6] for c in range(3)]))
    assert (train.images.dtype, train.labels.dtype) == (torch.uint8, torch.int64)


def test_several_folders_train_together(write_tree: WriteTree) -> None:
    folder = write_tree(classes=2, train=3, test=1)
    shutil.copytree(folder / "train", folder / "extra")
    source = tree("x", folder, training=("train", "extra"))
    assert source.found.sizes == (12, 2)
    assert source.found.read()[0].labels.tolist() == [0, 0, 0, 1, 1, 1] * 2


def test_hidden_and_foreign_files_are_ignored(write_tree: WriteTree) -> None:
    folder = write_tree()
    for name in ("train/.DS_Store", "train/0/.DS_Store", "train/0/._000.png", "test/1/Thumbs.db", "train/list.txt"):
        (folder / name).write_bytes(b"no image")
    (folder / "train" / ".hidden").mkdir()
    assert tree("x", folder).found.sizes == (12, 6)
    tree("x", folder).found.read()


def test_the_second_start_decodes_nothing_and_a_changed_file_decodes_again(write_tree: WriteTree) -> None:
    folder = write_tree()
    before = tree("x", folder).found.read()[0].images
    path = folder / "train" / "0" / "001.png"
    stat, content = path.stat(), path.read_bytes()
    path.write_bytes(b"x" * len(content))  # same size and time: only decoding could tell
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert torch.equal(tree("x", folder).found.read()[0].images, before)
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(path)
    after = tree("x", folder).found.read()[0].images
    others = [0, *range(2, 12)]
    assert (after[1] == 7).all()
    assert torch.equal(after[others], before[others])
    path.unlink()
    assert torch.equal(tree("x", folder).found.read()[0].images, before[others])


def test_size_scales_the_shorter_side_and_cuts_the_centre(write_tree: WriteTree) -> None:
    folder = write_tree(classes=1, train=1, test=1)
    wide = np.zeros((40, 80, 3), np.uint8)
    wide[:, :20], wide[:, 20:60], wide[:, 60:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    Image.fromarray(wide).save(folder / "train" / "0" / "000.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(folder / "test" / "0" / "001.png")
    source = tree("x", folder, size=10)
    assert source.shape == (3, 10, 10)
    for split in source.found.read():
        inner = split.images[0, 1:-1, 1:-1]  # at the edges the interpolation sees what is cut off
        assert inner.unique(dim=1).tolist() == [[[0, 255, 0]]] * 8  # the 40 x 40 in the middle are green


def test_two_sizes_are_cached_apart(write_tree: WriteTree) -> None:
    folder = write_tree()
    for size in (None, 4, None, 4):
        assert tree("x", folder, size=size).found.read()[0].images.shape[1:3] == (size or 8, size or 8)
    assert sorted(path.name for path in folder.glob("*.npz")) == ["deepnets-train-4.npz", "deepnets-train.npz"]


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "RGBA", "CMYK"])
def test_all_8_bit_modes_become_three_channels_in_a_coloured_tree(write_tree: WriteTree, mode: str) -> None:
    folder = write_tree(mode="RGB")
    path = folder / "test" / "2" / "005.png"
    path.unlink()
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path.with_suffix(".jpg" if mode == "CMYK" else ".png"))
    source = tree("x", folder)
    assert source.shape == (3, 8, 8)
    assert source.found.read()[1].images[-1].tolist() == [[[255, 255, 255]] * 8] * 8


def replace(folder: Path, name: str, image: Image.Image) -> Path:
    (folder / name).unlink()
    image.save(folder / name)
    return folder / name


def test_colour_in_a_greyscale_tree_is_refused_and_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    path = replace(folder, "train/2/001.png", Image.new("RGB", (8, 8)))
    with pytest.raises(UserError, match=rf"{path} has colours .* first image is greyscale"):
        tree("x", folder).found.read()


def test_more_than_8_bits_are_refused_and_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    path = replace(folder, "train/2/001.png", Image.fromarray(np.zeros((8, 8), np.uint16)))
    with pytest.raises(UserError, match=f"{path} has more than 8 bits"):
        tree("x", folder).found.read()


def test_the_odd_size_is_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    path = replace(folder, "test/1/004.png", Image.new("L", (9, 7)))
    with pytest.raises(UserError, match=rf"{path} is 9x7 .* data set 8x8.*dataset\.source\.size"):
        tree("x", folder).found.read()


@pytest.mark.parametrize("content", [b"", b"no image at all", None], ids=["empty", "text", "cut short"])
def test_an_unreadable_image_is_named(write_tree: WriteTree, content: bytes | None) -> None:
    folder = write_tree()
    for name in ("train/0/000.png", "test/2/005.png"):  # the first is opened for its shape, the last only decoded
        path = folder / name
        whole = path.read_bytes()
        path.write_bytes(whole[:60] if content is None else content)
        with pytest.raises(UserError, match=f"{path} is not a readable image"):
            tree("x", folder).found.read()
        path.write_bytes(whole)
    assert not list(folder.glob("*.npz"))


def test_a_link_to_nothing_is_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    (folder / "train" / "0" / "gone.png").symlink_to(folder / "nothing")
    with pytest.raises(UserError, match=r"gone\.png cannot be read"):
        tree("x", folder)


def test_missing_folders_are_named(write_tree: WriteTree, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"no folder {tmp_path}/nowhere/train.*dataset\.root=DIR"):
        tree("x", tmp_path / "nowhere")
    folder = write_tree()
    shutil.rmtree(folder / "test")
    with pytest.raises(UserError, match=f"no folder {folder}/test"):
        tree("x", folder)


def test_folders_without_classes_or_images_are_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    for path in (folder / "train" / "1").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=f"no images in {folder}/train/1"):
        tree("x", folder)
    shutil.rmtree(folder / "test")
    (folder / "test").mkdir()
    shutil.rmtree(folder / "train" / "1")
    with pytest.raises(UserError, match=f"{folder}/test has no class folders"):
        tree("x", folder)


def test_classes_that_differ_between_train_and_test_are_named(write_tree: WriteTree) -> None:
    folder = write_tree()
    (folder / "test" / "2").rename(folder / "test" / "two")
    with pytest.raises(UserError, match=r"differ between train/ and test/: 2, two"):
        tree("x", folder)


def test_a_known_set_with_too_few_classes_is_refused(write_tree: WriteTree) -> None:
    with pytest.raises(UserError, match="has 3 class folders, cifar10 has 10"):
        tree("cifar10", write_tree(), classes="abcdefghij")


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_that_is_not_positive_is_refused(write_tree: WriteTree, size: int) -> None:
    with pytest.raises(UserError, match=f"size={size} pixels"):
        tree("x", write_tree(), size=size)


def test_a_folder_among_images_is_refused_by_name(write_tree: WriteTree) -> None:
    folder = write_tree()
    (folder / "train" / "1" / "more").mkdir()
    with pytest.raises(UserError, match="train/1/more is a folder among the images"):
        tree("x", folder)


def test_a_pipe_that_is_called_like_an_image_is_refused_by_name(write_tree: WriteTree) -> None:
    folder = write_tree()
    os.mkfifo(folder / "test" / "0" / "pipe.png")
    with pytest.raises(UserError, match=r"test/0/pipe\.png is not a file"):
        tree("x", folder)


def save_deep(path: Path, kind: str) -> None:
    """An 8x8 image of 16 bits per channel, written by hand: Pillow cannot."""
    if kind == "ppm":
        path.write_bytes(b"P6 8 8 65535\n" + bytes(8 * 8 * 3 * 2))
        return
    rows = b"".join(b"\0" + bytes(8 * 3 * 2) for _ in range(8))
    parts = {b"IHDR": struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts.items())
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


@pytest.mark.parametrize("kind", ["png", "ppm"])
def test_colours_of_16_bits_are_refused_and_not_cut(write_tree: WriteTree, kind: str) -> None:
    folder = write_tree()
    for path in (folder / "train").rglob("*.png"):
        Image.open(path).convert("RGB").save(path)
    save_deep(folder / "train" / "2" / f"zzz.{kind}", kind)
    with pytest.raises(UserError, match=rf"zzz\.{kind} has more than 8 bits per channel"):
        tree("x", folder).found.read()


def test_images_are_turned_as_their_orientation_says(write_tree: WriteTree) -> None:
    folder = write_tree()
    path = folder / "train" / "0" / "000.png"
    pixels = np.array(Image.open(path))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    Image.fromarray(pixels).save(path, exif=exif)
    assert np.array_equal(tree("x", folder).found.read()[0].images[0, ..., 0], np.rot90(pixels, -1))


def test_the_first_picture_of_an_animated_file_is_used_and_said_once(
    write_tree: WriteTree, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tree()
    pictures = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200)]
    for name in ("x.gif", "y.gif"):
        pictures[0].save(folder / "test" / "0" / name, save_all=True, append_images=pictures[1:])
    for path in (*(folder / "train").rglob("*.png"), *(folder / "test").rglob("*.png")):
        Image.open(path).convert("RGB").save(path)
    test = tree("x", folder).found.read()[1]
    assert (test.images[2:4] == 10).all()
    assert capsys.readouterr().err.count("x.gif and 1 more are animated") == 1


@pytest.mark.slow  # starts processes
def test_processes_that_decode_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "image")
    code = f"from deepnets.data.decoding import *; decode([Path({str(pipe)!r})] * CHUNK * 2, (1, 8, 8), False)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, start_new_session=True
    )
    writer = None
    while writer is None and process.poll() is None:
        with suppress(OSError):  # until somebody reads it
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.02)
    assert writer is not None
    process.kill()
    try:
        process.communicate(timeout=20)  # until nobody holds its output
    finally:
        os.close(writer)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
