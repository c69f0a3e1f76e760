"""What is analysed: which images, in which order, and from which folder; and how figures label the networks."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from deepnets.analysis.commands.subject import Subject, _names, names_apart, one_batch, subject_of
from deepnets.config.schema import Sweep
from deepnets.errors import UserError
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from tests.command import row

NETWORK = ("model=resnet20", "model.depth=8", "dataset=image_folder")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(60):
        label = "cat" if number < 30 else "dog"
        for split in ("train", "test"):
            file = tmp_path / "tree" / split / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(file)
    return tmp_path / "tree"


def subject(*words: str, root: Path | None = None) -> Subject:
    return subject_of(
        Namespace(
            subject=list(words),
            trust=[],
            allow_previous=False,
            iteration=None,
            root=root and str(root),
            device="cpu",
            output=None,
        )
    )


def test_images_of_a_class_folder_tree_do_not_come_class_by_class(tree: Path) -> None:
    """Batch normalisation over groups of a batch would see one class in each."""
    for images in (40, 60):
        _, labels = one_batch(subject(*NETWORK, f"dataset.root={tree}"), images)
        first, second = labels.float().chunk(2)
        assert 0 < first.mean() < 1
        assert 0 < second.mean() < 1


def test_data_are_found_where_root_says(tree: Path, tmp_path: Path) -> None:
    """A run's data may have moved, and a record's were on another machine."""
    folder = RunFolder(tmp_path / "seed0")
    small = ["model.widths=[2,2,2]", "epochs=1", "batch_size=32"]
    folder.freeze(row(tmp_path, *NETWORK, f"dataset.root={tree}", *small).config, Origin())
    run(folder)
    tree.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="--root DIR in analyses"):
        subject(str(folder.path), root=tmp_path / "nowhere").batches("train")
    x, labels = one_batch(subject(str(folder.path), root=tmp_path / "moved"), 40)
    fresh_x, fresh_labels = one_batch(subject(*NETWORK, "dataset.root=nowhere", root=tmp_path / "moved"), 40)
    assert len(x) == 40
    assert torch.equal(x, fresh_x)
    assert torch.equal(labels, fresh_labels)


def test_run_folders_are_told_apart_by_as_much_of_their_paths_as_it_takes(tmp_path: Path) -> None:
    assert _names([f"{tmp_path}/x/seed0", f"{tmp_path}/x/seed1"]) == ["x/seed0", "x/seed1"]
    assert _names([f"{tmp_path}/a/t/x/seed0", f"{tmp_path}/b/t/x/seed0"]) == ["a/t/x/seed0", "b/t/x/seed0"]
    with pytest.raises(UserError, match="a run folder is named twice"):
        _names([f"{tmp_path}/x/seed0", f"{tmp_path}/x/../x/seed0"])


def labels(tmp_path: Path, *names: str, axes: tuple[str, ...] = ()) -> list[str]:
    config = replace(row(tmp_path).config, sweep=Sweep(axes=[*axes]))
    return names_apart([Subject(name, nn.Identity(), config, tmp_path, True, torch.device("cpu")) for name in names])


def test_a_label_is_what_the_names_do_not_share_and_names_the_axis_of_a_number(tmp_path: Path) -> None:
    axes = ("model/shortcut", "model.depth")
    assert labels(tmp_path, "none,8/seed0", "identity,8/seed0", axes=axes) == ["none", "identity"]
    assert labels(tmp_path, "none,8/seed0", "none,14/seed0", axes=axes) == ["depth=8", "depth=14"]
    assert labels(tmp_path, "none,8/seed0", "none,8/seed1", axes=axes) == ["seed0", "seed1"]
    switches = ("model.zero_init",)
    assert labels(tmp_path, "a/true/seed0", "a/false/seed0", axes=switches) == ["zero_init=true", "zero_init=false"]
    assert labels(tmp_path, "1e-4/seed0,iteration 5", "-0.5/seed0,iteration 5", axes=("loss.weight",)) == [
        "weight=1e-4",
        "weight=-0.5",
    ]


def test_labels_of_runs_outside_of_sweeps_are_parts_of_their_names(tmp_path: Path) -> None:
    assert labels(tmp_path, "resnet,depth=8/seed0", "resnet,depth=14/seed0") == ["depth=8", "depth=14"]
    assert labels(tmp_path, "8/seed0", "14/seed0") == ["8", "14"]
    assert labels(tmp_path, "a/seed0, untrained") == ["a/seed0, untrained"]
    assert labels(tmp_path, "") == [""]
