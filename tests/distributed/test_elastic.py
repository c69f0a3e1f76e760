"""A run that is continued by another number of processes, on the CPU by gloo."""

import io
from typing import Any

import pytest
import torch

from deepnets.config.compose import compose
from deepnets.distributed.world import ALONE, World, joined, world_from_env
from deepnets.training.assembly import prepare
from deepnets.training.fit import fit
from tests.processes import in_processes

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
NET = [
    "model.depth=8",
    "model.widths=[4,4,4]",
    "model/shortcut=dropout_inverted",
    "model/survival=linear_decay",
    "device=cpu",
]
NET += ["batch_size=158", "optimizer.lr=0.05"]  # 1437 images: ten iterations an epoch, the last of 15 images
BATCHES = {"whole batch": [], "groups": ["model.batchnorm_images=40"]}
STOPS = {
    "7": 1,
    "20": 3,
    "24": 2,
    "41": 4,
}  # processes up to each iteration: in an epoch, at its end, at the end of all


def trained(world: World, overrides: list[str], state: bytes | None, until: int) -> dict[str, Any]:
    """The epochs completed up to iteration `until`, in float64, and the state there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        training = prepare(compose([*NET, *overrides, "epochs=4"]).config, CPU, torch.float64, world)
    finally:
        torch.set_default_dtype(before)
    normalization = training.batches.normalization
    for part in (training.batches, *training.evaluated.values()):
        part.normalization = lambda images: normalization(images).double()
    if state:
        training.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    epochs = []
    for at in fit(training):
        if at.completed:
            epochs.append([vars(mean) for mean in at.completed.values()])
        if at.iteration == until and (at.batch or at.completed):
            break
    saved = io.BytesIO()
    torch.save(training.state_dict(), saved)
    return {"epochs": epochs, "state": saved.getvalue()}


def part(overrides: list[str], state: bytes | None, until: int) -> dict[str, Any]:
    world = world_from_env()
    with joined(world, CPU):
        return trained(world, overrides, state, until)


@pytest.mark.parametrize("batch", ["groups", pytest.param("whole batch", marks=pytest.mark.nightly)])
def test_any_number_of_processes_continues_any_other(batch: str) -> None:
    expected = trained(ALONE, BATCHES[batch], None, 41)
    epochs, state = [], None
    for until, count in STOPS.items():
        parts = in_processes(count, part, BATCHES[batch], state, int(until))
        assert all(each["epochs"] == parts[0]["epochs"] for each in parts)
        epochs += parts[0]["epochs"]
        state = parts[0]["state"]
    assert len(epochs) == 4
    for seen, means in zip(epochs, expected["epochs"], strict=True):
        assert seen == [pytest.approx(mean, rel=1e-4) for mean in means]
    seen, alone = (torch.load(io.BytesIO(each), weights_only=True)["model"] for each in (state, expected["state"]))
    for name, weight in alone.items():
        torch.testing.assert_close(seen[name], weight, rtol=1e-4, atol=1e-4)
