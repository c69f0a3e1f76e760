"""Identity, refusal and locking of run folders, on composed configurations."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from deepnets.config.identity import identity, identity_hash
from deepnets.config.project import CONF
from deepnets.config.schema import Config
from deepnets.config.trust import trust
from deepnets.errors import UserError
from deepnets.results.columns import in_other_arithmetic
from deepnets.runs.contents import Code, Job, Origin
from deepnets.runs.folder import CHECKPOINTS, RunFolder
from tests.command import row


def test_where_a_run_executes_is_not_its_identity(tmp_path: Path) -> None:
    same = row(
        tmp_path,
        "device=cpu",
        "threads=1",
        "dataset.root=/elsewhere",
        "checkpoint_seconds=1",
        "log_iterations=7",
        "devices=2",
        "evaluation_batch_size=7",
    )
    assert identity(same.config) == identity(row(tmp_path).config)
    assert identity_hash(same.config) == identity_hash(row(tmp_path).config)
    assert identity_hash(row(tmp_path, "seed=1").config) != identity_hash(row(tmp_path).config)


def test_a_frozen_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = row(tmp_path, "precision=bf16", "optimizer=adam").config
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin(commit="abc"))
    assert folder.config == config
    assert folder.config.dataset["root"] == str(CONF.parent / "data")
    assert isinstance(folder.config, Config)
    assert folder.origin == Origin(commit="abc")


def test_a_configuration_is_written_and_read_as_omegaconf_does(tmp_path: Path) -> None:
    config = row(tmp_path, "name='007'", "+model.a=['1e5',1e-20,true,'é','on','a: #b']", "scale=mini", "hours=3").config
    config.until, config.hours = None, None  # which are not frozen
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    text = (folder.path / "config.yaml").read_text()
    assert text == OmegaConf.to_yaml(OmegaConf.structured(config))
    assert folder.config == OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text)))
    for damaged in (text.replace("  depth: 8\n", "  depth: ???\n"), text.replace("  depth: 8\n", "  ? [1]\n  : 8\n")):
        (folder.path / "config.yaml").write_text(damaged)
        with pytest.raises(UserError, match="not a configuration of this version"):
            _ = folder.config


def test_other_settings_are_refused_with_the_differing_keys(tmp_path: Path) -> None:
    config = row(tmp_path).config
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    folder.check(config)
    other = row(tmp_path, "optimizer.lr=0.05", "batch_size=64").config
    with pytest.raises(UserError) as refused:
        folder.check(other)
    assert "batch_size: 128 there, 64 here" in str(refused.value)
    assert "optimizer.lr: 0.1 there, 0.05 here" in str(refused.value)
    assert "momentum" not in str(refused.value)
    folder.check(replace(other, overwrite=True))


def test_trust_and_overwrite_are_not_written_down(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    trust("a.b")
    folder.freeze(row(tmp_path, "overwrite=true").config, Origin())
    assert "a.b" not in (folder.path / "config.yaml").read_text()
    assert folder.config.overwrite is False


def test_a_run_continues_with_the_data_where_they_now_lie(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.freeze(row(tmp_path, "dataset.root=/before").config, Origin())
    folder.freeze(row(tmp_path, "dataset.root=/now").config, Origin())
    assert folder.config.dataset["root"] == "/now"


def test_freezing_again_keeps_the_first_and_overwrite_clears(tmp_path: Path) -> None:
    config = row(tmp_path).config
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin(commit="first"))
    (folder.path / "metrics.csv").write_text("epoch\n")
    folder.freeze(config, Origin(commit="second"))
    assert folder.origin == Origin(commit="first")
    folder.freeze(replace(config, overwrite=True), Origin(commit="third"))
    assert folder.origin == Origin(commit="third")
    assert not (folder.path / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("begun", "words", "noted"),
    [
        ([], [], "b" * 16),  # nothing was trained, so nothing of the old code is in it
        ([CHECKPOINTS[0]], [], "a" * 16),
        ([Job.FILE], [], "a" * 16),
        ([CHECKPOINTS[0]], ["code=frozen"], "a" * 16),
        ([CHECKPOINTS[0], Job.FILE], ["code=current"], "b" * 16),
    ],
)
def test_a_run_that_has_begun_keeps_its_code_unless_told(
    tmp_path: Path, begun: list[str], words: list[str], noted: str
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.freeze(row(tmp_path).config, Origin(code=Code(hash="a" * 16)))
    for name in begun:
        (folder.path / name).touch()
    folder.freeze(row(tmp_path, *words).config, Origin(code=Code(hash="b" * 16)))
    assert folder.origin.code == Code(hash=noted)
    assert folder.config.code is None


@pytest.mark.parametrize("deleted", range(5))
def test_a_kill_while_a_run_is_deleted_leaves_no_checkpoint_without_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    config = row(tmp_path).config
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    for name in ("checkpoint.pt", "checkpoint.previous.pt", "metrics.csv"):
        (folder.path / name).touch()
    left, unlink = iter(range(deleted)), Path.unlink

    def unlink_until_killed(path: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink_until_killed)
    with pytest.raises(KeyboardInterrupt):
        folder.freeze(replace(config, overwrite=True, epochs=3), Origin())
    with pytest.raises(UserError, match="epochs"):
        folder.check(replace(config, epochs=3))


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom deepnets.runs.folder import RunFolder\n"
            "with RunFolder(sys.argv[1]).hold():\n    print('held', flush=True)\n    time.sleep(60)",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process"), RunFolder(tmp_path).hold():
            pass
    finally:
        holder.kill()
        holder.wait()
    with RunFolder(tmp_path).hold():
        pass


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    config = row(tmp_path).config
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "outputs" / "runs" / "a").check(config)


@pytest.mark.attack
def test_a_run_folder_may_lie_at_the_root_or_be_named_from_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RunFolder("/seed0").grid == Path("/")
    assert in_other_arithmetic([Path("/")]) == []
    (tmp_path / "row" / "seed0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "row" / "seed0")
    assert RunFolder(".").grid == tmp_path
