"""Trainings that step together against each of them trained alone."""

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepnets.config.project import CONF
from deepnets.config.schema import Config
from deepnets.run import build_model
from deepnets.runs import checkpoint
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training, fit
from deepnets.training.stack import Stack, fit_together, obstacle
from tests.command import row

CPU = torch.device("cpu")
# 1437 images in batches of 400: the last one, of 237, is short; the second epoch is cut.
SHORT = ["batch_size=400", "epochs=null", "iterations=6"]
OWN = [
    ["optimizer.lr=0.5", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01", "seed=1"],
    ["optimizer.lr=0.05", "optimizer.momentum=0.5", "seed=2"],
    ["optimizer.lr=0.1", "optimizer.momentum=0.0", "schedule.milestones=[40]", "seed=3"],
]
CONNECTED = ["model=highway_fc10", "model.depth=5", "model.width=12"]
CONVOLUTIONAL = ["model.depth=8", "model.widths=[4,4,4]"]
HIGHWAY = ["model=highway_mnist_w16", "model.widths=[4,4,4]", "model.dropouts=[0,0,0]", "model.input_dropout=0"]
NETS = {
    "highway_relu": [*CONNECTED, "optimizer=sgd"],
    "highway_tanh_nesterov": [*CONNECTED, "model.layer=[linear,tanh]", "optimizer=nesterov"],
    "decay_of_everything": [*CONNECTED, "optimizer=sgd", "optimizer.decayed=all"],
    "three_groups": [*CONNECTED, "optimizer=caffe_nesterov"],
    "plain": [*CONNECTED, "model/shortcut=none", "optimizer=sgd"],
    "residual": [*CONNECTED, "model/shortcut=identity", "optimizer=sgd"],
    "convolutions": [*CONVOLUTIONAL, "optimizer=sgd"],
    "ghost_batches": [*CONVOLUTIONAL, "optimizer=sgd", "model.batchnorm_images=150"],
    "mixed_images": [*CONVOLUTIONAL, "optimizer=sgd", "dataset/augmentation=mixup"],
    "convolutional_gates": [*CONVOLUTIONAL, "optimizer=nesterov", "model/shortcut=exclusive_gating_b6"],
    "convolutional_highway": [*HIGHWAY, "optimizer=caffe_nesterov"],
}
GATED = {"highway_relu", "decay_of_everything"}  # their second row starts with another bias


def configs(net: str) -> list[Config]:
    own = [[*given, *(["model.shortcut.bias=-4"] if net in GATED and "seed=2" in given else [])] for given in OWN]
    if "nesterov" in " ".join(NETS[net]):  # which needs momentum
        own = [[word for word in given if word != "optimizer.momentum=0.0"] for given in own]
    return [row(CONF, *SHORT, *NETS[net], *given).config for given in own]


def trainings(of: Iterable[Config], precision: torch.dtype = torch.float64) -> list[Training]:
    """Each at its beginning; in float64 all rounding but that of the loss is far below what is compared."""
    prepared = [prepare(config, CPU, precision) for config in of]
    for training in prepared if precision == torch.float64 else ():
        training.model.double()
        for batches in (training.batches, *training.evaluated.values()):
            batches.normalization = replace(batches.normalization, of_each=Tensor.double)
    return prepared


def trained_alone(of: list[Training]) -> list[list[tuple[float, ...]]]:
    """The losses and errors of each epoch of each."""
    return [[numbers(state) for state in fit(training) if state.completed] for training in of]


def trained_together(of: list[Training]) -> list[list[tuple[float, ...]]]:
    epochs = [[numbers(each) for each in of] for _ in fit_together(Stack(of)) if of[0].completed]
    return [list(own) for own in zip(*epochs, strict=True)]


def numbers(training: Training) -> tuple[float, ...]:
    return tuple(number for mean in training.completed.values() for number in (mean.loss, mean.error))


def assert_close(ours: Training, theirs: Training, **tolerance: float) -> None:
    for name, weight in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weight, **tolerance, msg=name)
    for own, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, **tolerance)
        assert set(ours.optimizer.state[own]) == set(theirs.optimizer.state[other])
        for moment, buffer in theirs.optimizer.state[other].items():
            torch.testing.assert_close(ours.optimizer.state[own][moment], buffer, **tolerance)


@pytest.mark.parametrize("net", NETS)
def test_each_training_is_as_alone(net: str) -> None:
    alone, together = trainings(configs(net)), trainings(configs(net))
    expected = trained_alone(alone)
    assert [len(epochs) for epochs in expected] == [2] * len(alone)
    ours, theirs = torch.tensor(trained_together(together)), torch.tensor(expected)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    for ours, theirs in zip(together, alone, strict=True):
        assert (ours.iteration, ours.epoch, ours.images, ours.learning_rate) == (
            theirs.iteration,
            theirs.epoch,
            theirs.images,
            theirs.learning_rate,
        )
        assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(together[0].model.head.weight, together[1].model.head.weight)


@pytest.mark.parametrize("net", ["highway_relu", "convolutional_gates"])
def test_bfloat16_is_as_autocast_has_it(net: str) -> None:
    alone, together = (trainings(configs(net), torch.bfloat16) for _ in range(2))
    starts = [training.model.head.weight.detach().clone() for training in alone]
    for steps in map(fit, alone):
        next(steps)
    next(fit_together(Stack(together)))
    for ours, theirs, start in zip(together, alone, starts, strict=True):
        ours, theirs = ours.model.head.weight - start, theirs.model.head.weight - start
        assert 0 < (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("net", ["highway_relu", pytest.param("ghost_batches", marks=pytest.mark.slow)])
def test_a_state_resumes_alone_and_together(net: str) -> None:
    alone, together = (trainings(configs(net)) for _ in range(2))
    for steps in (iter(fit_together(Stack(together))), *map(fit, alone)):
        for _ in range(2):
            next(steps)
    crossed = trainings(configs(net)), trainings(configs(net))
    for others, mine in zip((alone, together), crossed, strict=True):
        for other, own in zip(others, mine, strict=True):
            own.load_state_dict(as_file(other.state_dict()))
    assert [training.iteration for training in crossed[0]] == [2, 2, 2]
    trained_together(crossed[0])
    trained_alone(crossed[1])
    undisturbed = trainings(configs(net))
    trained_alone(undisturbed)
    for ours in crossed:
        for one, other in zip(ours, undisturbed, strict=True):
            assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_checkpoint_holds_one_training_only(tmp_path: Path) -> None:
    sizes = []
    for number, count in enumerate((1, 3)):
        together = trainings(configs("highway_relu"))[:count]
        next(fit_together(Stack(together)))
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpoint.save(folder, together[0].state_dict())
        sizes.append((folder / checkpoint.LAST).stat().st_size)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("net", ["highway_relu", "ghost_batches"])
def test_a_network_that_blows_up_leaves_its_neighbours_as_they_are(net: str) -> None:
    tame, wild = configs(net), configs(net)
    wild[1].optimizer["lr"] = 1e30
    ends = []
    for chosen in (tame, wild):
        together = trainings(chosen)
        trained_together(together)
        ends.append([training.model.state_dict() for training in together])
    assert not all(weight.isfinite().all() for weight in ends[1][1].values())
    for place in (0, 2):
        for name, weight in ends[0][place].items():
            assert torch.equal(ends[1][place][name], weight), name


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model=highway_fc50"], None),
        (HIGHWAY, None),
        (["model=resnet110", "model.batchnorm_images=64"], None),
        (["model=highway_cifar19"], "dropout drops different"),
        (["model=resnet20", "model/shortcut=dropout"], "dropout drops different"),
        (["model=stochastic_depth110"], "stochastic depth skips different"),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, list) else "",
)
def test_what_can_be_stacked(overrides: list[str], reason: str | None) -> None:
    with torch.device("meta"):
        found = obstacle(build_model([*overrides, "dataset=mnist"]), (1, 28, 28))
    assert found is None if reason is None else found.startswith(reason)


class Noisy(nn.Module):
    """Draws, as a user's own layer may."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Asking(nn.Module):
    """Asks the host what to do."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if x.sum() > 0 else x


class Holding(nn.Module):
    """Has a tensor of its own that no stack can hold for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.rand(2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


class Mapping(Holding):
    """Keeps the tensor in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.masks = {"all": self.__dict__.pop("mask")}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.masks["all"]


class Closing(nn.Module):
    """Keeps the tensor in a function."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.rand(2, 1, 1)
        self.masked = lambda x: x * mask

    def forward(self, x: Tensor) -> Tensor:
        return self.masked(x)


class Replacing(nn.Module):
    """Follows a mean in a buffer that each pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3), keepdim=True)[0]
        return x - self.mean


class Cut(nn.Module):
    """Has a parameter whose rows are not side by side in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(2, 4)[:, :1])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, :, None]


class Negated(nn.Module):
    """Does the same for every row."""

    def forward(self, x: Tensor) -> Tensor:
        return -x


@pytest.mark.parametrize("layer", [Noisy, Asking, Holding, Mapping, Closing, Cut, Negated])
def test_a_layer_of_your_own_is_tried_out(layer: type[nn.Module]) -> None:
    with torch.device("meta"):
        found = obstacle(nn.Sequential(nn.Conv2d(1, 2, 3), layer()), (1, 4, 4))
    assert found is None if layer is Negated else found.startswith(f"{layer.__name__}: ")


def test_a_pass_that_replaces_a_buffer_is_noticed() -> None:
    found = obstacle(nn.Sequential(nn.Conv2d(1, 2, 3), Replacing()), (1, 4, 4))
    assert found == "a pass replaces the buffer 1.mean instead of writing into it"


def as_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
