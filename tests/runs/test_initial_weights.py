"""A run starts from another one's weights: their hash is identity, and other weights are refused."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from deepnets.config.identity import identity_hash
from deepnets.config.schema import Row
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.run import load_run
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.initial_weights import hash_of, start_from_weights, with_weights
from deepnets.runs.naming import folder_of
from deepnets.runs.weights import read_weights, write_weights
from deepnets.training.assembly import model_of
from tests.command import row

SMALL = [
    "dataset=synthetic",
    "dataset.source.train=32",
    "dataset.source.test=20",
    "model.widths=[2,2,2]",
    "epochs=1",
    "batch_size=16",
    "precision=fp32",
]
STILL = "optimizer.lr=1e-30"  # nothing but the running statistics moves


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("teacher")
    found = row(root, *SMALL)
    assert launch([found]) == 0
    return folder_of(found)


def student(root: Path, *changes: str) -> Row:
    return with_weights([row(root, *SMALL, *changes)])[0]


def test_it_starts_from_the_run_or_from_a_file_of_its_weights(teacher: RunFolder, tmp_path: Path) -> None:
    file = write_weights(read_weights(teacher.path), tmp_path / "exported")
    expected = dict(load_run(teacher.path)[0].named_parameters())
    for seed, place in enumerate((teacher.path, file, file.parent)):
        found = student(tmp_path, f"weights='{place}'", STILL, f"seed={seed}")
        assert launch([found]) == 0
        for name, parameter in load_run(folder_of(found).path)[0].named_parameters():
            torch.testing.assert_close(parameter, expected[name], rtol=0, atol=1e-12)
    assert f"starts from the weights in {RunFolder(file.parent)}" in (folder_of(found).path / "log.txt").read_text()


def test_the_log_says_how_a_network_of_equal_shapes_differs(teacher: RunFolder, tmp_path: Path) -> None:
    export = write_weights(read_weights(teacher.path), tmp_path / "exported").parent
    (export / "config.yaml").write_bytes((teacher.path / "config.yaml").read_bytes())
    for place in (teacher.path, export):
        start = f"weights='{place}'"
        for shortcut, differs in (("none", True), ("identity", False)):
            found = student(tmp_path / place.name, f"model/shortcut={shortcut}", start)
            assert launch([found]) == 0
            log = (folder_of(found).path / "log.txt").read_text()
            assert (f"{RunFolder(place)}; model.shortcut" in log) == differs
            assert (f"starts from the weights in {RunFolder(place)}\n" in log) != differs


def test_the_hash_of_the_weights_is_identity_and_in_the_name_and_their_place_is_not(
    teacher: RunFolder, tmp_path: Path
) -> None:
    plain, started = student(tmp_path), student(tmp_path, f"weights='{teacher.path}'")
    assert identity_hash(plain.config) != identity_hash(started.config)
    assert started.config.weights_hash == teacher.result.weights_sha256[:12] == hash_of(teacher.path)
    assert f"weights_hash={hash_of(teacher.path)}" in str(folder_of(started).path)
    (moved := tmp_path / "moved").symlink_to(teacher.path)
    assert folder_of(student(tmp_path, f"weights='{moved}'")).path == folder_of(started).path
    pinned = student(tmp_path, f"weights='{teacher.path}'", f"weights_hash='{hash_of(teacher.path)}'")
    assert pinned.config == started.config


def test_a_run_and_its_export_have_one_hash(teacher: RunFolder, tmp_path: Path) -> None:
    file = write_weights(read_weights(teacher.path), tmp_path / "exported")
    assert hash_of(file) == hash_of(file.parent) == hash_of(teacher.path)


def test_other_weights_than_at_first_are_refused_before_it_trains(teacher: RunFolder, tmp_path: Path) -> None:
    weights = read_weights(teacher.path)
    file = write_weights(weights, tmp_path / "exported")
    found = student(tmp_path, f"weights='{file}'")
    folder = folder_of(found)
    folder.freeze(found.config, Origin())
    next(iter(weights.state.values())).add_(1)
    write_weights(weights, tmp_path / "exported")
    with pytest.raises(UserError, match=r"have the hash \w{12} now; the run was set up with \w{12}"):
        run(folder)


def test_a_last_layer_of_another_number_of_classes_is_fresh(teacher: RunFolder, tmp_path: Path) -> None:
    config = student(tmp_path, f"weights='{teacher.path}'").config
    taught, _ = load_run(teacher.path)
    torch.manual_seed(3)
    fresh = model_of(config, (3, 32, 32), classes=7)
    model = deepcopy(fresh)
    assert "fresh: head.bias, head.weight" in start_from_weights(model, config, 7)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, (fresh if name.startswith("head") else taught).state_dict()[name])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["weights=/nowhere"], "weights=/nowhere: neither a run's folder nor a file of weights"),
        (["weights_hash=abc"], "is the hash of weights; add weights=RUN_OR_FILE"),
        (["weights={teacher}", "weights_hash=abc"], "have the hash"),
        (["weights={teacher}/.."], "no finished run with a checksum of its weights; name one below it, as "),
    ],
)
def test_weights_that_cannot_be_meant_are_a_line(
    teacher: RunFolder, tmp_path: Path, changes: list[str], said: str
) -> None:
    (link := tmp_path / "teacher").symlink_to(teacher.path)
    with pytest.raises(UserError, match=re.escape(said)):
        student(tmp_path, *(change.format(teacher=link) for change in changes))


def test_weights_of_another_network_are_refused_before_a_folder_is_made(teacher: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the weights are of another network"):
        launch([student(tmp_path, f"weights='{teacher.path}'", "model.widths=[4,4,4]")])
    assert not list(tmp_path.iterdir())
