from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

WriteTree = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def digit_images() -> list[np.ndarray]:
    """For each of the ten classes its images (n, 8, 8) uint8."""
    digits = load_digits()
    return [(digits.images[digits.target == label] * 15).astype(np.uint8) for label in range(10)]


@pytest.fixture
def write_tree(tmp_path: Path, digit_images: list[np.ndarray]) -> WriteTree:
    """Writes real digits as a class-folder tree: `train` and `test` images of each class, as `mode`."""

    def write(name: str = "tree", classes: int = 3, train: int = 4, test: int = 2, mode: str = "L") -> Path:
        for label in range(classes):
            for split, first, count in (("train", 0, train), ("test", train, test)):
                folder = tmp_path / name / split / str(label)
                folder.mkdir(parents=True)
                for i in range(first, first + count):
                    Image.fromarray(digit_images[label][i]).convert(mode).save(folder / f"{i:03}.png")
        return tmp_path / name

    return write
