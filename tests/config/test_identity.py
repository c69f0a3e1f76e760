"""What makes two runs the same: one net has one identity, and later versions read earlier folders as the same runs."""

from pathlib import Path

import pytest
import yaml

from deepnets.config.compose import compose
from deepnets.config.identity import STEPS, Added, difference, identity, identity_hash
from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.folder import RunFolder, run_folders
from tests.command import ROOT

RECORDS = ROOT / "outputs" / "records"
FIRST = {folder.path.parents[1].name: folder for folder in run_folders(RECORDS) if "+" in str(folder)}


def command_of(folder: RunFolder) -> list[str]:
    """The overrides that a record's path names, of a sweep at another scale or in other arithmetic."""
    sweep, *changes = folder.path.parents[1].name.split("+")
    axes = folder.config.sweep.axes
    row = [f"{axis}={value}" for axis, value in zip(axes, folder.path.parent.name.split(","), strict=True)]
    return [f"sweep={sweep}", *changes, *row, f"seed={folder.path.name.removeprefix('seed')}"]


@pytest.mark.parametrize("folder", FIRST.values(), ids=FIRST)
def test_a_record_is_the_run_of_its_command(folder: RunFolder) -> None:
    assert identity(folder.config) == identity(compose(command_of(folder)).config)


@pytest.mark.parametrize(
    "words",
    [
        (
            ["sweep=he2016_table1", "model/shortcut=identity"],
            ["sweep=he2016_table2", "model/block=basic", "model/ordering=original"],
        ),
        (["model=resnet20"], ["model=resnet20", "model.depth=null", "model.units=[3,3,3]"]),
        (["model=preact164"], ["model=preact164", "model.depth=null", "model.units=[18,18,18]"]),
    ],
)
def test_a_depth_and_its_units_are_one_net(words: tuple[list[str], list[str]]) -> None:
    one, other = (compose(each).config for each in words)
    assert (one.model["depth"], one.model["units"]) != (other.model["depth"], other.model["units"])
    assert identity_hash(one) == identity_hash(other)
    assert difference(identity(one), other) == {}


def test_other_depths_are_other_nets() -> None:
    one, other = (
        compose(["model=resnet20", "model.depth=null", f"model.units={u}"]).config for u in ("[3,3,4]", "[4,3,3]")
    )
    assert identity_hash(one) != identity_hash(other)
    assert difference(identity(one), other) == {"model.units": ([3, 3, 4], [4, 3, 3])}


def test_a_step_makes_a_folder_of_before_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([f"output_root={tmp_path}"]).config
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    file = folder.path / "config.yaml"
    frozen = yaml.safe_load(file.read_text())
    of_data_set = Added("dataset.incomplete", False, target=frozen["dataset"]["_target_"])
    del frozen["dataset"]["incomplete"], frozen["fail_fast"]
    file.write_text(yaml.safe_dump(frozen))
    with pytest.raises(UserError, match="not a configuration of this version of deepnets"):
        folder.check(config)
    monkeypatch.setattr("deepnets.config.identity.STEPS", (of_data_set, Added("fail_fast", False)))
    folder.check(config)
    assert folder.config.dataset["incomplete"] is folder.config.fail_fast is False
    assert identity_hash(folder.config) == identity_hash(config)
    of_others = Added("dataset.incomplete", False, target="photos.Photos")
    assert "incomplete" not in of_others(frozen)["dataset"]


def test_a_later_key_at_its_neutral_value_is_no_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["dataset=digits"]).config
    before = identity_hash(config)
    monkeypatch.setattr("deepnets.config.identity.STEPS", (*STEPS, Added("dataset.later", 3), Added("absent.key", 1)))
    config.dataset["later"] = 3
    assert identity_hash(config) == before
    config.dataset["later"] = 4
    assert identity_hash(config) != before


def test_an_option_that_lacks_a_later_key_is_the_run_it_was(tmp_path: Path) -> None:
    config = compose([f"output_root={tmp_path}"]).config
    del config.dataset["augmentation"]
    folder = RunFolder(tmp_path / "run")
    folder.freeze(config, Origin())
    folder.check(config)
    folder.check(compose([f"output_root={tmp_path}"]).config)
    with pytest.raises(UserError, match=r"dataset\.augmentation"):
        folder.check(compose([f"output_root={tmp_path}", "dataset/augmentation=cutout"]).config)


def test_a_value_in_a_list_of_nodes_can_be_set() -> None:
    config = compose(["dataset/augmentation=cutout", "dataset.augmentation.0.size=0.25"]).config
    assert config.dataset["augmentation"] == [{"_target_": "deepnets.data.augmentation.Cutout", "size": 0.25}]
