"""Weights leave as safetensors and come back as they were, in deepnets' names and in torchvision's."""

import json
import shutil
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchvision.models import get_model

from deepnets.commands.export import write_for_torchvision
from deepnets.config.compose import compose
from deepnets.errors import UserError
from deepnets.run import build_model, load_run
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.weights import (
    Weights,
    load_state,
    read_state,
    read_weights,
    write_weights,
)
from tests.command import row

SMALL = ["dataset=synthetic", "dataset.source.train=32", "dataset.source.test=20", "model.widths=[2,2,2]", "epochs=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("run")
    folder = RunFolder(root / "seed0")
    folder.freeze(row(root, *SMALL, "batch_size=16").config, Origin())
    run(folder)
    return folder


def imagenet(*overrides: str) -> Weights:
    """A network whose statistics are none of a fresh one."""
    torch.manual_seed(0)
    model = build_model([*overrides, "dataset=synthetic"])
    state = model.state_dict()
    for name, tensor in state.items():
        if "running_mean" in name:
            tensor.normal_(std=0.1)
        elif "running_var" in name:
            tensor.uniform_(0.5, 1.5)
    config = compose([*overrides, "dataset=synthetic"]).config
    return Weights(state, config, (3, 32, 32), 10)


def test_a_run_and_its_record_have_the_same_weights(trained: RunFolder, tmp_path: Path) -> None:
    original, _ = load_run(trained.path)
    write_weights(read_weights(trained.path), tmp_path)
    model, config = load_run(tmp_path)
    assert not model.training
    assert config.output_root == "outputs"
    assert str(trained.path.parent) not in (tmp_path / "config.yaml").read_text()
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_weights_of_another_run_are_refused(trained: RunFolder, tmp_path: Path) -> None:
    weights = read_weights(trained.path)
    record = RunFolder(tmp_path / "record")
    record.freeze(row(tmp_path, *SMALL, "batch_size=8").config, Origin())
    with pytest.raises(UserError, match="holds another run: batch_size differ"):
        write_weights(weights, record.path)
    write_weights(weights, tmp_path / "own")
    shutil.copy(tmp_path / "own" / WEIGHTS, record.path)
    with pytest.raises(UserError, match=r"of another run than its config\.yaml: batch_size differ"):
        read_weights(record.path)


def test_a_damaged_or_foreign_file_is_refused(trained: RunFolder, tmp_path: Path) -> None:
    file = write_weights(read_weights(trained.path), tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        read_weights(tmp_path)
    save_file({"w": torch.ones(2)}, file)
    with pytest.raises(UserError, match="was not written by deepnets: in its metadata, run: Field required"):
        read_weights(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="no checkpoint to load"):
        read_weights(tmp_path)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["model=imagenet_resnet18"], "resnet18"),
        pytest.param(["model=imagenet_resnet34", "model.batchnorm_images=32"], "resnet34", marks=pytest.mark.slow),
        pytest.param(["model=imagenet_resnet50", "model.strided_kernel=1"], "resnet50", marks=pytest.mark.slow),
    ],
)
def test_networks_of_other_libraries_have_the_logits(
    overrides: list[str], name: str, library: str, tmp_path: Path
) -> None:
    weights = imagenet(*overrides)
    if library == "timm":
        there = pytest.importorskip("timm").create_model(name, num_classes=10)
    else:
        there = get_model(name, num_classes=10)
    there.load_state_dict(load_file(write_for_torchvision(weights, tmp_path / "there.safetensors")))
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected, logits = weights.model()(images), there.eval()(images)
    assert expected.std() > 0.1
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model=imagenet_resnet50"], r"logits differ\. .*\(model.strided_kernel=1\)"),
        (["model=imagenet_resnet18", "model.resize=zero_padding"], "Missing key.*downsample"),
        (["model=imagenet_preact152", "model.units=[1,1,1,1]"], "Unexpected key|Missing key"),
        (["model=resnet20"], "4 stages .*, this one 3 with 2"),
        (["model=highway_fc10"], "it is a FullyConnected"),
    ],
)
def test_a_network_that_torchvision_has_not_is_refused(overrides: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"torchvision has no such network: .*{reason}"):
        write_for_torchvision(imagenet(*overrides), tmp_path / "there.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_torchvisions_state_is_taken_over(suffix: str, tmp_path: Path) -> None:
    there = get_model("resnet18", num_classes=10).eval()
    # As in torchvision's older files.
    state = {name: tensor for name, tensor in there.state_dict().items() if "num_batches" not in name}
    file = tmp_path / f"weights.{suffix}"
    save_file(state, file) if suffix == "safetensors" else torch.save(state, file)
    model = build_model(["model=imagenet_resnet18", "dataset=synthetic"]).eval()
    load_state(model, read_state(file))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(images), there(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entry", ["state_dict", "model"])
def test_a_checkpoint_of_another_program_gives_its_weights(entry: str, tmp_path: Path) -> None:
    there = torch.nn.DataParallel(get_model("resnet18", num_classes=10))
    others = {"epoch": 3, "args": Namespace(lr=0.1), "optimizer": {"state": {}}, "model": {}}
    torch.save(others | {entry: there.state_dict()}, tmp_path / "checkpoint.pth")
    model = build_model(["model=imagenet_resnet18", "dataset=synthetic"])
    load_state(model, read_state(tmp_path / "checkpoint.pth"))
    torch.testing.assert_close(model.stem[0].weight, there.module.conv1.weight)
    save_file(there.state_dict(), tmp_path / "wrapped.safetensors")
    load_state(model, read_state(tmp_path / "wrapped.safetensors"))


def test_names_of_a_network_that_begin_like_those_of_a_wrapped_one_are_its_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(OrderedDict(module=torch.nn.Linear(2, 3)))
    torch.save(model.state_dict(), tmp_path / "own.pth")
    load_state(model, read_state(tmp_path / "own.pth"))


def test_a_state_of_another_network_is_refused(tmp_path: Path) -> None:
    model = build_model(["model=imagenet_resnet18", "dataset=synthetic"])
    with pytest.raises(UserError, match=r"head.bias has the shape \[11\] there, here \[10\] \(differences: 2"):
        load_state(model, get_model("resnet18", num_classes=11).state_dict())
    torch.save({"epoch": 3}, tmp_path / "checkpoint.pth")
    with pytest.raises(UserError, match="holds more than weights by name"):
        read_state(tmp_path / "checkpoint.pth")
    (tmp_path / "checkpoint.pth").write_bytes(b"no weights")
    with pytest.raises(UserError, match="cannot be read as weights"):
        read_state(tmp_path / "checkpoint.pth")


def test_a_deeper_network_of_torchvision_is_refused() -> None:
    model = build_model(["model=imagenet_resnet18", "dataset=synthetic"])
    with pytest.raises(UserError, match=r"layer1\.2\..* is unknown \(differences: 96\)"):
        load_state(model, get_model("resnet34", num_classes=10).state_dict())


def test_the_file_says_of_which_run_it_is(trained: RunFolder, tmp_path: Path) -> None:
    with safe_open(write_weights(read_weights(trained.path), tmp_path), framework="pt") as file:
        about = file.metadata()
    assert json.loads(about["run"])["batch_size"] == 16
    assert (about["shape"], about["classes"]) == ("[3, 32, 32]", "10")


@pytest.mark.parametrize("about", [{"run": "5"}, {"shape": "5"}, {"shape": "[1,8,1e9]"}, {"classes": "-1"}])
def test_metadata_of_other_types_are_refused(trained: RunFolder, tmp_path: Path, about: dict[str, str]) -> None:
    file = write_weights(read_weights(trained.path), tmp_path)
    with safe_open(file, framework="pt") as opened:
        there = opened.metadata()
    save_file(load_file(file), file, there | about)
    with pytest.raises(UserError, match=f"was not written by deepnets: in its metadata, {next(iter(about))}"):
        read_weights(tmp_path)


def test_weights_in_other_arithmetic_are_read_as_float32_and_none_that_are_no_numbers(tmp_path: Path) -> None:
    model = build_model(["model.widths=[2,2,2]"])
    load_state(model, {name: tensor.half() for name, tensor in model.state_dict().items()})
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    odd = {name: tensor.to(torch.complex64) for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match="holds complex64"):
        load_state(model, odd)
    torch.save({5: torch.ones(1)}, tmp_path / "numbered.pt")
    with pytest.raises(UserError, match="holds more than weights by name"):
        read_state(tmp_path / "numbered.pt")
    with pytest.raises(UserError, match="no such file of weights"):
        read_state(tmp_path)
