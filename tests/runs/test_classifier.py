"""A trained run names the classes of image files: as it was tested, from its folder, its export and torch's program."""

import csv
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

from deepnets.config.schema import Config
from deepnets.config.trust import trust
from deepnets.data.sources import digits
from deepnets.errors import UserError
from deepnets.models.resize import ShortcutShape
from deepnets.run import build_model, load_classifier, load_run
from deepnets.runs import checkpoint
from deepnets.runs.classifier import Classifier, write_program
from deepnets.runs.contents import Input, Origin, Result
from deepnets.runs.execute import run
from deepnets.runs.folder import WEIGHTS, RunFolder
from deepnets.runs.weights import read_weights, write_weights
from deepnets.training.assembly import dataset_of, splits_of
from tests.command import row
from tests.photographs import photograph_tree

CPU = torch.device("cpu")
FP32 = ["device=cpu", "precision=fp32"]
SMALL = [*FP32, "model.depth=8", "model.widths=[4,4,4]"]
SYNTHETIC = ["dataset=synthetic", "dataset.source.train=32", "dataset.source.test=20", "batch_size=16", "epochs=1"]


def call(*words: str) -> int:
    """The command within this process."""
    return import_module(f"deepnets.commands.{words[0]}").main(words[1:])


def trained(root: Path, *changes: str, change: Callable[[Config], None] = lambda config: None) -> Path:
    composed = row(root, *(FP32 if "dataset=imagenet" in changes else SMALL), *changes)
    change(composed.config)
    folder = RunFolder(root / "row" / "seed0")
    folder.freeze(composed.config, Origin())
    run(folder)
    return folder.path


def result_in(folder: Path) -> Result:
    result = RunFolder(folder).result
    assert result
    return result


@pytest.fixture(scope="module")
def on_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("digits"), "epochs=2")


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test images of digits, NUMBER/LABEL.png."""
    place = tmp_path_factory.mktemp("pngs")
    _, test = digits(place).found.read()
    for number, (image, label) in enumerate(zip(test.images, test.labels, strict=True)):
        (place / f"{number:03}").mkdir()
        Image.fromarray(image[..., 0].numpy()).save(place / f"{number:03}" / f"{label}.png")
    return place


def lines_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_its_test_images_as_files_have_the_runs_test_error(on_digits: Path, pngs: Path, tmp_path: Path) -> None:
    assert call("predict", str(on_digits), str(pngs), "--to", str(tmp_path / "a.csv")) == 0
    lines = lines_of(tmp_path / "a.csv")
    assert list(lines[0]) == ["file", "class", "probability"]
    wrong = [line for line in lines if line["class"] != Path(line["file"]).stem]
    assert len(lines) == 360
    assert 100 * len(wrong) / 360 == result_in(on_digits).test_error
    assert all(0.1 < float(line["probability"]) <= 1 for line in lines)
    assert call("export", str(on_digits), "--to", str(tmp_path / "export")) == 0
    assert call("predict", str(tmp_path / "export"), str(pngs), "--to", str(tmp_path / "b.csv")) == 0
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()


@pytest.mark.attack
def test_bad_images_are_named_and_the_others_predicted(
    on_digits: Path, pngs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = Image.open(next(pngs.glob("000/*.png")))
    good.convert("RGB").resize((20, 30)).save("=1+1.jpg")
    good.save("+a\udcff.png")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("empty").mkdir()
    Path("pipe.png").symlink_to("/dev/zero")
    names = ["broken.png", "nowhere.png", "=1+1.jpg", "empty", "pipe.png", "+a\udcff.png"]
    assert call("predict", str(on_digits), *names) == 1
    said = capsys.readouterr()
    expected = ["empty: no images in it", "broken.png is not a readable image", "nowhere.png: no such file"]
    expected += ["pipe.png: is not a file"]
    for line, start in zip(said.err.splitlines(), expected, strict=True):
        assert line.startswith(f"error: {start}")
    assert said.out.endswith("predictions  predictions.csv: 2 images\n")
    content = Path("predictions.csv").read_bytes().decode(errors="surrogateescape")
    assert [line.split(",")[0] for line in content.splitlines()] == ["file", "'=1+1.jpg", "'+a\udcff.png"]
    assert call("predict", str(on_digits), "broken.png", "empty") == 1
    assert "predictions" not in capsys.readouterr().out  # those before stay
    assert Path("predictions.csv").read_bytes().decode(errors="surrogateescape") == content


def test_images_of_an_own_class_may_be_made_otherwise(
    on_digits: Path, pngs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, to = str(next(pngs.glob("000/*.png"))), ["--to", str(tmp_path / "predictions.csv")]
    assert call("predict", str(on_digits), image, *to) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "own_images.py").write_text("from deepnets.data.sources import synthetic as drawn\n")
    monkeypatch.syspath_prepend(tmp_path)
    trust("own_images.drawn")
    folder = trained(tmp_path, *SYNTHETIC, "dataset.source._target_=own_images.drawn")
    assert call("predict", str(folder), image, *to) == 0
    assert "your own class made the images that trained this network; predict reads" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["channel", "pixel_mean", "pixel_mean_scalar_std", "global_contrast", "scaled_256"])
def test_it_sees_what_the_run_saw(kind: str, tmp_path: Path) -> None:
    changes = ["dataset.reduce=2", "dataset.source.classes=3", "dataset.source.channels=2"]
    folder = trained(tmp_path, *SYNTHETIC, *changes, f"dataset.normalization={kind}")
    model, config = load_run(folder)
    dataset = dataset_of(config)
    splits = splits_of(dataset, CPU)
    with torch.inference_mode():
        expected = torch.cat([model(x).softmax(1) for x, _ in splits.evaluation_batches(splits.test, batch_size=20)])
    raw = dataset.source.found.read()[1].images
    classifier = load_classifier(folder)
    assert classifier.shape == (2, 32, 32)
    assert classifier.classes == ("0", "1", "2")
    assert torch.equal(classifier.predict(raw), expected)
    assert torch.equal(classifier.predict(raw.numpy()), expected)
    assert torch.equal(classifier.predict(list(raw)), expected)
    is_image = kind in ("pixel_mean", "pixel_mean_scalar_std", "global_contrast")
    noted = json.loads((folder / "result.json").read_text())["input"]
    assert noted["shape"] == [2, 16, 16]
    assert (noted["mean"] is None) == is_image
    assert noted["scale"] == pytest.approx(splits.normalization.scale[0, 0].tolist(), rel=1e-8)
    assert "mean_image" not in noted
    write_weights(read_weights(folder), tmp_path / "export")
    assert torch.equal(load_classifier(tmp_path / "export").predict(raw), expected)
    file = write_program(classifier, tmp_path / "model.pt2")
    with torch.inference_mode():
        torch.testing.assert_close(torch.export.load(file).module()(raw), expected, rtol=0, atol=1e-6)
    assert str(Path(__file__).parents[2]).encode() not in file.read_bytes()  # no folders of this machine


def coloured_tree(folder: Path) -> Path:
    """Images of two classes, of several sizes and colours, that a network must scale, cut and convert."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 10)):
        for label, name in enumerate(("=cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = 8 + draw.integers(6, size=2)
                pixels = draw.integers(100, size=(height, width, 3), dtype=np.uint8) + np.uint8(100 * label)
                mode = ("RGB", "L", "RGBA", "P")[number % 4] if number else "RGB"
                Image.fromarray(pixels).convert(mode).save(folder / split / name / f"{number:02}.png")
    return folder


def test_files_are_prepared_as_those_of_a_folder_of_images(tmp_path: Path) -> None:
    tree = coloured_tree(tmp_path / "tree")
    changes = ["dataset=image_folder", f"dataset.root={tree}", "dataset.source.size=8", "batch_size=8", "epochs=3"]
    folder = trained(tmp_path, *changes)
    classifier = load_classifier(folder)
    assert classifier.classes == ("=cat", "dog")
    test = dataset_of(RunFolder(folder).config).source.found.read()[1]
    files = sorted((tree / "test").glob("*/*.png"))
    assert torch.equal(torch.stack([classifier.read(file) for file in files]), test.images)
    assert call("predict", str(folder), str(tree / "test"), "--to", str(tmp_path / "a.csv")) == 0
    lines = lines_of(tmp_path / "a.csv")
    wrong = [line for line in lines if line["class"].lstrip("'") != Path(line["file"]).parent.name]
    assert 100 * len(wrong) / len(lines) == result_in(folder).test_error
    assert {line["class"] for line in lines} <= {"'=cat", "dog"}


def test_photographs_are_prepared_as_centre_crops(tmp_path: Path) -> None:
    tree = photograph_tree(tmp_path / "tree", classes=2, train=6, val=6)
    changes = ["model=imagenet_resnet18", "dataset=imagenet", "dataset.size=32", "dataset.classes=2"]
    changes += ["dataset.workers=0", "dataset.view=center", "batch_size=6", "epochs=1", f"dataset.root={tree}"]
    folder = trained(tmp_path, *changes, "model.widths=[4,4,4,4]")
    classifier = load_classifier(folder)
    assert classifier.classes == ("n00000000", "n00000001")
    splits = splits_of(dataset_of(RunFolder(folder).config), CPU)
    ((expected, _),) = splits.evaluation_batches(splits.test, batch_size=12)
    files = sorted((tree / "val").glob("*/*.JPEG"))
    x = splits.normalization(torch.stack([classifier.read(file) for file in files])).permute(0, 3, 1, 2)
    assert torch.equal(x, expected)
    (tree / "none.jpeg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(UserError, match=r"none.jpeg is not a readable image \("):
        classifier.read(tree / "none.jpeg")


def forget_input(folder: Path) -> None:
    """As a version before this one left the run."""
    state, _ = checkpoint.load(folder)
    assert state
    del state["input"]
    checkpoint.save(folder, state)
    entries = result_in(folder).model_dump(exclude={"input"}, exclude_unset=True)
    Result.model_validate(entries).write(folder)


def test_a_run_of_an_earlier_version_needs_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = coloured_tree(tmp_path / "tree")
    changes = ["dataset=image_folder", f"dataset.root={tree}", "dataset.source.size=8", "batch_size=8", "epochs=1"]
    folder = trained(tmp_path, *changes)
    images = load_classifier(folder).read(tree / "test" / "dog" / "01.png")[None]
    expected = load_classifier(folder).predict(images)
    forget_input(folder)
    with pytest.raises(UserError, match=r"did not store normalisation .* --data DIR, .*load_classifier\(..., data=DIR"):
        load_classifier(folder)
    assert torch.equal(load_classifier(folder, data=tree).predict(images), expected)
    assert call("export", str(folder), "--to", str(tmp_path / "a")) == 1
    assert "program      not written: the run is of an earlier version" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "a").iterdir()} == {"README.md", "config.yaml", WEIGHTS}
    assert call("export", str(folder), "--to", str(tmp_path / "b"), "--data", str(tree)) == 0
    assert torch.equal(load_classifier(tmp_path / "b").predict(images), expected)
    (tree / "train" / "dog" / "01.png").write_bytes((tree / "train" / "dog" / "02.png").read_bytes())
    with pytest.raises(UserError, match="was trained on other data"):
        load_classifier(folder, data=f"{tree}/")  # another name, as this process has read the data of that one


def test_images_of_another_shape_are_refused(on_digits: Path) -> None:
    classifier = load_classifier(on_digits)
    with pytest.raises(UserError, match=r"shape \(2, 1, 8, 8\) and type uint8: must be uint8 of shape \(N, 8, 8, 1\)"):
        classifier.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(UserError, match="type float32"):
        classifier.predict(torch.zeros(2, 8, 8, 1))
    with pytest.raises(UserError, match="several shapes"):
        classifier.predict([torch.zeros(8, 8, 1, dtype=torch.uint8), torch.zeros(4, 8, 1, dtype=torch.uint8)])
    assert (
        classifier.predict(torch.zeros(0, 8, 8, 1, dtype=torch.uint8)).shape == classifier.predict([]).shape == (0, 10)
    )


@pytest.mark.attack
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mean": [1.0, 2.0]}, "input: Value error, mean and scale do not have"),
        ({"mean_image": "AAAA"}, "input: Value error, mean_image is not of the shape"),
        ({"mean_image": "?"}, "input: Value error, Incorrect padding|input: Value error"),
        ({"shape": [1, 8]}, r"input\.shape: "),
        ({"classes": ["0"]}, "its input and weights are of different networks"),
        ({"normalization": "os.system"}, "normalization=os.system: this version knows"),
        ({"mean": None}, "the mean image is missing"),
    ],
)
def test_a_damaged_input_is_refused(on_digits: Path, tmp_path: Path, changes: dict[str, object], why: str) -> None:
    state, _ = checkpoint.load(on_digits)
    assert state
    state["input"] |= changes
    for name in ("config.yaml", "result.json"):
        (tmp_path / name).write_bytes((on_digits / name).read_bytes())
    checkpoint.save(tmp_path, state)
    with pytest.raises(UserError, match=why):
        load_classifier(tmp_path)


@pytest.mark.slow
def test_the_card_names_metric_protocol_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for seed, rate in enumerate((0.1, 0.1, 0.2)):
        config = row(tmp_path, *SMALL, *SYNTHETIC, f"seed={seed}", f"optimizer.lr={rate}").config
        folders.append(RunFolder(tmp_path / "row" / f"seed{seed}"))
        folders[-1].freeze(config, Origin())
        run(folders[-1])
    assert call("export", str(folders[1].path), "--to", str(tmp_path / "export")) == 0
    text = (tmp_path / "export" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    (entry,) = yaml.safe_load(front)["model-index"]
    (measured,) = entry["results"]
    result = folders[1].result
    assert entry["name"] == "row/seed1"
    assert measured["task"]["type"] == "image-classification"
    assert measured["dataset"] == {"type": "synthetic", "name": "synthetic", "split": "test"}
    accuracy, error = measured["metrics"]
    assert (error["type"], error["name"]) == ("error", "test error in percent after the last epoch")
    assert error["value"] == pytest.approx(result.test_error, abs=1e-4)
    assert accuracy["value"] + error["value"] == pytest.approx(100)
    assert f"protocol: {error['args']['protocol']}" == result.protocol
    assert error["args"]["seed"] == 1
    assert error["args"]["test_errors_by_seed"] == {seed: folders[seed].result.test_error for seed in (0, 1)}
    assert f"| parameters | {result.parameters} |" in body
    assert f"commit {result.commit}" in body
    assert 'torch.export.load("model.pt2")' in body
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(tmp_path / "export" / "README.md")
    assert [found.metric_type for found in card.data.eval_results] == ["accuracy", "error"]
    assert card.data.eval_results[1].metric_value == error["value"]
    (tmp_path / "export" / "README.md").write_text("# Mine\n")
    assert call("export", str(folders[1].path), "--to", str(tmp_path / "export")) == 1
    assert "card         not written: " in capsys.readouterr().out
    assert (tmp_path / "export" / "README.md").read_text() == "# Mine\n"


class Wilful(nn.Module):
    """A shortcut that looks at its values, which no program of torch.export can do."""

    def __init__(self, *, ends: ShortcutShape) -> None:
        super().__init__()
        self.resize = ends.resized()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return self.resize(x) + r if x.sum() > 0 else self.resize(x)


def test_what_torch_cannot_export_is_said_and_the_rest_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"_target_": "tests.runs.test_classifier.Wilful", "_partial_": True}
    trust(own["_target_"])

    def change(config: Config) -> None:
        config.model["shortcut"] = own

    folder = trained(tmp_path, *SYNTHETIC, change=change)
    capsys.readouterr()
    assert call("export", str(folder), "--to", str(tmp_path / "a"), f"--trust={own['_target_']}") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["weights", "settings", "torchvision", "program", "card"]
    assert lines[4].startswith("program      not written: torch.export cannot express this network: ")
    assert {file.name for file in (tmp_path / "a").iterdir()} == {"README.md", "config.yaml", WEIGHTS}
    assert "model.pt2" not in (tmp_path / "a" / "README.md").read_text()


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=vit_digits", "dataset=digits", "model.depth=4"],
        ["model=stochastic_depth110", "model.depth=8", "dataset=synthetic"],
        ["model=highway_fc10", "dataset=synthetic"],
        pytest.param(["model=densenet40_12", "dataset=synthetic"], marks=pytest.mark.slow),
        pytest.param(["model=preact110", "memory=recompute_units", "dataset=synthetic"], marks=pytest.mark.slow),
        pytest.param(["model=resnet20", "model.batchnorm_images=32", "dataset=synthetic"], marks=pytest.mark.slow),
    ],
)
def test_networks_of_each_kind_become_programs(overrides: list[str], tmp_path: Path) -> None:
    model = build_model(overrides)
    channels, side = (1, 8) if "dataset=digits" in overrides else (3, 32)
    about = Input(
        shape=[channels, side, side],
        classes=[str(label) for label in range(10)],
        normalization="unit_interval",
        mean=[0.0] * channels,
        scale=[1 / 255] * channels,
    )
    classifier = Classifier(model, about)
    program = torch.export.load(write_program(classifier, tmp_path / "model.pt2")).module()
    images = torch.randint(256, (5, side, side, channels), dtype=torch.uint8)
    predicted = program(images)
    assert not predicted.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(predicted, classifier(images), rtol=0, atol=1e-6)


def test_the_export_says_what_the_network_is_given(on_digits: Path, tmp_path: Path) -> None:
    with safe_open(write_weights(read_weights(on_digits), tmp_path), framework="pt") as file:
        about = json.loads(file.metadata()["input"])
    assert about == json.loads((on_digits / "result.json").read_text())["input"]
