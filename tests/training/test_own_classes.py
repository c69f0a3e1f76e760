"""A class of a user's own that is wrong is found before anything trains, with its file and line."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.config.identity import PLAIN_LOSS
from deepnets.config.schema import Row
from deepnets.config.trust import trust
from deepnets.errors import UserError
from deepnets.launch.grid import launch
from deepnets.launch.local import obstacle
from deepnets.run import load_run
from deepnets.runs.naming import folder_of
from deepnets.training.assembly import dataset_of, prepare
from deepnets.training.fit import fit
from tests.command import row, train

SHORTCUT = """
from torch import nn


class Own(nn.Module):
    def __init__(self, *, ends):
        super().__init__()
        self.resize = ends.resized()
        {constructor}

    def forward(self, x, r):
        {forward}
        return self.resize(x) + r
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, *, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes + 1))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What launching a run says that uses the class `Own` of a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def said(module: str, source: str, target: str = "model.shortcut") -> str:
        file = tmp_path / f"{module}.py"
        file.write_text(source)
        trust(file)
        run = row(tmp_path / "outputs", "model.depth=8", "model.widths=[4,4,4]", "epochs=1")
        if target == "model.shortcut":
            run.config.model["shortcut"] = {"_target_": f"{module}.Own", "_partial_": True}
        elif target == "model.own_layers":
            run.config.model["own_layers"] = {"relu": {"_target_": f"{module}.Own"}}
        else:
            run.config.model.clear()
            run.config.model["_target_"] = f"{module}.Net"
        with pytest.raises(UserError) as error:
            launch([run])
        assert not (tmp_path / "outputs").exists()
        return str(error.value)

    return said


def test_a_gate_without_its_module_is_refused(refusal: Callable[..., str]) -> None:
    source = SHORTCUT.format(constructor="self.w = nn.Linear(1, 1)", forward="pass")
    source = source.replace("Own(nn.Module)", "Own(Gated)").replace("super().__init__()", "nn.Module.__init__(self)")
    source += "\n    def reset_bias(self): pass\n"
    said = refusal("gate_shortcuts", f"from deepnets.models.shortcuts import Gated\n{source}")
    assert said == "model: Own has no module `gate`: a subclass of Gated must call Gated.__init__"


def test_a_gate_that_is_replaced_without_its_bias_is_refused(refusal: Callable[..., str]) -> None:
    source = """
from torch import nn

from deepnets.models.shortcuts import Gated


class Own(Gated):
    def __init__(self, *, ends):
        super().__init__(bias=-1, exclusive=True, kernel=1, batchnorm=False, ends=ends)
        self.gate = nn.Sequential(self.gate, nn.Identity())
"""
    assert "Own replaces `gate`, so it must replace the property `gate_bias` too" in refusal("bias_shortcuts", source)


@pytest.mark.parametrize(
    ("constructor", "forward", "said"),
    [
        ("self.a = misspelt", "pass", "line 9, in __init__: NameError: name 'misspelt' is not defined"),
        ("pass", "r = r + self.scale", "line 12, in forward: AttributeError: 'Own' object has no attribute 'scale'"),
        ("pass", "r = r[:, :, 1:]", "line 13, in forward: RuntimeError: The size of tensor a (8) must match"),
        ("pass", "r = r.detach() * 'x'", "line 12, in forward: TypeError"),
    ],
)
def test_an_error_in_an_own_shortcut_names_its_line(
    refusal: Callable[..., str], constructor: str, forward: str, said: str
) -> None:
    module = f"own_{abs(hash((constructor, forward)))}"
    source = SHORTCUT.format(constructor=constructor, forward=forward)
    assert f"{module}.py, {said}" in refusal(module, source)


def test_a_shortcut_that_returns_another_shape_does_not_fit(refusal: Callable[..., str]) -> None:
    source = SHORTCUT.format(constructor="pass", forward="return self.resize(x)[:, 1:]")
    assert "its layers, shortcuts and widths do not fit together" in refusal("own_shape", source)


LAYER = """
from torch import nn


class Own(nn.Module):
    def __init__(self{argument}):
        super().__init__()

    def forward(self, x):
        return {value}
"""


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("", "x.relu() + y", "line 10, in forward: NameError: name 'y' is not defined"),
        ("", "x[:, 1:]", "its layers, shortcuts and widths do not fit together"),
        (", channels", "x", "model.own_layers.relu: missing: channels; add `_partial_: true`"),
    ],
)
def test_an_own_layer_that_is_wrong_is_refused(
    refusal: Callable[..., str], argument: str, value: str, said: str
) -> None:
    source = LAYER.format(argument=argument, value=value)
    assert said in refusal(f"own_layer_{abs(hash((argument, value)))}", source, "model.own_layers")


def test_an_own_network_gives_logits_of_each_class(refusal: Callable[..., str]) -> None:
    assert "two images give logits (2, 11), not (2, 10)" in refusal("own_net", NET, "model")


def test_a_class_that_needs_numbers_is_tried_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = SHORTCUT.format(constructor="self.a = r = ends.units", forward="r = r * float(r.abs().mean() >= 0)")
    (tmp_path / "own_numbers.py").write_text(source)
    trust(tmp_path / "own_numbers.py")
    run = row(tmp_path / "outputs", "model.depth=8", "model.widths=[4,4,4]", "epochs=1")
    run.config.model["shortcut"] = {"_target_": "own_numbers.Own", "_partial_": True}
    assert launch([run]) == 0


@pytest.mark.slow
def test_a_network_that_passed_is_not_tried_again_until_its_class_is_edited(tmp_path: Path) -> None:
    """A class counts how often it is constructed, in commands that find their run trained already or plan it."""
    file, counted = tmp_path / "own_counted.py", tmp_path / "count"
    constructor = f"open({str(counted)!r}, 'a').write('x')"

    def constructed(*words: str, forward: str = "pass", code: int = 0, trust: str = f"--trust={file}") -> int:
        file.write_text(SHORTCUT.format(constructor=constructor, forward=forward))
        counted.write_text("")
        choice = "+model.shortcut={_target_: own_counted.Own, _partial_: true}"
        small = ["model.depth=8", "model.widths=[4,4,4]", "epochs=1", "~model.shortcut", choice, *words]
        words = [*small, f"output_root={tmp_path / 'outputs'}", trust]
        done = train(*words, XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert done.returncode == code, done.stderr
        return len(counted.read_text())

    wrong = "r = r.misspelt"
    for _ in range(2):
        assert constructed("plan=true", forward=wrong, code=1) > 0  # a failure is not remembered
    assert constructed("plan=true") > 3
    assert constructed("plan=true", "seed=1") == 0
    assert constructed("threads=1", code=1, trust="--trust=deepnets.loss") == 0  # it must be trusted in each command
    assert constructed("plan=true", forward="r = 1 * r") > 3
    assert constructed("plan=true", forward=wrong, code=1) > 0
    trained = constructed()
    assert trained == constructed("seed=1") == 3  # its three units, to be trained


LOSS = """
from torch.nn.functional import nll_loss


class Own:
    def __call__(self, logits, targets):
        {first}
        return {returned}
"""
OWN_LOSS = "nll_loss(logits.log_softmax(1), targets, reduction='sum')"


@pytest.fixture
def run_with_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Row]:
    """A run of one epoch whose loss is the class `Own` of a module with this source."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def made(module: str, first: str = "pass", returned: str = OWN_LOSS) -> Row:
        (tmp_path / f"{module}.py").write_text(LOSS.format(first=first, returned=returned))
        trust(tmp_path / f"{module}.py")
        run = row(tmp_path / "outputs", "model=highway_fc10", "model.depth=3", "epochs=1")
        run.config.loss.clear()
        run.config.loss["_target_"] = f"{module}.Own"
        return run

    return made


@pytest.mark.parametrize(
    ("module", "first", "returned", "said"),
    [
        ("loss_a", "targets.misspelt", OWN_LOSS, "loss_a.py, line 7, in __call__: AttributeError"),
        ("loss_b", "pass", "nll_loss(logits.log_softmax(1), targets)", "must be the sum over the images, not their"),
        ("loss_c", "pass", "logits", "must return one number"),
        ("loss_d", "pass", OWN_LOSS + ".detach()", "does not require grad"),
    ],
)
def test_an_own_loss_that_is_wrong_is_refused(
    run_with_loss: Callable[..., Row], tmp_path: Path, module: str, first: str, returned: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        launch([run_with_loss(module, first, returned)])
    assert not (tmp_path / "outputs").exists()


def test_an_own_loss_trains_and_is_noted_as_code_of_the_run(run_with_loss: Callable[..., Row]) -> None:
    own = run_with_loss("loss_e", returned=f"2 * {OWN_LOSS}")
    assert "only runs of cross-entropy" in str(obstacle(own.config))
    assert launch([own]) == 0
    folder = folder_of(own)
    training = prepare(replace(own.config, loss=PLAIN_LOSS), torch.device("cpu"), torch.float32)
    first = next(fit(training)).loss.item()
    assert folder.result.beginning.losses[0] == pytest.approx(2 * first, rel=0.02)  # the run may compute in bfloat16
    assert list(folder.origin.code.modules) == ["loss_e"]


def test_a_partial_function_of_logits_and_targets_is_a_loss(run_with_loss: Callable[..., Row], tmp_path: Path) -> None:
    own = run_with_loss("loss_f", returned=f"2 * {OWN_LOSS}")
    with (tmp_path / "loss_f.py").open("a") as module:
        module.write("def own(logits, targets, weight):\n    return weight * Own()(logits, targets)\n")
    first = [launched(own, {"_target_": "loss_f.own", "_partial_": True, "weight": weight}) for weight in (1.0, 3.0)]
    assert first[1] == pytest.approx(3 * first[0], rel=0.02)  # the run may compute in bfloat16
    with pytest.raises(UserError, match=r"loss: missing: logits, targets; .* or with `_partial_: true` be the loss"):
        launched(own, {"_target_": "loss_f.own", "weight": 2.0})
    with pytest.raises(UserError, match=r"loss: missing: logits, targets, weight; loss_f\.own needs all but 2 of them"):
        launched(own, {"_target_": "loss_f.own", "_partial_": True})


def launched(run: Row, loss: dict[str, Any]) -> float:
    """Train the run with this node of a loss, in a folder of its own, and return its first loss."""
    run = replace(run, config=replace(run.config, loss=loss, name=f"weight{loss.get('weight')}"))
    assert launch([run]) == 0
    return folder_of(run).result.beginning.losses[0]


NUMBERS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, *, shape, classes, initialization=1.0):
        super().__init__()
        self.order = {order}
        self.register_buffer("mask", torch.ones(1), persistent=False)
        self.scale, self.rate = torch.tensor(2.0), torch.linspace(0, 1, 3)[1].item()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    def forward(self, x):
        return self.layers(x) * self.mask * {scale} * self.rate
"""


@pytest.mark.parametrize(
    ("module", "order", "scale", "obstacle_said"),
    [
        ("numbers_a", "[2, 1]", "self.scale", "its tensor scale is neither"),
        ("numbers_b", "torch.randperm(9, device='cpu').tolist()", "1", "differ by seed"),
    ],
)
def test_a_network_with_more_than_weights_trains_is_loaded_again_and_is_not_stacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, order: str, scale: str, obstacle_said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{module}.py").write_text(NUMBERS.format(order=order, scale=scale))
    trust(tmp_path / f"{module}.py")
    own = row(tmp_path / "outputs", "epochs=1", "device=cpu", "precision=fp32", "launcher.stacked=2")
    own = replace(own, config=replace(own.config, model={"_target_": f"{module}.Net"}))
    assert obstacle_said in str(obstacle(own.config))
    assert launch([own]) == 0
    model, config = load_run(folder_of(own).path)
    assert model(torch.rand(2, *dataset_of(config).shape)).isfinite().all()


OPERATION = """
import numpy as np


class Own:
    def draw(self, random, images):
        return {drawn}

    def __call__(self, x, targets, draws):
        return {returned}
"""


@pytest.mark.parametrize(
    ("module", "drawn", "returned", "said"),
    [
        ("operation_a", "random.normal(size=images)", "x, targets", r"draw must return an array \(images, k\)"),
        ("operation_b", "np.zeros((images, 1))", "x[:, 0], targets", r"returns images \(2, 8, 8\)"),
        (
            "operation_d",
            "np.zeros((images, 1))",
            "x + draws[:, :, None, None], targets",
            "type float64 and float32, must",
        ),
        ("operation_c", "np.zeros((images, 1))", "x + draws.misspelt, targets", "operation_c.py, line 10, in __call__"),
    ],
)
def test_an_own_operation_that_is_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, drawn: str, returned: str, said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{module}.py").write_text(OPERATION.format(drawn=drawn, returned=returned))
    trust(tmp_path / f"{module}.py")
    words = ["epochs=1", "dataset/augmentation=cutout", f"dataset.augmentation=[{{_target_: {module}.Own}}]"]
    with pytest.raises(UserError, match=rf"^dataset\.augmentation\[0\]: .*{said}"):
        launch([row(tmp_path / "outputs", *words)])
    assert not (tmp_path / "outputs").exists()
