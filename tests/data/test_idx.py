import gzip
from pathlib import Path

import numpy as np
import pytest

from deepnets.data.idx import find_idx, idx_shape, read_idx
from deepnets.errors import UserError

pytestmark = pytest.mark.attack

CONTENT = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes([1, 2, 3, 250, 5, 6])


def test_plain_and_gzipped_files_hold_the_same_array(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "b.gz").write_bytes(gzip.compress(CONTENT, mtime=0))
    for name in ("a", "b"):
        path = find_idx(tmp_path, name)
        assert idx_shape(path) == (2, 3)
        assert read_idx(path).tolist() == [[1, 2, 3], [250, 5, 6]]
        assert read_idx(path).dtype == np.uint8
    assert find_idx(tmp_path, "c") is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", CONTENT[:-1], r"holds 5 bytes where its header says \(2, 3\)"),
        ("long", CONTENT + b"x", r"holds 7 bytes where its header says \(2, 3\)"),
        ("page", b"<html>not found</html>", "is not an idx file"),
        ("empty", b"", "is not an idx file"),
        ("cut.gz", gzip.compress(CONTENT, mtime=0)[:-4], "is damaged"),
        ("wrong.gz", b"no gzip", "is damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        read_idx(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [CONTENT[:7], CONTENT[:10], bytes([0, 0, 8, 0]), bytes([0, 0, 8, 1]) + bytes(4)],
    ids=["half a size", "half of the sizes", "no dimensions", "nothing in it"],
)
def test_a_header_that_is_cut_short_or_empty_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match="x has an idx header that is cut short or holds nothing"):
        idx_shape(tmp_path / "x")
