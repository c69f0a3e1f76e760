"""What a file system may leave of a run folder when the power goes: every such state resumes to the same bits.

A training's writes, renames, removals and fsyncs are traced. A state is any instant of the trace at which, of what no
fsync has covered, a random part is on disk: names in any subset of their changes, contents old, new, cut off, zero or
mixed by blocks, as ext4, XFS or btrfs may leave them and worse.
"""

import hashlib
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

from deepnets.runs import checkpoint
from deepnets.runs.checkpoint import load_checked
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.status import read_state
from tests.command import metrics, row

pytestmark = pytest.mark.attack

RUN = [
    "dataset=synthetic",
    "dataset.source.train=64",
    "dataset.source.test=20",
    "model.widths=[2,2,2]",
    "batch_size=16",
]
RUN += ["epochs=3", "checkpoint_seconds=0", "threads=1", "device=cpu"]
BLOCK = 512
traces: list["Trace"] = []  # that are being recorded; a hook of Python's cannot be taken off again


@dataclass
class Instant:
    """What is in the folder, and what was made durable just before: an inode, or None."""

    names: dict[str, int]
    contents: dict[int, bytes | None]  # None: a folder
    durable: int | None = None


@dataclass
class Trace:
    """The instants between which at most one name changes, and what was promised by which of them."""

    root: Path
    instants: list[Instant] = field(default_factory=list)
    promises: dict[int, Any] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    def note(self, durable: int | None = None) -> None:
        with self.lock:  # the heartbeat is another thread's
            with suppress(FileNotFoundError):
                self._note(durable)
                return
            self._note(durable)

    def _note(self, durable: int | None) -> None:
        names, contents = {}, {}
        for path in sorted(self.root.rglob("*")):
            inode = path.stat().st_ino
            names[str(path.relative_to(self.root))] = inode
            contents[inode] = None if path.is_dir() else path.read_bytes()
        if self.instants:  # most contents stay: one copy of each
            before = self.instants[-1].contents
            contents = {
                inode: before[inode] if before.get(inode) == c is not None else c for inode, c in contents.items()
            }
        self.instants.append(Instant(names, contents, durable))

    def promise(self, what: Any) -> None:
        self.note()
        self.promises[len(self.instants) - 1] = what

    def promised(self, at: int) -> Any:
        """The last promise by that instant."""
        return next((self.promises[index] for index in range(at, -1, -1) if index in self.promises), None)


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if traces and event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"):
        trace, place = traces[-1], arguments[0]
        is_read = event == "open" and isinstance(arguments[2], int) and not arguments[2] & (os.O_CREAT | os.O_WRONLY)
        if isinstance(place, str | Path) and str(place).startswith(str(trace.root)) and not is_read:
            trace.note()


@contextmanager
def traced(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    trace, fsync, save = Trace(root), os.fsync, checkpoint.save

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        trace.note(os.fstat(descriptor).st_ino)

    def noted_save(folder: Path, state: dict[str, Any]) -> None:
        save(folder, state)
        trace.promise((state["training"]["iteration"], digest(state)))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(checkpoint, "save", noted_save)
    sys.addaudithook(hook)
    traces.append(trace)
    yield trace
    traces.remove(trace)
    trace.note()
    monkeypatch.undo()


def digest(state: dict[str, Any]) -> str:
    weights = b"".join(weight.numpy().tobytes() for weight in state["training"]["model"].values())
    return hashlib.sha256(weights).hexdigest()


def changes(before: Instant, after: Instant) -> list[tuple[str, int | None]]:
    """What became of names: an inode, or gone. A rename is both at once."""
    gone = [(name, None) for name in before.names.keys() - after.names.keys()]
    return gone + [(name, inode) for name, inode in after.names.items() if before.names.get(name) != inode]


class Disk:
    """What may be on disk at an instant of a trace."""

    def __init__(self, trace: Trace, at: int, draw: random.Random) -> None:
        self.draw, self.at = draw, trace.instants[at]
        self.names: dict[str, int] = {}  # durable
        self.contents: dict[int, bytes | None] = {}
        self.pending: list[list[tuple[str, int | None]]] = []
        self.unsure: dict[int, list[bytes]] = {}  # contents since the last fsync
        before = Instant({}, {})
        for instant in trace.instants[: at + 1]:
            if changed := changes(before, instant):
                self.pending.append(changed)
            for inode, content in instant.contents.items():
                if content is not None and before.contents.get(inode) is not content:
                    self.unsure.setdefault(inode, [b""]).append(content)
            if instant.durable is not None:
                self._sync(instant, instant.durable, trace.root)
            before = instant

    def _sync(self, instant: Instant, inode: int, root: Path) -> None:
        if instant.contents.get(inode) is not None:
            self.contents[inode] = instant.contents[inode]
            self.unsure[inode] = [instant.contents[inode] or b""]
            return
        folder = next((name for name, number in instant.names.items() if number == inode), "")
        still = []
        for change in self.pending:
            if os.path.dirname(change[0][0]) == folder:
                self._apply(change)
            else:
                still.append(change)
        self.pending = still

    def _apply(self, change: list[tuple[str, int | None]]) -> None:
        for name, inode in change:
            if inode is None:
                self.names.pop(name, None)
            else:
                self.names[name] = inode

    def write(self, to: Path) -> None:
        """Leave one of the possible states in a folder."""
        orderly = self.draw.random() < 0.5  # a journal keeps the order of names
        count = self.draw.randint(0, len(self.pending))
        for index, change in enumerate(self.pending):
            if index < count if orderly else self.draw.random() < 0.5:
                self._apply(change)
        for name, inode in sorted(self.names.items()):
            if not (to / name).parent.is_dir():
                continue
            if self.at.contents.get(inode, b"") is None:
                (to / name).mkdir(exist_ok=True)
            else:
                (to / name).write_bytes(self._content(inode))

    def _content(self, inode: int) -> bytes:
        versions = self.unsure.get(inode, [b""])
        old, new = versions[0], self.draw.choice(versions)
        kind = self.draw.choice(["old", "new", "cut", "zero", "mixed"]) if len(versions) > 1 else "old"
        if kind in ("old", "new"):
            return old if kind == "old" else new
        if kind == "cut":
            return new[: self.draw.randint(0, len(new))]
        if kind == "zero":
            return bytes(len(new))
        blocks = [
            self.draw.choice([old[start : start + BLOCK], new[start : start + BLOCK], bytes(BLOCK)])
            for start in range(0, len(new), BLOCK)
        ]
        return b"".join(blocks)[: len(new)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Of a run from its freezing to its result; the folder stays as the undisturbed reference."""
    root = tmp_path_factory.mktemp("undisturbed")
    config = row(root, *RUN).config
    with pytest.MonkeyPatch.context() as monkeypatch, traced(root, monkeypatch) as recorded:
        folder = RunFolder(root / "sweep" / "row" / "seed0")
        folder.freeze(config, Origin())
        recorded.promise((0, ""))
        result = run(folder)
        recorded.promise(("ended", ""))
    assert result.iterations == 12
    return recorded


def check(trace: Trace, states: int, resumes: int, place: Path, seed: int = 0) -> None:
    reference = RunFolder(trace.root / "sweep" / "row" / "seed0")
    weights = {what[0]: what[1] for what in trace.promises.values()}
    draw, seen = random.Random(seed), set()
    for number in range(states):
        at = draw.randrange(len(trace.instants))
        root = place / str(number)
        root.mkdir()
        Disk(trace, at, draw).write(root)
        folder, promised = RunFolder(root / "sweep" / "row" / "seed0"), trace.promised(at)
        read_state(folder)
        if promised is None:  # the command that sets the run up has not returned
            shutil.rmtree(root)
            continue
        config = folder.config
        assert config == reference.config
        if promised[0] == "ended":
            assert folder.is_complete
        state, damaged = load_checked(folder, config)
        iteration = state["training"]["iteration"] if state else 0
        if folder.is_complete:
            assert metrics(folder.path) == metrics(reference.path)
            assert iteration == 12
        else:
            assert iteration >= promised[0]
        if state:
            assert digest(state) == weights[iteration]
        kind = (iteration, folder.is_complete, tuple(damaged))
        if kind not in seen and len(seen) < resumes:
            seen.add(kind)
            run(folder)
            assert metrics(folder.path) == metrics(reference.path)
            assert digest(load_checked(folder, config)[0]) == weights[12]
        shutil.rmtree(root)


@pytest.mark.slow
def test_no_power_loss_costs_what_was_saved_or_changes_a_bit(trace: Trace, tmp_path: Path) -> None:
    check(trace, states=60, resumes=1, place=tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 9))
def test_no_power_loss_of_2000_costs_what_was_saved_or_changes_a_bit(trace: Trace, tmp_path: Path, seed: int) -> None:
    check(trace, states=250, resumes=8, place=tmp_path, seed=seed)
