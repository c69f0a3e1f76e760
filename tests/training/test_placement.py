"""Where tensors lie: data, training, evaluation, log, checkpoint and resumption on a device that is not the CPU.

Without a GPU: backward passes on a stand-in that refuses tensors of two devices, forward passes on fake CUDA tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnets.analysis.commands.curvature import Hessian, trace_samples
from deepnets.analysis.commands.landscape import random_direction, score_at
from deepnets.config.compose import compose
from deepnets.data import batches
from deepnets.data.dataset import Splits
from deepnets.data.normalization import Normalization
from deepnets.data.source import Split
from deepnets.models import resize
from deepnets.run import build_model
from deepnets.runs import checkpoint, resume
from deepnets.runs.contents import Origin
from deepnets.runs.execute import run
from deepnets.runs.folder import RunFolder
from deepnets.runs.resume import Session
from deepnets.training import assembly
from deepnets.training.assembly import prepare
from deepnets.training.fit import Sums, Training, evaluate, fit
from tests.command import metrics, row
from tests.standin import DEVICE, Held, stand_in

SLOW = pytest.mark.slow
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NET = ["model.depth=8", "model.widths=[4,4,6]", "precision=fp32", "device=cpu", "epochs=1", "batch_size=250"]
NET += ["model/shortcut=dropout_inverted", "model/survival=linear_decay", "model.batchnorm_images=100"]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The stand-in, on which nothing is cast."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    assembly._on_cpu.cache_clear()
    with stand_in() as there:
        yield there
    assembly._on_cpu.cache_clear()


def trained(device: torch.device, net: Sequence[str] = NET) -> Training:
    training = prepare(compose(net).config, device, torch.float32)
    for _ in fit(training):
        pass
    return training


def test_training_elsewhere_is_that_of_the_cpu_bit_by_bit(device: torch.device) -> None:
    ours = trained(device)
    parts = [*ours.model.state_dict().values(), *(parameter.grad for parameter in ours.model.parameters())]
    parts += [state["momentum_buffer"] for state in ours.optimizer.state.values()]
    parts += [ours.sums.values, ours.loss, ours.batches.split.images, ours.batches.normalization.mean]
    assert all(isinstance(part, Held) for part in parts)
    plain = trained(CPU)
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name].held, weight), name


NEWER = {
    "transformer": [
        *("model=vit_digits", "model.dropout=0.1", "model/survival=linear_decay", "optimizer=adamw"),
        "optimizer.eps=0.001",  # or it would scale up the rounding of a key's bias, whose gradient is 0
    ],
    "concatenation": ["model=densenet40_12", "model.units=[1,1,1]", "model.growth=4", "model.dropout=0.2"],
    "without normalisation": ["model=resnet56_fixup", "model.depth=8", "model.widths=[4,4,6]", "optimizer=scalar_sgd"],
}


@pytest.mark.slow
@pytest.mark.parametrize("net", NEWER)
def test_newer_networks_train_there_as_on_the_cpu(
    device: torch.device, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # a view of a parameter is not to be had in it there
    overrides = [*NEWER[net], "optimizer.lr=0.001", *NET[2:4], "batch_size=250", "epochs=null", "iterations=2"]
    ours, plain = trained(device, overrides), trained(CPU, overrides)
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name].held, weight, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_analyses_compute_there(device: torch.device) -> None:
    def measured(there: torch.device) -> list[float]:
        training = trained(there, [*NET, "model/survival=none", "model/shortcut=identity"])
        model, (x, labels) = training.model, next(training.batches.epoch(0))
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        direction = random_direction(weights, torch.Generator().manual_seed(0))
        found = [*score_at(model.train(), weights, [(0.1, direction)], x, labels)]
        return found + trace_samples(Hessian(model.eval(), [(x[:8], labels[:8])]), [0])

    assert measured(device) == pytest.approx(measured(CPU), rel=1e-4)


MISPLACED: dict[str, Callable[[Training, pytest.MonkeyPatch], object]] = {}


def misplaced(place: Callable[[Training, pytest.MonkeyPatch], object]) -> None:
    MISPLACED[place.__name__] = place


def to_cpu(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, Held)
    return tensor.held


@misplaced
def labels(training: Training, patch: pytest.MonkeyPatch) -> None:
    training.batches.split = Split(training.batches.split.images, to_cpu(training.batches.split.labels))


@misplaced
def images(training: Training, patch: pytest.MonkeyPatch) -> None:
    training.batches.split = Split(to_cpu(training.batches.split.images), training.batches.split.labels)


@misplaced
def mean_of_the_pixels(training: Training, patch: pytest.MonkeyPatch) -> None:
    normalization = training.batches.normalization
    training.batches.normalization = replace(normalization, mean=to_cpu(normalization.mean))


@misplaced
def order_of_the_epoch(training: Training, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "_moved", lambda x, device: x)


@misplaced
def weight_of_the_head(training: Training, patch: pytest.MonkeyPatch) -> None:
    training.model.head.weight = nn.Parameter(to_cpu(training.model.head.weight.detach()))


@misplaced
def running_variance(training: Training, patch: pytest.MonkeyPatch) -> None:
    training.model.stem[1].bn.running_var = to_cpu(training.model.stem[1].bn.running_var)


@misplaced
def padding_of_the_shortcut(training: Training, patch: pytest.MonkeyPatch) -> None:
    def pad(x: Tensor, widths: tuple[int, ...]) -> Tensor:
        return torch.cat([x, torch.zeros(len(x), widths[-1], *x.shape[2:])], 1)

    patch.setattr(resize, "pad", pad)


@misplaced
def momentum(training: Training, patch: pytest.MonkeyPatch) -> None:
    for parameter in training.model.parameters():
        training.optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)


@misplaced
def sums_of_the_epoch(training: Training, patch: pytest.MonkeyPatch) -> None:
    training.sums.values = to_cpu(training.sums.values)


@misplaced
def images_of_the_test(training: Training, patch: pytest.MonkeyPatch) -> None:
    split = training.evaluated["test"].split
    training.evaluated["test"].split = Split(to_cpu(split.images), split.labels)


@pytest.mark.parametrize("place", MISPLACED)
def test_a_tensor_that_was_left_on_the_cpu_is_an_error(
    device: torch.device, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = prepare(compose([*NET, "epochs=null", "iterations=2"]).config, device, torch.float32)
    MISPLACED[place](training, monkeypatch)
    with pytest.raises(RuntimeError, match=r"is on the CPU|on the same device"):
        for _ in fit(training):
            pass


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
def test_a_run_logs_saves_and_resumes_there(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "Session", lambda _, heartbeat, owner: Session(DEVICE, heartbeat, owner))
    folders = [RunFolder(tmp_path / name) for name in ("whole", "stopped")]
    for folder in folders:
        folder.freeze(row(tmp_path, *NET, "epochs=2").config, Origin())
    run(folders[0])
    with monkeypatch.context() as patch:

        def half(training: Training) -> Iterator[Training]:
            for state in fit(training):
                yield state
                if state.epoch == 1 and state.batch == 3:
                    return

        patch.setattr("deepnets.runs.execute.fit", half)
        patch.setattr(resume.Execution, "finish", resume.Execution.save)
        with pytest.raises(AssertionError):  # it has no result
            run(folders[1])
    result = run(folders[1])
    assert "resuming at iteration 9 of 12" in (folders[1].path / "log.txt").read_text()
    assert result.test_error == folders[0].result.test_error
    assert metrics(folders[1].path) == metrics(folders[0].path)
    first, second = (checkpoint.load(folder.path)[0]["training"]["model"] for folder in folders)
    assert all(type(weight) is Tensor and torch.equal(weight, second[name]) for name, weight in first.items())


def faked(model: nn.Module) -> nn.Module:
    """With parameters and buffers on `GPU`, in channels_last."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    layout = torch.channels_last if tensor.ndim == 4 else torch.contiguous_format
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=GPU, memory_format=layout)
                    tensors[name] = nn.Parameter(empty) if tensors is module._parameters else empty
    return model


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=preact110", "model.depth=20"],
        ["model=resnet20", "model/shortcut=exclusive_gating_b6", "model.batchnorm_images=64"],
        ["model=resnet20", "model/shortcut=dropout", "optimizer=adam", "optimizer.lr=0.001"],
        ["model=highway_cifar19"],
        pytest.param(["model=vit_cifar", "model.depth=4", "model.dropout=0.1", "optimizer=adamw"], marks=SLOW),
        pytest.param(["model=densenet_bc100_12", "model.units=[1,2,1]", "model.dropout=0.2"], marks=SLOW),
        pytest.param(["model=resnet56_fixup", "model.depth=8", "optimizer=scalar_sgd"], marks=SLOW),
    ],
    ids="+".join,
)
def test_forward_loss_and_evaluation_stay_on_cuda(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors refuse to be mixed, and any value that the host would have to wait for; autocast needs a GPU."""
    config = compose([*overrides, "dataset=cifar10"]).config
    model = build_model([*overrides, "dataset=cifar10"])
    with FakeTensorMode():
        images = torch.empty(300, 32, 32, 3, dtype=torch.uint8, device=GPU)
        split = Split(images, torch.empty(300, dtype=torch.int64, device=GPU))
        normalization = Normalization(torch.zeros(3, device=GPU), torch.ones(3, device=GPU))
        monkeypatch.setattr(assembly, "splits_of", lambda *_: Splits(split, None, split, normalization))
        monkeypatch.setattr(batches, "_moved", lambda x, device: torch.empty(x.shape, dtype=x.dtype, device=device))
        monkeypatch.setattr(assembly, "model_of", lambda *_: faked(model))
        monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: module)  # which fake tensors cannot do
        training = prepare(config, GPU, torch.float32)
        weights = [weight for group in training.optimizer.param_groups for weight in group["params"]]
        assert {weight.device for weight in weights} == {GPU}
        training.model.train()
        for x, labels in training.batches.epoch(0):
            logits = training.forward(x)
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            training.end_step(loss.detach(), logits.detach(), labels)
        assert training.batch == 3
        assert training.loss.device == training.sums.values.device == GPU
        sums = Sums(GPU)
        assert [
            each.values.device for each in evaluate(training.model, training.evaluated["test"], sums, torch.float32)
        ] == [GPU]
