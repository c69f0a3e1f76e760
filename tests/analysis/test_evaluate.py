import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import get_model
from torchvision.transforms import v2

from deepnets.commands.analyze import main
from deepnets.errors import UserError
from deepnets.run import build_model
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.weights import load_state
from tests.command import row
from tests.photographs import archives, photograph_tree

CPU = "--device=cpu"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photograph_tree(tmp_path_factory.mktemp("tree"), classes=7, train=1, val=3)


def options(tree: Path) -> list[str]:
    data = {"root": tree, "classes": 7, "size": 64, "normalization": "channel", "workers": 0}
    words = [f"dataset.{name}={value}" for name, value in data.items()]
    return ["model=imagenet_resnet18", "dataset=imagenet", *words]


def published(tmp_path: Path) -> tuple[nn.Module, Path]:
    """Torchvision's network with statistics of its own, and its state dict."""
    torch.manual_seed(0)
    model = get_model("resnet18", num_classes=7)
    for name, tensor in model.state_dict().items():
        if "running" in name:
            tensor.uniform_(0.5, 1.5)
    torch.save(model.state_dict(), tmp_path / "resnet18.pth")
    return model.eval(), tmp_path / "resnet18.pth"


def found(folder: Path) -> dict:
    return json.loads((folder / "evaluate.json").read_text())["findings"][0]


def as_torchvision_does(tree: Path, model: nn.Module, shorter: int, ten: bool) -> tuple[Tensor, Tensor]:
    """Scores and labels by its documented preprocessing, one file after the other."""
    normalize = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    cut = v2.TenCrop(64) if ten else v2.Compose([v2.CenterCrop(64), lambda image: [image]])
    scores, labels = [], []
    for label, place in enumerate(sorted((tree / "val").iterdir())):
        for file in sorted(place.iterdir()):
            image = v2.functional.pil_to_tensor(Image.open(file).convert("RGB"))
            crops = [normalize(crop.float() / 255) for crop in cut(v2.functional.resize(image, [shorter]))]
            with torch.no_grad():
                scores.append(sum(model(crop[None]).softmax(1)[0] for crop in crops) / len(crops))
            labels.append(label)
    return torch.stack(scores).log(), torch.tensor(labels)


@pytest.mark.parametrize("view", ["center", pytest.param("ten_crop", marks=pytest.mark.slow)])
def test_torchvisions_weights_have_the_error_that_torchvision_finds(tree: Path, tmp_path: Path, view: str) -> None:
    model, file = published(tmp_path)
    main(["evaluate", CPU, "--weights", str(file), "--view", view, "--output", str(tmp_path), *options(tree)])
    scores, labels = as_torchvision_does(tree, model, 73, view == "ten_crop")
    ranks = (scores.argsort(1, descending=True) == labels[:, None]).int().argmax(1)
    numbers = found(tmp_path)
    assert numbers["loss"] == pytest.approx(cross_entropy(scores, labels).item(), rel=1e-4)
    assert numbers["test_error"] == pytest.approx(100 * (ranks > 0).float().mean().item())
    assert numbers["top5_error"] == pytest.approx(100 * (ranks > 4).float().mean().item())
    assert (numbers["images"], numbers["view"], numbers["precision"]) == (21, view, "float32")


def test_published_weights_are_named_and_their_normalisation_is_pointed_out(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", CPU, "--weights", str(published(tmp_path)[1]), "--output", str(tmp_path), *options(tree)]
    printed = []
    for normalization in ("channel", "pixel_mean"):
        main([*words, f"dataset.normalization={normalization}"])
        printed.append(capsys.readouterr().out)
    assert all(", weights of resnet18.pth: test error" in text for text in printed)
    note = "torchvision and timm train with dataset.normalization=channel; here it is pixel_mean"
    assert [note in text for text in printed] == [False, True]


def test_a_run_has_its_recorded_error_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = RunFolder(tmp_path / "seed0")
    words = ["dataset=synthetic", "model.widths=[2,2,2]", "epochs=1", "dataset.source.train=64", "precision=fp32"]
    folder.freeze(row(tmp_path, *words, "batch_size=32").config, Origin())
    result = run(folder)
    main(["evaluate", CPU, str(folder.path)])
    assert found(folder.path / "analysis")["test_error"] == result.test_error
    assert f"the run's result has {result.test_error:.2f} %" in capsys.readouterr().out
    main(["evaluate", CPU, str(folder.path), "--output", str(tmp_path / "elsewhere")])
    assert f"the run's result has {result.test_error:.2f} %" in capsys.readouterr().out
    with pytest.raises(UserError, match="only the images of dataset=imagenet have several views"):
        main(["evaluate", CPU, str(folder.path), "--view", "ten_crop"])
    with pytest.raises(UserError, match="name the network of a state dict by options"):
        main(["evaluate", CPU, str(folder.path), "--weights", "x.pth"])


def test_predictions_are_in_the_form_of_the_server(tree: Path, tmp_path: Path) -> None:
    model, file = published(tmp_path)
    unlabelled = tmp_path / "test"
    unlabelled.mkdir()
    files = [next(iter(sorted(place.iterdir()))) for place in sorted((tree / "val").iterdir())]
    for number, image in enumerate(files):
        (unlabelled / f"ILSVRC2012_test_{number:08}.JPEG").write_bytes(image.read_bytes())
    words = ["evaluate", CPU, "--weights", str(file), "--predict", str(unlabelled), "--output", str(tmp_path)]
    with pytest.raises(UserError, match=r"needs ILSVRC2012_devkit_t12.tar.gz, .*; put it there"):
        main([*words[:-1], str(tmp_path / "nothing"), *options(tree)])
    assert not (tmp_path / "nothing").exists()
    archives(tree, tmp_path / "packed")  # numbers the classes in another order than their names'
    (tmp_path / "packed" / "ILSVRC2012_devkit_t12.tar.gz").rename(tree / "ILSVRC2012_devkit_t12.tar.gz")
    main([*words, *options(tree)])
    lines = (tmp_path / "evaluate_predictions.txt").read_text().splitlines()
    scores, _ = as_torchvision_does(tree, model, 73, ten=False)
    wanted = [[7 - label for label in one.topk(5).indices.tolist()] for one in scores[::3]]
    assert [list(map(int, line.split())) for line in lines] == wanted


@pytest.mark.parametrize("units", [18, 34, 50, 101, 152])
def test_timms_networks_have_these_logits(units: int) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    there = timm.create_model(f"resnet{units}", num_classes=10).eval()
    here = build_model([f"model=imagenet_resnet{units}", "model.strided_kernel=1", "dataset=cifar10"]).eval()
    if units < 50:
        here = build_model([f"model=imagenet_resnet{units}", "dataset=cifar10"]).eval()
    load_state(here, there.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = there(images)
        assert torch.allclose(here(images), expected, rtol=0, atol=1e-5 * max(1, expected.abs().max().item()))
