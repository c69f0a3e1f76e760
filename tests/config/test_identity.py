"""A folder frozen by an earlier version is the same run as the command that made it is today."""

from pathlib import Path

import pytest
import yaml

from deepnets.config.compose import compose
from deepnets.config.frozen import read_frozen
from deepnets.config.identity import STEPS, Added, identity, identity_hash
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


def test_data_sets_of_before_were_whole_and_not_reduced() -> None:
    text = (Path(__file__).parents[1] / "frozen" / "resnet" / "config.yaml").read_text()
    assert {"reduce", "incomplete"}.isdisjoint(yaml.safe_load(text)["dataset"])
    dataset = read_frozen(text)["dataset"]
    assert (dataset["reduce"], dataset["incomplete"]) == (1, False)
    of_a_user = text.replace("deepnets.data.dataset.Dataset", "photos.Photos")
    assert {"reduce", "incomplete"}.isdisjoint(read_frozen(of_a_user)["dataset"])


def test_a_later_key_at_its_neutral_value_is_no_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["dataset=digits"]).config
    before = identity_hash(config)
    monkeypatch.setattr("deepnets.config.identity.STEPS", (*STEPS, Added("dataset.later", 3), Added("absent.key", 1)))
    config.dataset["later"] = 3
    assert identity_hash(config) == before
    config.dataset["later"] = 4
    assert identity_hash(config) != before
