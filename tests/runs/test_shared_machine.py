"""What another user of the machine can put into shared folders: nothing there is read, written or waited for."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest

from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.system.files import own_cache, write_atomically
from tests.command import ENVIRONMENT, TRAIN, row

pytestmark = pytest.mark.attack

RUN = ["model.depth=8", "model.widths=[2,2,2]", "epochs=1", "device=cpu", "threads=1"]
SHOWN = ["--help", "--hydra-help", "--cfg job", "--cfg all --resolve", "--info all", "--shell-completion install=bash"]


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Descriptors of files that somebody has locked."""
    descriptors: list[int] = []
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def lock(file: Path, held: list[int]) -> int:
    held.append(os.open(file, os.O_RDWR | os.O_CREAT))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
    return held[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "eager",
        pytest.param(
            "compiled",
            marks=[pytest.mark.nightly, pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")],
        ),
    ],
)
def test_a_run_leaves_alone_what_lies_in_tmp(tmp_path: Path, held: list[int], step: str) -> None:
    shared, victim, out = tmp_path / "tmp", tmp_path / "victim", tmp_path / "out"
    victim.write_text("theirs")
    (shared / f"deepnets-{os.getuid()}").mkdir(parents=True)
    for name in (f"deepnets-{os.getuid()}/train.log", "torchinductor_root"):
        (shared / name).symlink_to(victim)
    lock(shared / f"deepnets-{os.getuid()}.reading.lock", held)
    before = sorted(shared.rglob("*"))
    environment = {**ENVIRONMENT, "TMPDIR": str(shared), "XDG_CACHE_HOME": str(tmp_path / "cache"), "USER": "root"}
    del environment["TORCHINDUCTOR_CACHE_DIR"]  # that of this process, which imports deepnets
    words = [*TRAIN, *RUN, f"step={step}", f"output_root={out}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "theirs"
    assert sorted(shared.rglob("*")) == before
    assert (tmp_path / "cache" / "deepnets" / "torchinductor").is_dir()  # torch creates it with the optimizer


@pytest.mark.parametrize("words", SHOWN)
def test_what_hydra_prints_is_written_nowhere(tmp_path: Path, words: str) -> None:
    (tmp_path / "tmp").mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([*TRAIN, *words.split()], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "tmp"]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("planted", ["file", "link", "open to others", "of another user"])
def test_a_cache_that_somebody_else_could_fill_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "deepnets"
    if planted == "file":
        folder.touch()
    elif planted == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777 if planted == "open to others" else 0o700)
        if planted == "of another user":
            if os.getuid():
                pytest.skip("only root can give a folder to another user")
            os.chown(folder, 65534, 65534)
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        own_cache()
    run_folder = RunFolder(tmp_path / "seed0")
    run_folder.freeze(row(tmp_path, *RUN).config, Origin())
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        run(run_folder)
    assert planted != "link" or not list((tmp_path / "elsewhere").iterdir())


def test_the_cache_of_an_earlier_version_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "deepnets").mkdir()
    (tmp_path / "deepnets").chmod(0o755)
    assert own_cache().stat().st_mode & 0o777 == 0o700


def test_a_wait_for_another_process_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], held: list[int]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("deepnets.runs.resume.SILENT_SECONDS", 0.1)
    folder = RunFolder(tmp_path / "seed0")
    folder.freeze(row(tmp_path, *RUN).config, Origin())
    run(folder)
    assert "waiting" not in capsys.readouterr().out
    (file,) = (tmp_path / "cache" / "deepnets").glob("*.lock")
    again = RunFolder(tmp_path / "seed1")
    again.freeze(row(tmp_path, *RUN, "seed=1").config, Origin())
    Timer(1, fcntl.flock, (lock(file, held), fcntl.LOCK_UN)).start()
    assert run(again).status == "finished"
    assert f"waiting until another process of yours has read its data; it holds {file}" in capsys.readouterr().out


def test_commands_that_write_one_file_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    with ThreadPoolExecutor(4) as commands:
        for written in [commands.submit(write_atomically, path, str(number) * 10_000) for number in range(400)]:
            written.result()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() in {str(number) * 10_000 for number in range(400)}
