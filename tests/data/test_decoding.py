import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepnets.data.decoding import cached, fingerprint
from deepnets.data.source import Split

pytestmark = pytest.mark.attack

TRAIN = Split(torch.arange(48, dtype=torch.uint8).view(4, 2, 2, 3), torch.tensor([0, 1, 2, 0]))
TEST = Split(torch.arange(12, dtype=torch.uint8).view(1, 2, 2, 3), torch.tensor([1]))


class Build:
    """Counts how often the slow part ran."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[Split, Split]:
        self.calls += 1
        return TRAIN, TEST


def assert_whole(splits: tuple[Split, Split]) -> None:
    for ours, expected in zip(splits, (TRAIN, TEST), strict=True):
        assert torch.equal(ours.images, expected.images)
        assert torch.equal(ours.labels, expected.labels)
        assert (ours.images.dtype, ours.labels.dtype) == (torch.uint8, torch.int64)


def test_second_start_reads_the_file(tmp_path: Path) -> None:
    build = Build()
    for _ in range(3):
        assert_whole(cached(tmp_path, "x.npz", "key", build))
    assert build.calls == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_another_key_builds_again_and_replaces_the_file(tmp_path: Path) -> None:
    build = Build()
    for key in ("a", "b", "b", "a"):
        assert_whole(cached(tmp_path, "x.npz", key, build))
    assert build.calls == 3


def flip_a_byte(content: bytes) -> bytes:
    at = content.index(TRAIN.images.numpy().tobytes()) + 20
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[: len(c) // 2], lambda c: b"x" * len(c), flip_a_byte], ids=range(4)
)
def test_a_damaged_file_is_built_again(tmp_path: Path, damage: object) -> None:
    build = Build()
    cached(tmp_path, "x.npz", "key", build)
    path = tmp_path / "x.npz"
    path.write_bytes(damage(path.read_bytes()))
    assert_whole(cached(tmp_path, "x.npz", "key", build))
    assert_whole(cached(tmp_path, "x.npz", "key", build))
    assert build.calls == 2


def test_a_folder_that_cannot_be_written_is_cached_at_home(tmp_path: Path) -> None:
    (tmp_path / "x.npz").mkdir()  # in the file's way; permissions do not bind root, who may run this test
    build = Build()
    for _ in range(2):
        assert_whole(cached(tmp_path, "x.npz", "key", build))
    assert build.calls == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    home = list((Path(os.environ["XDG_CACHE_HOME"]) / "deepnets").iterdir())
    assert len(home) == 1
    assert home[0].name.endswith("-x.npz")


def test_without_any_place_to_write_it_is_built_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "x.npz").mkdir()
    build = Build()
    for _ in range(2):
        assert_whole(cached(tmp_path, "x.npz", "key", build))
    assert build.calls == 2


@pytest.mark.slow
def test_processes_that_build_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
import torch
from deepnets.data.decoding import cached
from deepnets.data.source import Split

split = Split(torch.arange(300_000).remainder(251).to(torch.uint8).view(-1, 10, 10, 3), torch.arange(1000))
for key in "abababab":
    for part in cached(Path(sys.argv[1]), "x.npz", key, lambda: (split, split)):
        assert torch.equal(part.images, split.images) and torch.equal(part.labels, split.labels)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_fingerprint_depends_on_path_size_time_and_form_but_not_on_order() -> None:
    files = [("a", 1, 10), ("b", 2, 20)]
    keys = [
        fingerprint(changed, form)
        for changed, form in [
            (files, "8x8"),
            ([("c", 1, 10), ("b", 2, 20)], "8x8"),
            ([("a", 3, 10), ("b", 2, 20)], "8x8"),
            ([("a", 1, 11), ("b", 2, 20)], "8x8"),
            (files[:1], "8x8"),
            (files, "9x9"),
        ]
    ]
    assert len(set(keys)) == 6
    assert fingerprint(files[::-1], "8x8") == keys[0]
