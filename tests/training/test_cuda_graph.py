"""Replayed iterations against plain ones: the parts that need no GPU here, and on a GPU (mark `gpu`) the graphs."""

import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from deepnets.runs.folder import RunFolder
from deepnets.training.assembly import prepare
from deepnets.training.cuda_graph import Graphed
from deepnets.training.fit import Training, fit
from deepnets.training.step import Iteration, forward_of
from tests.command import row, train

# Three epochs of five batches of 256 and one of 157; rates that are exact in float32 too.
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
    optimizer = training.optimizer.state_dict()
    return {
        "losses": torch.stack(losses),
        "gradients": torch.stack(gradients),
        "means": torch.tensor(means),
        "rates": rates,
        "groups": optimizer["param_groups"],
        "optimizer": optimizer["state"],
        "model": training.model.state_dict(),
        "draws": torch.rand(1, device=training.device),
    }


def assert_equal(ours: dict[str, Any], plain: dict[str, Any], rtol: float = 1e-3, atol: float = 1e-4) -> None:
    for what in ("rates", "groups"):  # plain numbers, as schedules and checkpoints know them
        assert ours[what] == plain[what], what
    for what in ("losses", "means", "optimizer", "model", "draws"):
        torch.testing.assert_close(ours[what], plain[what], rtol=rtol, atol=atol, msg=lambda m, what=what: what + m)


class CalledAgain:
    """In place of a graph: the same call, on the same tensors, at every replay."""

    aside = nullcontext

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        return function


@pytest.mark.parametrize(
    "changes",
    [
        ["optimizer=nesterov"],
        ["optimizer=caffe_nesterov"],
        ["optimizer=adam", "optimizer.lr=0.0078125"],
        ["optimizer=sgd", "optimizer.momentum=0", "model/shortcut=dropout"],
    ],
    ids="+".join,
)
def test_kept_tensors_carry_batches_rates_and_sums_to_every_replay(changes: list[str]) -> None:
    plain = trained(prepared("cpu", *changes))
    ours = prepared("cpu", *changes)
    iteration = Iteration(forward_of(ours.model, torch.float32), ours.optimizer, ours.sums)
    ours.iterate = Graphed(iteration, ours.optimizer, ours.batches.batch_size, CalledAgain())
    assert len(set(plain["rates"])) == 3
    assert_equal(trained(ours), plain, rtol=1e-5, atol=1e-6)


def test_iterations_before_the_capture_short_batches_and_replays_are_told_apart() -> None:
    did = []

    class Noted:
        def aside(self) -> nullcontext:
            did.append("aside")
            return nullcontext()

        def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
            did.append("captured")
            function()
            return lambda: did.append("replayed")

    ours = prepared("cpu")
    plainly = ours.iterate
    ours.iterate = Graphed(lambda *batch: did.append(len(batch[0])) or plainly(*batch), ours.optimizer, 256, Noted())
    for state in fit(ours):
        if state.iteration == EPOCH + 2:
            break
    assert did == [*["aside", 256] * 3, "captured", 256, *["replayed"] * 2, 157, *["replayed"] * 2]


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
    training = prepared("cuda:0", *changes, f"step={step}")
    ours = trained(training)
    if step == "graphed":
        assert_equal(ours, plain)
    # Compiled code rounds otherwise: where that turns the sign of a ReLU's input, training carries it on.
    torch.testing.assert_close(ours["losses"][:EPOCH], plain["losses"][:EPOCH], rtol=5e-3, atol=0)
    torch.testing.assert_close(ours["losses"], plain["losses"], rtol=0.1, atol=0)
    torch.testing.assert_close(ours["gradients"][:EPOCH], plain["gradients"][:EPOCH], rtol=0.1, atol=0)
    assert ours["rates"] == plain["rates"]
    assert torch.equal(ours["draws"], plain["draws"])
    assert isinstance(training.iterate, Graphed) == (step in GRAPHS)
    if step in GRAPHS:
        assert isinstance(training.iterate.replay.__self__, torch.cuda.CUDAGraph)


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
        if state.iteration == EPOCH + 3 and not file.print_line():  # between two replays
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


@pytest.mark.gpu
def test_seeds_side_by_side_on_one_gpu(tmp_path: Path) -> None:
    changes = [
        *TINY,
        *NET,
        "device=cuda:0",
        "launcher=pool",
        "launcher.runs_per_device=4",
        "step=graphed",
        "seed=0,1,2,3",
    ]
    done = train("-m", *changes, f"output_root={tmp_path}")
    assert done.returncode == 0, done.stderr
    results = [RunFolder(path.parent).result for path in sorted(tmp_path.glob("runs/*/seed*/result.json"))]
    assert [(result["status"], result["step"]) for result in results] == [("finished", "graphed")] * 4
    assert len({result["last_test_error"] for result in results}) > 1
