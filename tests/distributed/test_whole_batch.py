"""The same training on 1, 2 and 4 processes, in float64, on the CPU by gloo."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepnets.config.compose import compose
from deepnets.distributed.world import ALONE, World, joined, world_from_env
from deepnets.models.batchnorm import SynchronizedBatchNorm
from deepnets.models.parallel import Share, statistics_of
from deepnets.training.assembly import prepare
from tests.processes import in_processes

CPU = torch.device("cpu")
DIGITS = ["model.depth=8", "model.widths=[4,4,4]", "device=cpu"]
UNEVEN = [*DIGITS, "batch_size=158"]  # 1437 images: nine batches of 158, which 4 does not divide, and one of 15
PHOTOGRAPHS = ["dataset=synthetic", "dataset.source.size=16", "dataset.source.train=50", "batch_size=18", "device=cpu"]
NETS = {
    "whole batch": UNEVEN,
    "groups within processes": [*DIGITS, "batch_size=128", "model.batchnorm_images=32"],  # the last batch: one of 29
    "groups across processes": [*UNEVEN, "model.batchnorm_images=60"],
    "a part without images": [*DIGITS, "batch_size=717"],  # two batches of 717 and one of 3
    "stochastic depth": [*UNEVEN, "model.depth=14", "model/survival=linear_decay"],
    "dropout on shortcuts": [*UNEVEN, "model/shortcut=dropout"],
    "recomputation": [*UNEVEN, "model/shortcut=dropout", "model.batchnorm_images=60", "memory=recompute_units"],
    "dropout behind layers": [
        *("model=highway_cifar19", "model.widths=[4,4,4,10]", "model.units=[1,1,1,0]", "model.layer=[conv,bn,relu]"),
        *PHOTOGRAPHS,
    ],
    "transformer": [
        *("model=vit_digits", "model.dropout=0.1", "model/ordering=post_norm", "model/survival=linear_decay"),
        *UNEVEN[2:],
    ],
    "concatenation": [
        *("model=densenet_bc100_12", "model.units=[1,2,1]", "model.growth=4", "model.dropout=0.2"),
        *("model.batchnorm_images=5", *PHOTOGRAPHS),
    ],
    "without normalisation": ["model=resnet56_fixup", "model.depth=8", "model.widths=[4,4,6]", *PHOTOGRAPHS],
    "orthogonal weights": [*UNEVEN, "model/initialization=orthogonal"],
}


ARITHMETICS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}  # and what they round away, of values up to 10


def trained(overrides: list[str], world: World) -> dict[str, Any]:
    """Gradients of the first batch and of the epoch's short last one, and what has changed behind them."""
    torch.set_default_dtype(torch.float64)
    training = prepare(compose([*overrides, "optimizer.lr=0.01"]).config, CPU, torch.float64, world)
    training.model.train()
    gradients, labels = [], []
    for batch in (0, len(training.batches) - 1):
        x, y = next(training.batches.epoch(0, start=batch))
        loss = cross_entropy(training.replica(x.double()), y, reduction="sum")
        training.optimizer.zero_grad()
        (loss * world.size / training.batches.images_in(batch)).backward()
        training.optimizer.step()
        gradients += [parameter.grad.numpy().copy() for parameter in training.model.parameters()]
        labels.append(y.numpy())
    own = statistics_of(training.model)
    training.gather_statistics()
    draws = getattr(training.model, "draws", None)
    return {
        "gradients": gradients,
        "labels": labels,
        "own statistics": own.numpy(),
        "statistics": statistics_of(training.model).numpy().copy(),
        "draws": [torch.get_rng_state().numpy(), draws.get_state().numpy() if draws else None],
    }


def normalised(world: World, dtype: torch.dtype) -> dict[str, Any]:
    """A float32 layer on values whose mean is far above their deviation, one of which is 1."""
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(9, 4, 5, 5, generator=generator, dtype=torch.float32) for _ in range(2))
    x = (x + (1000 if dtype == torch.float32 else 4)).to(dtype, memory_format=torch.channels_last)
    share = Share(world.rank, world.shards(len(x)))
    layer = nn.BatchNorm2d(4, dtype=torch.float32)
    layer.load_state_dict(layer.state_dict() | {"weight": torch.tensor([1.0, -2, 3, 0.5]), "bias": torch.arange(4.0)})
    layer = SynchronizedBatchNorm(layer, share) if world.size > 1 else layer
    own = x[share.own].requires_grad_()
    y = layer(own)
    y.backward(dy.to(dtype, memory_format=torch.channels_last)[share.own])
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert y.dtype == own.grad.dtype == dtype
    by_image, summed = (y.detach(), own.grad), (layer.weight.grad, layer.bias.grad)
    statistics = layer.running_mean, layer.running_var
    return {
        name: [tensor.float().numpy() for tensor in tensors]
        for name, tensors in {"by image": by_image, "summed": summed, "statistics": statistics}.items()
    }


def done(world: World) -> dict[str, Any]:
    layers = {str(dtype): normalised(world, dtype) for dtype in ARITHMETICS}
    return layers | {name: trained(overrides, world) for name, overrides in NETS.items()}


def part() -> dict[str, Any]:
    """What each of several processes does: one start serves all tests."""
    world = world_from_env()
    with joined(world, CPU):
        return done(world)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    try:
        return done(ALONE)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.nightly)])
def processes(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """By rank."""
    return in_processes(request.param, part)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_gradients_statistics_and_draws_are_of_the_whole_batch(
    alone: dict[str, Any], processes: list[dict[str, Any]], name: str
) -> None:
    expected, seen = alone[name], [process[name] for process in processes]
    for number, labels in enumerate(expected["labels"]):
        assert [label for process in seen for label in process["labels"][number]] == list(labels)
    for process in seen:
        torch.testing.assert_close(process["gradients"], expected["gradients"], rtol=0, atol=1e-10)
        torch.testing.assert_close(process["statistics"], expected["statistics"], rtol=0, atol=1e-10)
        for drawn, alone_drawn in zip(process["draws"], expected["draws"], strict=True):
            assert (drawn == alone_drawn).all() if alone_drawn is not None else drawn is None


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rounding"), ARITHMETICS.items())
def test_a_layer_far_from_zero_and_in_bfloat16_is_that_of_one_process(
    alone: dict[str, Any], processes: list[dict[str, Any]], dtype: torch.dtype, rounding: float
) -> None:
    expected, seen = alone[str(dtype)], [process[str(dtype)] for process in processes]
    for number, values in enumerate(expected["by image"]):
        together = np.concatenate([process["by image"][number] for process in seen])
        np.testing.assert_allclose(together, values, rtol=rounding, atol=rounding)
    for number, values in enumerate(expected["summed"]):
        np.testing.assert_allclose(sum(process["summed"][number] for process in seen), values, rtol=1e-2, atol=1e-2)
    for process in seen:
        for mine, first, values in zip(
            process["statistics"], seen[0]["statistics"], expected["statistics"], strict=True
        ):
            assert (mine == first).all()
            np.testing.assert_allclose(mine, values, rtol=1e-4)


@pytest.mark.slow
def test_groups_within_processes_need_no_communication(processes: list[dict[str, Any]]) -> None:
    first, second, *_ = (process["groups within processes"]["own statistics"] for process in processes)
    assert abs(first - second).max() > 1e-4  # each saw its own groups only
