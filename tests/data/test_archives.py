"""The official format in small: torchvision, files and server are real, only the published checksums are replaced."""

import gzip
import hashlib
import pickle
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torchvision

from deepnets.data import archives
from deepnets.data.archives import Archive, find_idx, idx_shape, official, read_idx
from deepnets.data.source import DataFiles
from deepnets.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 10, 3, 32, 32), dtype=np.uint8)  # batch, image, C, H, W
LABELS = np.arange(60).reshape(6, 10) % 7
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
# An idx file of the array [[1, 2, 3], [250, 5, 6]]
IDX = bytes([0, 0, 8, 2]) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes([1, 2, 3, 250, 5, 6])
DEAD = "http://127.0.0.1:9/cifar-10-python.tar.gz"  # nothing listens there


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds a small cifar-10-python.tar.gz, which torchvision takes for the published one."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "published"
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name, pixels, labels in zip(BATCHES, PIXELS, LABELS, strict=True):
        (inner / name).write_bytes(pickle.dumps({"data": pixels.reshape(10, -1), "labels": labels.tolist()}))
    (inner / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    sums = [[name, md5(inner / name)] for name in BATCHES]
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(inner, "cifar-10-batches-py")
    cifar = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", sums[:5])
    monkeypatch.setattr(cifar, "test_list", sums[5:])
    monkeypatch.setattr(cifar, "meta", cifar.meta | {"md5": md5(inner / "batches.meta")})
    monkeypatch.setattr(cifar, "tgz_md5", md5(folder / "cifar-10-python.tar.gz"))
    return folder


@pytest.fixture
def server(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address under which `packed` is published."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=packed))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{http.server_port}/cifar-10-python.tar.gz"
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", url)
    yield url
    http.shutdown()
    http.server_close()


def cifar(root: Path, url: str = DEAD) -> DataFiles:
    archive = Archive(
        "cifar10",
        url,
        "CIFAR10",
        train=({"train": True},),
        test=({"train": False},),
        files=("cifar-10-batches-py",),
        packed="cifar-10-python.tar.gz",
    )
    return official(archive, root, (50, 10))


def assert_read(source: DataFiles) -> None:
    train, test = source.read()
    assert np.array_equal(train.images, PIXELS[:5].reshape(50, 3, 32, 32).transpose(0, 2, 3, 1))
    assert np.array_equal(test.images, PIXELS[5].transpose(0, 2, 3, 1))
    assert train.labels.tolist() == LABELS[:5].ravel().tolist()
    assert test.labels.tolist() == LABELS[5].tolist()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_an_unpacked_archive_is_read(packed: Path) -> None:
    assert_read(cifar(packed))


def test_a_packed_archive_is_unpacked_without_network(packed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (packed / "cifar-10-python.tar.gz").rename(root / "cifar-10-python.tar.gz")
    assert_read(cifar(root))
    assert names(root) == {"cifar-10-python.tar.gz", "cifar-10-batches-py", "deepnets-cifar10-50.npz"}


def test_an_absent_archive_is_known_and_downloaded_once_it_is_read(server: str, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    absent = cifar(root, server)
    assert (absent.sizes, absent.missing) == ((50, 10), f"no cifar10 in {root}: training would first download {server}")
    assert not root.exists()
    assert_read(cifar(root, server))
    assert names(root) == {"cifar-10-batches-py", "deepnets-cifar10-50.npz"}
    assert cifar(root, DEAD).missing is None
    assert_read(cifar(root, DEAD))


def test_the_second_start_needs_no_torchvision(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar(packed).read()
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", None)
    assert_read(cifar(packed))


def test_two_threads_that_download_at_once_both_read(server: str, tmp_path: Path) -> None:
    sources: list[DataFiles] = []
    threads = [threading.Thread(target=lambda: sources.append(cifar(tmp_path / "root", server))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sources) == 2
    for source in sources:
        assert_read(source)


def test_without_network_nothing_is_left_and_the_message_says_what_to_do(packed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(UserError) as raised:
        cifar(root).read()
    for part in (str(root), DEAD, "refused", "cifar-10-python.tar.gz", "cifar10/{train,test}", "dataset.root=DIR"):
        assert part in str(raised.value)
    assert not root.exists()


def test_a_host_that_does_not_answer_is_given_up(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archives.PATIENCE < 5
    monkeypatch.setattr(archives, "PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        with pytest.raises(UserError, match=r"no answer within 0\.3 s|timed out"):
            cifar(tmp_path / "root", f"http://127.0.0.1:{silent.getsockname()[1]}/").read()
        assert time.monotonic() - begin < 20


def test_a_download_that_is_not_the_published_file_leaves_nothing(
    server: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(UserError, match=f"downloading {server} failed"):
        cifar(tmp_path / "root", server).read()
    assert names(tmp_path / "root") == set()


def test_a_damaged_packed_archive_is_named(packed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-10-python.tar.gz").write_bytes((packed / "cifar-10-python.tar.gz").read_bytes()[:-10])
    with pytest.raises(UserError, match=rf"{root}/cifar-10-python\.tar\.gz is damaged .*delete it"):
        cifar(root).read()
    assert names(root) == {"cifar-10-python.tar.gz"}


def test_damaged_unpacked_files_are_refused_even_after_a_good_start(packed: Path) -> None:
    cifar(packed).read()
    with (packed / "cifar-10-batches-py" / "data_batch_3").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=f"cifar10 is damaged .*delete {packed}/cifar-10-batches-py"):
        cifar(packed).read()


@pytest.mark.attack
def test_plain_and_gzipped_files_hold_the_same_array(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(IDX)
    (tmp_path / "b.gz").write_bytes(gzip.compress(IDX, mtime=0))
    for name in ("a", "b"):
        path = find_idx(tmp_path, name)
        assert idx_shape(path) == (2, 3)
        assert read_idx(path).tolist() == [[1, 2, 3], [250, 5, 6]]
        assert read_idx(path).dtype == np.uint8
    assert find_idx(tmp_path, "c") is None


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", IDX[:-1], r"holds 5 bytes where its header says \(2, 3\)"),
        ("long", IDX + b"x", r"holds 7 bytes where its header says \(2, 3\)"),
        ("page", b"<html>not found</html>", "is not an idx file"),
        ("empty", b"", "is not an idx file"),
        ("cut.gz", gzip.compress(IDX, mtime=0)[:-4], "is damaged"),
        ("wrong.gz", b"no gzip", "is damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        read_idx(tmp_path / name)


@pytest.mark.attack
@pytest.mark.parametrize(
    "content",
    [IDX[:7], IDX[:10], bytes([0, 0, 8, 0]), bytes([0, 0, 8, 1]) + bytes(4)],
    ids=["half a size", "half of the sizes", "no dimensions", "nothing in it"],
)
def test_a_header_that_is_cut_short_or_empty_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match="x has an idx header that is cut short or holds nothing"):
        idx_shape(tmp_path / "x")
