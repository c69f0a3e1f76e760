"""Replayed forward passes against plain ones: the parts that need no GPU here, and on a GPU (mark `gpu`) the graphs."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepnets.config.schema import StepKind
from deepnets.errors import UserError
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training, fit
from deepnets.training.step import Captured, check_network, forward_of
from tests.command import row

# Three epochs of five batches of 256 and one of 157; learning rates that are exact in float32 too.
TINY = ["dataset=digits", "batch_size=256", "epochs=3", "evaluation_batch_size=100", "optimizer.lr=0.03125"]
FALLING = ["schedule.milestones=[1,2]", "schedule.of=3", "schedule.factor=0.5"]
EPOCH, EVALUATION = 6, 4  # batches
NET = ["model.depth=8", "model.widths=[4,8,8]"]
GRAPHS = ["graphed", "compiled_graphed"]


def prepared(device: str, *changes: str, precision: torch.dtype = torch.float32) -> Training:
    net = [] if any(change.startswith("model=") for change in changes) else NET
    config = row(Path("unused"), *TINY, *FALLING, *net, f"device={device}", *changes).config
    return prepare(config, torch.device(device), precision)


def trained(training: Training) -> dict[str, Any]:
    """What is seen of a training, and where it ends."""
    losses, rates, gradients, means = [], [], [], []
    for state in fit(training):
        losses.append(state.loss)
        rates.append(state.learning_rate)
        gradients.append(sum(p.grad.double().square().sum() for p in state.model.parameters()))
        means += [(mean.loss, mean.error) for mean in state.completed.values()]
    return {
        "losses": torch.stack(losses),
        "gradients": torch.stack(gradients),
        "means": torch.tensor(means),
        "rates": rates,
        "optimizer": training.optimizer.state_dict()["state"],
        "model": training.model.state_dict(),
        "draws": torch.rand(1, device=training.device),
    }


def assert_equal(ours: dict[str, Any], plain: dict[str, Any], rtol: float = 1e-3, atol: float = 1e-4) -> None:
    assert ours["rates"] == plain["rates"]
    for what in ("losses", "gradients", "means", "optimizer", "model", "draws"):
        torch.testing.assert_close(ours[what], plain[what], rtol=rtol, atol=atol, msg=lambda m, what=what: what + m)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In place of torch's captures, which need a GPU: warm-up passes as torch runs them, and one module for all calls.

    Holds the number of images of each capture, and a 0 for each call of what it returned.
    """
    seen: list[int] = []

    def capture(
        network: nn.Module, sample: tuple[Tensor], allow_unused_input: bool, capture_error_mode: str
    ) -> Callable[[Tensor], Tensor]:
        assert not (torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled())
        assert allow_unused_input
        assert capture_error_mode == "thread_local"  # as another thread may pin images
        seen.append(len(sample[0]))
        for _ in range(3):
            logits = network(*sample)
            torch.autograd.grad(logits, list(network.parameters()), torch.empty_like(logits))
        parameters = list(network.parameters())
        plainly = network.forward

        def replay(images: Tensor) -> Tensor:
            seen.append(0)
            assert images.shape == sample[0].shape
            assert all(now is then for now, then in zip(network.parameters(), parameters, strict=True))
            return plainly(sample[0].copy_(images))

        network.forward = replay
        return network

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    return seen


def graphed(*changes: str, precision: torch.dtype = torch.float32) -> Training:
    """As `step=graphed` has it, on the CPU."""
    training = prepared("cpu", *changes, precision=precision)
    training.forward = forward_of("graphed", training.model, training.batches.batch_size)
    return training


@pytest.mark.parametrize(
    "changes",
    [
        ["optimizer=nesterov"],
        ["optimizer=adam", "optimizer.lr=0.0078125", "model.batchnorm_images=64"],
        ["optimizer=sgd", "optimizer.momentum=0", "model/shortcut=dropout"],
    ],
    ids="+".join,
)
def test_a_capture_leaves_no_trace_in_statistics_and_draws(captures: list[int], changes: list[str]) -> None:
    plain = trained(prepared("cpu", *changes))
    assert len(set(plain["rates"])) == 3
    assert_equal(trained(graphed(*changes)), plain, rtol=0, atol=0)
    assert captures == [256, *[0] * 15]  # of the 18 batches three are short


class Following(nn.Module):
    """Follows a mean in a buffer that each pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


def test_a_network_that_replaces_a_buffer_is_not_captured(captures: list[int]) -> None:
    with pytest.raises(UserError, match=r"^step=graphed: a pass replaces the buffer 1\.mean instead of writing"):
        Captured(nn.Sequential(nn.Linear(3, 3), Following()))(torch.ones(2, 3))


def test_a_capture_computes_in_bfloat16(captures: list[int]) -> None:
    plain = trained(prepared("cpu", precision=torch.bfloat16))
    assert_equal(trained(graphed(precision=torch.bfloat16)), plain, rtol=0, atol=0)
    assert captures


def test_a_loaded_state_needs_no_new_capture(captures: list[int]) -> None:
    changes = ["optimizer=nesterov", "model/shortcut=dropout"]
    whole, file = graphed(*changes), io.BytesIO()
    for state in fit(whole):
        if state.iteration == EPOCH + 3 and not file.tell():
            torch.save(state.state_dict(), file)
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    for resumed in (graphed(*changes), whole):
        file.seek(0)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for _ in fit(resumed):
            pass
        torch.testing.assert_close(resumed.model.state_dict(), expected, rtol=0, atol=0)
    assert captures.count(256) == 2


@pytest.fixture
def exact() -> Iterator[None]:
    """Algorithms of cuDNN that add in one order, in float32 throughout: what differs then is how they were called."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.allow_tf32
    cudnn.deterministic, cudnn.allow_tf32 = True, False
    yield
    cudnn.deterministic, cudnn.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("step", ["compiled", *GRAPHS])
@pytest.mark.parametrize(
    "changes",
    [
        ["model/ordering=original"],
        ["model/shortcut=none", "optimizer=caffe_nesterov"],
        ["model/ordering=full_preactivation", "model/shortcut=exclusive_gating_b6"],
        ["model.batchnorm_images=64", "optimizer=adam", "optimizer.lr=0.0078125"],
        ["model/shortcut=dropout"],
        ["model/block=bottleneck", "model.depth=11", "model/shortcut=dropout_inverted"],
        ["model=highway_fc10", "optimizer=sgd"],
    ],
    ids="+".join,
)
def test_every_step_is_the_plain_one(changes: list[str], step: str) -> None:
    """Schedule, short batches, dropout, statistics, gradients left behind, and the next random number."""
    plain = trained(prepared("cuda:0", *changes))
    ours = trained(prepared("cuda:0", *changes, f"step={step}"))
    if step == "graphed":
        assert_equal(ours, plain)
    # Compiled code rounds otherwise: where that turns the sign of a ReLU's input, training carries it on.
    torch.testing.assert_close(ours["losses"][:EPOCH], plain["losses"][:EPOCH], rtol=5e-3, atol=0)
    torch.testing.assert_close(ours["losses"], plain["losses"], rtol=0.1, atol=0)
    torch.testing.assert_close(ours["gradients"][:EPOCH], plain["gradients"][:EPOCH], rtol=0.1, atol=0)
    assert ours["rates"] == plain["rates"]
    assert torch.equal(ours["draws"], plain["draws"])


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("step", GRAPHS)
def test_bfloat16_is_that_of_the_plain_step(step: str) -> None:
    plain, ours = (trained(prepared("cuda:0", f"step={s}", precision=torch.bfloat16)) for s in ("eager", step))
    tolerance = 1e-3 if step == "graphed" else 0.05  # compiled code rounds less often
    torch.testing.assert_close(ours["losses"], plain["losses"], rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("memory", ["recompute_activations", "recompute_units", "recompute_segments"])
def test_a_graph_computes_again_what_was_not_kept(memory: str) -> None:
    plain = trained(prepared("cuda:0", "model.depth=14"))
    assert_equal(trained(prepared("cuda:0", "model.depth=14", "step=graphed", f"memory={memory}")), plain)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("step", GRAPHS)
@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
def test_a_state_taken_anywhere_continues_elsewhere_and_in_place(step: str, optimizer: str) -> None:
    changes = [f"optimizer={optimizer}", "optimizer.lr=0.0078125", "model/shortcut=dropout", f"step={step}"]
    whole, file = prepared("cuda:0", *changes), io.BytesIO()
    for state in fit(whole):
        if state.iteration == EPOCH + 3 and not file.tell():  # between two replays
            torch.save(state.state_dict(), file)
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    for resumed in (prepared("cuda:0", *changes), whole):  # `whole` has a graph that holds its former tensors
        file.seek(0)
        resumed.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        assert resumed.iteration == EPOCH + 3
        for _ in fit(resumed):
            pass
        torch.testing.assert_close(resumed.model.state_dict(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("step", ["eager", "compiled", *GRAPHS])
def test_nothing_waits_for_the_device_before_the_end_of_an_epoch(step: str) -> None:
    states = fit(prepared("cuda:0", f"step={step}"))
    for _ in range(EPOCH + EVALUATION + 1):  # in the first epoch code is compiled and the graph captured
        next(states)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(EPOCH + EVALUATION):
            next(states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert next(states).completed


@pytest.mark.gpu(devices=2)
def test_a_graph_is_captured_on_the_gpu_of_its_run() -> None:
    plain, ours = (trained(prepared("cuda:1", f"step={step}")) for step in ("eager", "graphed"))
    assert ours["losses"].device == torch.device("cuda", 1)
    torch.testing.assert_close(ours["losses"], plain["losses"], rtol=1e-2, atol=1e-3)


def test_streamed_images_are_captured_where_other_threads_may_pin_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, name = nn.Linear(1, 1), "make_graphed_callables"
    monkeypatch.setattr(torch.cuda, name, lambda network, sample, capture_error_mode="global": network)
    check_network(StepKind.graphed, model, is_streamed=True)
    monkeypatch.setattr(torch.cuda, name, lambda network, sample: network)
    check_network(StepKind.graphed, model)
    with pytest.raises(UserError, match=r"torch .* cannot capture a graph while a thread pins images; use"):
        check_network(StepKind.graphed, model, is_streamed=True)
