"""Trainings that step together against each of them trained alone."""

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

from deepnets.config.schema import CONF, Config
from deepnets.models.stacked import unstackable
from deepnets.run import build_model
from deepnets.runs import checkpoint
from deepnets.training.assembly import prepare
from deepnets.training.fit import Training, fit
from deepnets.training.stack import Stack, fit_together
from tests.command import row

CPU = torch.device("cpu")
# 1437 images in batches of 400: the last one, of 237, is short; the second epoch is cut.
NET = ["model=highway_fc10", "model.depth=5", "model.width=12", "batch_size=400", "epochs=null", "iterations=6"]
OWN = [
    ["optimizer.lr=0.5", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01", "seed=1"],
    ["optimizer.lr=0.05", "optimizer.momentum=0.5", "model.shortcut.bias=-4", "seed=2"],
    ["optimizer.lr=0.1", "optimizer.momentum=0.0", "schedule.milestones=[40]", "seed=3"],
]
NETS = {
    "highway_relu": ["optimizer=sgd"],
    "highway_tanh_nesterov": ["model.layer=[linear,tanh]", "optimizer=nesterov"],
    "decay_of_everything": ["optimizer=sgd", "optimizer.decayed=all"],
    "three_groups": ["optimizer=caffe_nesterov"],
    "plain": ["model/shortcut=none", "optimizer=sgd"],
    "residual": ["model/shortcut=identity", "optimizer=sgd"],
}


def configs(net: str) -> list[Config]:
    lacking = {"plain": "bias", "residual": "bias", "highway_tanh_nesterov": "m=0.0", "three_groups": "m=0.0"}.get(net)
    own = [[each for each in given if lacking is None or lacking not in each] for given in OWN]
    return [row(CONF, *NET, *NETS[net], *each).config for each in own]


def trainings(of: Iterable[Config], precision: torch.dtype = torch.float32) -> list[Training]:
    return [prepare(config, CPU, precision) for config in of]


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
    torch.testing.assert_close(ours[..., ::2], theirs[..., ::2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[..., 1::2], theirs[..., 1::2], rtol=0, atol=100 / 360 + 1e-3)  # of one image
    for ours, theirs in zip(together, alone, strict=True):
        assert (ours.iteration, ours.epoch, ours.images, ours.learning_rate) == (
            theirs.iteration,
            theirs.epoch,
            theirs.images,
            theirs.learning_rate,
        )
        assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
    assert not torch.allclose(together[0].model.head.weight, together[1].model.head.weight)


def test_bfloat16_is_as_autocast_has_it() -> None:
    alone, together = (trainings(configs("highway_relu"), torch.bfloat16) for _ in range(2))
    starts = [training.model.head.weight.detach().clone() for training in alone]
    for one, _ in zip(map(fit, alone), alone, strict=True):
        next(one)
    next(fit_together(Stack(together)))
    for ours, theirs, start in zip(together, alone, starts, strict=True):
        ours, theirs = ours.model.head.weight - start, theirs.model.head.weight - start
        assert (ours - theirs).norm() < 0.02 * theirs.norm()
        assert ours.norm() > 0


def test_a_state_goes_on_alone_and_together() -> None:
    alone, together = (trainings(configs("highway_relu")) for _ in range(2))
    for steps in (iter(fit_together(Stack(together))), *map(fit, alone)):
        for _ in range(2):
            next(steps)
    crossed = trainings(configs("highway_relu")), trainings(configs("highway_relu"))
    for others, mine in zip((alone, together), crossed, strict=True):
        for other, own in zip(others, mine, strict=True):
            own.load_state_dict(as_file(other.state_dict()))
    assert [training.iteration for training in crossed[0]] == [2, 2, 2]
    trained_together(crossed[0])
    trained_alone(crossed[1])
    undisturbed = trainings(configs("highway_relu"))
    trained_alone(undisturbed)
    for ours in crossed:
        for one, other in zip(ours, undisturbed, strict=True):
            assert_close(one, other, rtol=1e-3, atol=2e-5)


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


def test_a_network_that_blows_up_leaves_its_neighbours_as_they_are() -> None:
    tame, wild = configs("highway_relu"), configs("highway_relu")
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
    ("overrides", "kinds"),
    [
        (["model=highway_fc50"], []),
        (["model=plain_fc10"], []),
        (["model=highway_fc10", "model/shortcut=dropout"], ["Dropped"]),
        (["model=highway_mnist_w16"], ["Conv2d", "Dropout", "Flatten", "Highway", "MaxPool2d"]),
    ],
)
def test_what_can_be_stacked(overrides: list[str], kinds: list[str]) -> None:
    assert unstackable(build_model([*overrides, "dataset=mnist"])) == kinds


def test_an_unknown_layer_is_never_stacked() -> None:
    model = build_model(["model=plain_fc10"])
    model.stem.append(nn.Dropout())
    assert unstackable(model) == ["Dropout"]


def as_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
