"""`deepnets clean`: what it lists, what it removes, and what later commands make of it."""

import shutil
from pathlib import Path

import pytest

from deepnets.commands import clean as cleaning
from deepnets.commands.clean import clean, disk_line, in_bytes
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.run import load_run
from deepnets.runs import folder as run_folder
from deepnets.runs.code import is_stored, replaced_versions
from deepnets.runs.folder import RunFolder
from deepnets.runs.naming import folder_of
from deepnets.system.files import write_folder
from tests.command import row

RUN = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    assert launch([row(root, *RUN, f"seed={seed}") for seed in (0, 1)]) == 0
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "outputs")


def test_it_only_lists_unless_asked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(root.rglob("*"))
    assert clean([root], remove=False, keep_weights=False) == 0
    assert sorted(root.rglob("*")) == before
    assert "checkpoints of finished runs" in (told := capsys.readouterr().out)
    assert "add --yes" in told
    assert disk_line([root]).startswith("on disk  ")


@pytest.mark.parametrize("keep_weights", [True, False])
def test_checkpoints_of_finished_runs_go_and_nobody_misses_them(
    root: Path, keep_weights: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(root, *RUN, f"seed={seed}") for seed in (0, 1)]
    folders = [folder_of(each) for each in rows]
    (folders[0].path / "checkpoint.pt.damaged").write_bytes(b"0" * 1000)
    copies = root / "runs" / ".code"
    (copies / ("0" * 16)).mkdir(parents=True)
    (copies / ("0" * 16) / "shortcuts.py").touch()
    (folders[1].path / "result.json").rename(root / "kept")  # it has not finished: its checkpoints stay
    assert clean([root], remove=True, keep_weights=keep_weights) == 0
    assert ("; the weights kept take " in capsys.readouterr().out) == keep_weights
    assert not list(folders[0].path.glob("checkpoint*"))
    assert list(folders[1].path.glob("checkpoint.pt"))
    assert not list(copies.glob("*/*"))
    (root / "kept").rename(folders[1].path / "result.json")
    capsys.readouterr()
    assert launch(rows) == 0
    assert "checkpoint.pt" not in capsys.readouterr().out
    assert (folders[0].path / "weights.safetensors").exists() == keep_weights
    if keep_weights:
        assert load_run(folders[0].path)[1].seed == 0
    assert clean([root], remove=True, keep_weights=True) == 0
    assert load_run(folders[1].path)[1].seed == 1


def test_a_run_that_somebody_trains_is_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(sorted(root.glob("runs/*/seed0"))[0])
    with folder.hold():
        assert clean([folder.path], remove=True, keep_weights=False) == 1
    assert "already running in another process" in capsys.readouterr().out
    assert (folder.path / "checkpoint.pt").exists()


def test_sizes_are_counted_and_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"0" * 1500)
    (tmp_path / "link").symlink_to("/")
    assert cleaning._size(tmp_path) >= 1500
    assert cleaning._size(tmp_path) < 10_000
    assert [in_bytes(size) for size in (999, 1500, 2e6, 3e9, 4e12)] == ["999 B", "1.5 kB", "2.0 MB", "3.0 GB", "4.0 TB"]


@pytest.mark.attack
def test_only_copies_of_code_below_the_named_folders_go(root: Path, tmp_path: Path) -> None:
    """A run that somebody gave me lies in ~/Downloads/seed0, and ~/.code is my own."""
    run = sorted(root.glob("runs/*/seed0"))[0]
    home = tmp_path / "home"
    shutil.copytree(run, home / "Downloads" / "seed0")
    own = [home / ".code" / name for name in ("thesis", "0" * 16)]
    for folder in own:
        folder.mkdir(parents=True)
        (folder / "shortcuts.py").touch()
    assert clean([home / "Downloads" / "seed0"], remove=True, keep_weights=False) == 0
    assert all(is_stored(folder) for folder in own)
    assert clean([home], remove=True, keep_weights=False) == 0
    assert [is_stored(folder) for folder in own] == [True, False]


def test_reports_know_of_a_version_whose_copy_is_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = "0" * 16
    write_folder(root / "runs" / ".code" / version, {Path("shortcuts.py"): b"scale = 1.0\n"})
    assert clean([root], remove=True, keep_weights=False) == 0
    assert replaced_versions(root / "runs") == [version]
    capsys.readouterr()
    assert clean([root], remove=False, keep_weights=False) == 0
    assert "copies of code" not in capsys.readouterr().out
    write_folder(root / "runs" / ".code" / version, {Path("shortcuts.py"): b"scale = 1.0\n"})  # as if trained again
    assert is_stored(root / "runs" / ".code" / version)


def test_a_folder_that_holds_much_else_is_refused_before_all_of_it_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "MOST_OTHERS", 3)
    for number in range(2):
        (root / "runs" / f"z{number}").mkdir()
    assert clean([root], remove=False, keep_weights=False) == 0
    (root / "zz").mkdir()
    (root / "zz" / "z").mkdir()
    before = sorted(root.rglob("*"))
    with pytest.raises(UserError, match=r"outputs: has over 3 folders that are no runs; name a sweep's folder in it$"):
        clean([root], remove=True, keep_weights=False)
    assert sorted(root.rglob("*")) == before
