"""Compiled and captured forward passes against plain ones, and what is refused instead of being executed otherwise."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError
from deepnets.launch.local import Local
from deepnets.launch.pool import Pool
from deepnets.run import build_model
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.training.assembly import prepare
from deepnets.training.checks import check
from deepnets.training.fit import autocast, fit
from deepnets.training.step import compiled
from tests.command import metrics, row
from tests.training.test_fit import CPU, as_file, training

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")

SMALL = ["model.depth=null", "model.units=[1]", "model.widths=[4]"]
NETS = [
    [*SMALL, "model/shortcut=none"],
    [*SMALL, "model/ordering=full_preactivation", "model/shortcut=exclusive_gating_b6"],
    [*SMALL, "model/shortcut=dropout", "model.batchnorm_images=4"],
    ["model=highway_fc10", "model.depth=3", "model.width=8"],
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("overrides", NETS, ids="+".join)
def test_compiled_loss_gradients_statistics_and_draws_are_the_plain_ones(overrides: list[str]) -> None:
    images, labels = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(10)

    def passed(compile_it: bool) -> dict[str, Tensor]:
        model = build_model(["dataset=digits", *overrides]).to(memory_format=torch.channels_last)
        torch.manual_seed(2)
        logits = (compiled(model) if compile_it else model)(images)
        loss = cross_entropy(logits, labels)
        loss.backward()
        gradients = {f"{name}.grad": parameter.grad for name, parameter in model.named_parameters()}
        return {"loss": loss, "logits": logits, "next": torch.rand(1), **gradients, **model.state_dict()}

    plain, ours = passed(False), passed(True)
    for name, value in plain.items():
        torch.testing.assert_close(
            ours[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name} {text}"
        )


@pytest.mark.slow
@needs_compiler
def test_compiled_arithmetic_is_autocast_as_the_plain_one_is() -> None:
    x = torch.randn(8, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    with autocast(CPU, torch.bfloat16):
        logits, plain = compiled(model)(x), model(x)
    assert logits.dtype is plain.dtype is torch.bfloat16
    torch.testing.assert_close(logits, plain, rtol=0.01, atol=0.01)


@pytest.mark.slow
@needs_compiler
def test_compiled_training_is_the_plain_one_and_continues_bit_by_bit() -> None:
    plain, whole, resumed = training(8), training(8, step="compiled"), training(8, step="compiled")
    losses = [state.loss.item() for state in fit(plain)]
    file = None
    for state, loss in zip(fit(whole), losses, strict=True):
        assert state.loss.item() == pytest.approx(loss, rel=1e-4)
        if state.iteration == 5 and not file:  # in the middle of the second epoch
            file = as_file(state.state_dict())
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for _ in fit(resumed):
        pass
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(whole.model.state_dict()[name], weight, rtol=1e-4, atol=1e-5)
        assert torch.equal(resumed.model.state_dict()[name], whole.model.state_dict()[name]), name


@needs_compiler
@pytest.mark.slow
def test_each_network_is_compiled_anew() -> None:
    """More networks in a process than a run has batch sizes."""
    for features in (2, 3, 4):
        model, x = nn.Sequential(nn.Flatten(), nn.Linear(features, 3)), torch.randn(6, features)
        torch.testing.assert_close(compiled(model)(x), model(x))


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_is_the_plain_one_to_its_end(tmp_path: Path) -> None:
    """Batches all of one size; gates, which the dashboard watches by hooks between the epochs."""
    changes = ["model/shortcut=exclusive_gating_b1", *SMALL, "epochs=3", "batch_size=479", "device=cpu", "threads=1"]
    ends = {}
    for step in ("eager", "compiled"):
        folder = RunFolder(tmp_path / step)
        folder.freeze(row(tmp_path, *changes, "precision=fp32", f"step={step}").config, Origin())
        ends[step] = run(folder)
        assert ends[step].step == step
    losses = [[float(epoch["train_loss"]) for epoch in metrics(tmp_path / step)] for step in ends]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


class Asking(nn.Module):
    """A network that asks the host what to do."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :3]
        return -x if x.sum().item() > 0 else x


@pytest.mark.parametrize("suppressed", [False, True])
def test_what_falls_back_to_python_is_refused(suppressed: bool) -> None:
    forward = compiled(Asking())
    with (
        torch._dynamo.config.patch(suppress_errors=suppressed),
        pytest.raises(UserError, match=r"cannot be compiled in one piece; use step=eager \(.+\)"),
    ):
        forward(torch.randn(4, 1, 2, 2))


@needs_compiler
def test_more_batch_sizes_than_a_run_has_are_refused() -> None:
    forward = compiled(nn.Flatten())
    for images in (4, 2):
        forward(torch.randn(images, 1, 2, 2))
    with pytest.raises(UserError, match="cannot be compiled in one piece"):
        forward(torch.randn(3, 1, 2, 2))


def test_compilation_that_is_switched_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE turns compilation off"
    with torch._dynamo.config.patch(disable=True), pytest.raises(UserError, match=message):
        training(8, step="compiled")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(UserError, match=message):
        training(8, step="compiled")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["step=compiled", "model/survival=linear_decay"], "step=compiled: stochastic depth skips different"),
        (["step=graphed", "model/survival=uniform"], "step=graphed: stochastic depth skips different"),
        (["step=compiled", "memory=recompute_units"], "compiled code decides itself what to store; use memory=full"),
        (["step=compiled_graphed", "memory=recompute_units"], "compiled code decides itself"),
        (["step=graphed", "memory=recompute_units", "model/shortcut=dropout"], "a graph cannot draw"),
        (["step=compiled", "devices=2"], "step=compiled devices=2: supports one process only"),
        (["step=graphed", "devices=2"], "step=graphed devices=2: supports one process only"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_cannot_be_compiled_or_captured_is_refused_by_the_check(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(row(Path("unused"), "device=cpu", *overrides).config)


@pytest.mark.parametrize("step", ["graphed", "compiled_graphed"])
def test_graphs_are_refused_where_there_is_no_gpu(step: str) -> None:
    config = row(Path("unused"), "device=cpu", f"step={step}").config
    check(config)  # which a row for SLURM passes on a machine without GPUs
    message = f"step={step}: CUDA graphs need a GPU, the device is cpu; use step=eager or compiled"
    for refused in (
        Local(stacked=1, retry=None).check,
        Pool(runs_per_device=1, retry=None).check,
        lambda config: prepare(config, CPU, torch.float32),
    ):
        with pytest.raises(UserError, match=message):
            refused(config)


def test_a_step_is_no_part_of_what_a_run_is_and_a_change_of_it_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    changes = [*SMALL, "epochs=1", "device=cpu"]
    folder.freeze(row(tmp_path, *changes).config, Origin())
    run(folder)
    (folder.path / "result.json").unlink()
    changed = row(tmp_path, *changes, "step=compiled").config
    folder.check(changed)
    folder.freeze(changed, Origin())
    assert run(folder).status == "finished"
    assert "started with step eager, resumes with compiled" in (folder.path / "log.txt").read_text()
