"""A checkpoint is whole or refused."""

import random
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import LAST

pytestmark = pytest.mark.attack


def state(value: float) -> dict:
    return {"weights": torch.full((50, 40), value), "iteration": int(value), "history": [{"epoch": 1, "loss": 0.5}]}


def saved_twice(folder: Path) -> None:
    checkpoint.save(folder, state(1))
    checkpoint.save(folder, state(2))


def test_the_last_one_is_loaded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded["iteration"] == 2
    assert torch.equal(loaded["weights"], torch.full((50, 40), 2.0))
    assert damaged == {}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_without_checkpoint_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path) == (None, {})


@pytest.mark.parametrize("kept", [0, 1, 100, 4000, -1])
def test_a_truncated_one_is_told_and_the_previous_used(tmp_path: Path, kept: int) -> None:
    saved_twice(tmp_path)
    file = tmp_path / checkpoint.LAST
    file.write_bytes(file.read_bytes()[:kept])
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded["iteration"] == 1
    assert list(damaged) == ["checkpoint.pt"]


@pytest.mark.slow
def test_no_flipped_bit_changes_what_is_loaded(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    file = tmp_path / checkpoint.LAST
    whole = file.read_bytes()
    draw = random.Random(0)
    refused = 0
    for position in draw.sample(range(len(whole)), 1500):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << draw.randrange(8)
        file.write_bytes(flipped)
        loaded, damaged = checkpoint.load(tmp_path)
        refused += bool(damaged)
        expected = 1 if damaged else 2
        assert loaded["iteration"] == expected
        assert torch.equal(loaded["weights"], torch.full((50, 40), float(expected)))
        assert loaded["history"] == [{"epoch": 1, "loss": 0.5}]
    assert refused > 1000  # the rest hit padding between the records


def test_two_damaged_ones_leave_nothing(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    for name in (checkpoint.LAST, checkpoint.PREVIOUS):
        (tmp_path / name).write_bytes(b"damaged")
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded is None
    assert len(damaged) == 2


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_checkpoints(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    program = (
        "import resource, signal, sys, torch, pathlib\n"
        "from deepnets.runs import checkpoint\n"
        "from deepnets.errors import UserError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    checkpoint.save(pathlib.Path(sys.argv[1]), {'weights': torch.zeros(1_000_000)})\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout
    assert "what was there before is intact" in done.stdout
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert checkpoint.load(tmp_path)[0]["iteration"] == 2


def test_what_is_no_file_is_damage(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    (tmp_path / checkpoint.LAST).unlink()
    (tmp_path / checkpoint.LAST).mkdir()
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded["iteration"] == 1
    assert damaged == {"checkpoint.pt": "it is not a file"}


def test_a_link_is_damage_and_not_followed(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    (tmp_path / checkpoint.LAST).rename(tmp_path / "elsewhere.pt")
    for target in ("elsewhere.pt", "gone.pt", "/dev/urandom"):
        (tmp_path / checkpoint.LAST).symlink_to(target)
        loaded, damaged = checkpoint.load(tmp_path)
        assert loaded["iteration"] == 1
        assert "is a link, which is not followed" in damaged["checkpoint.pt"]
        (tmp_path / checkpoint.LAST).unlink()


def test_a_pickle_of_something_else_is_damage_and_not_called(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    torch.save({"weights": Path("/")}, tmp_path / checkpoint.LAST)
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded["iteration"] == 1
    assert "pathlib" in damaged["checkpoint.pt"]


def test_a_state_that_is_not_as_it_must_be_is_damage(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    loaded, damaged = checkpoint.load(tmp_path, lambda state: "too late" if state["iteration"] > 1 else None)
    assert loaded["iteration"] == 1
    assert damaged == {"checkpoint.pt": "too late"}


def nested(times: int) -> list:
    value: list = []
    for _ in range(times):
        value = [value, value]
    return value


def repacked(file: Path, change: Callable[[zipfile.ZipFile, zipfile.ZipInfo, bytes], None]) -> None:
    """Write the archive again, each entry by `change`."""
    with zipfile.ZipFile(file) as archive:
        entries = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(file, "w") as archive:
        for entry, content in entries:
            change(archive, entry, content)


@pytest.mark.slow
def test_a_state_that_no_code_could_walk_through_is_damage(tmp_path: Path) -> None:
    for state in ({"history": nested(25)}, {"history": nested(40)}):
        torch.save(state, tmp_path / LAST)
        began = time.monotonic()
        state, damaged = checkpoint.load(tmp_path)
        assert state is None
        assert "its state has more than 10,000,000 values" in damaged[LAST]
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1).expand(10**6, 10**6),
        torch.zeros(3, device="meta"),
        torch.zeros(3).to_sparse(),
    ],
)
def test_a_value_that_no_run_saves_is_damage(tmp_path: Path, value: object) -> None:
    saved_twice(tmp_path)
    torch.save({"training": {"model": {"weight": value}}, "iteration": 2}, tmp_path / LAST)
    loaded, damaged = checkpoint.load(tmp_path)
    assert loaded["iteration"] == 1
    assert damaged[LAST].startswith("it has a")
    assert "\n" not in damaged[LAST]


@pytest.mark.parametrize(
    "pickle",
    [b"\x80\x02K\x01)R.", b"\x80\x02.", b"\x80\x02K\x01", b"\x80\x02}}b.", b"\x80\x02h\x05.", b"\x80\x02C\x01a."],
)
def test_a_pickle_that_torch_does_not_write_is_damage(tmp_path: Path, pickle: bytes) -> None:
    def changed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, content: bytes) -> None:
        archive.writestr(entry.filename, pickle if entry.filename.endswith("data.pkl") else content)

    saved_twice(tmp_path)
    repacked(tmp_path / LAST, changed)
    loaded, damaged = checkpoint.load(tmp_path, lambda state: None if isinstance(state, dict) else "no state")
    assert loaded["iteration"] == 1
    assert "\n" not in damaged[LAST]


@pytest.mark.parametrize("named", [b"__builtin__\nbytearray", b"_codecs\nencode"])
def test_a_pickle_that_fills_memory_is_not_executed(tmp_path: Path, named: bytes) -> None:
    def changed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, content: bytes) -> None:
        bomb = b"\x80\x02c" + named + b"\nJ\xff\xff\xff\x7f\x85R."
        archive.writestr(entry.filename, bomb if entry.filename.endswith("data.pkl") else content)

    checkpoint.save(tmp_path, state(1))
    repacked(tmp_path / LAST, changed)
    name = named.decode().splitlines()[1]
    assert checkpoint.load(tmp_path) == (None, {LAST: f"it names {name}, which is no data of a run"})


def test_an_archive_that_torch_does_not_write_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compressed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, content: bytes) -> None:
        archive.writestr(entry.filename, content + bytes(10**7), zipfile.ZIP_DEFLATED)

    checkpoint.save(tmp_path, {"weights": torch.zeros(3)})
    assert checkpoint.damage_of(tmp_path / LAST) is None
    monkeypatch.setattr(checkpoint, "memory_size", lambda: 100)
    assert checkpoint.damage_of(tmp_path / LAST) == "it is larger than the memory of this machine"
    monkeypatch.setattr(checkpoint, "LONGEST_PICKLE", 10)
    assert checkpoint.damage_of(tmp_path / LAST) == "its data.pkl takes more than 10 bytes"
    monkeypatch.setattr(checkpoint, "MOST_ENTRIES", 1)
    assert "entries, a checkpoint has at most 1" in checkpoint.damage_of(tmp_path / LAST)
    monkeypatch.undo()
    repacked(tmp_path / LAST, compressed)
    assert checkpoint.damage_of(tmp_path / LAST) == "it is compressed, which no checkpoint is"
