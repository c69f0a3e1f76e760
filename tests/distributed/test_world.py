"""How work is divided among the processes of a run, and what cannot be; how soon they agree; who may join them."""

import os
import signal
import socket
import time
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from deepnets.data.augmentation import Cutout, Mixup, Operation
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.normalization import fit
from deepnets.data.source import Split
from deepnets.distributed import world as processes
from deepnets.distributed.signals import Interruption
from deepnets.distributed.world import (
    ALONE,
    DECISION_SECONDS,
    LONGEST_INTERVAL,
    Decisions,
    World,
    check_own_gpu,
    check_peers,
    lost_another,
    world_from_env,
)
from deepnets.errors import UserError
from deepnets.training.assembly import prepare
from deepnets.training.checks import check_settings
from tests.command import row

SPLIT = Split(torch.arange(29 * 4, dtype=torch.uint8).view(29, 2, 2, 1), torch.arange(29))


@pytest.mark.parametrize(("count", "size"), [(128, 2), (29, 2), (29, 3), (7, 8), (0, 3), (16, 1)])
def test_shares_are_contiguous_and_near_equal_the_larger_first(count: int, size: int) -> None:
    shares = [World(rank, size).shard(count) for rank in range(size)]
    assert [index for share in shares for index in range(count)[share]] == list(range(count))
    lengths = [len(range(count)[share]) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("operations", [(), (Cutout(0.5), Mixup(0.4))], ids=["plain", "mixed"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_batch_of_one_process_is_divided_in_its_order(size: int, operations: Sequence[Operation]) -> None:
    def batches(world: World) -> TrainingBatches:
        settings = {"pad": 1, "flip": True, "batch_size": 8, "seed": 3, "operations": operations, "classes": 29}
        return TrainingBatches(SPLIT, fit("channel", SPLIT.images), world=world, **settings)

    alone = list(batches(ALONE).epoch(5, start=1))
    parts = [list(batches(World(rank, size)).epoch(5, start=1)) for rank in range(size)]
    assert [batches(World(0, size)).images_in(number) for number in range(4)] == [8, 8, 8, 5]
    for number, (x, y) in enumerate(alone):
        assert torch.equal(torch.cat([part[number][0] for part in parts]), x)
        assert torch.equal(torch.cat([part[number][1] for part in parts]), y)


@pytest.mark.parametrize(("size", "batch_size"), [(2, 5), (3, 10), (4, 8), (2, 100)])
def test_every_image_is_evaluated_once_in_as_many_batches_by_all(size: int, batch_size: int) -> None:
    normalization = fit("channel", SPLIT.images)
    batches = [
        EvaluationBatches(SPLIT, normalization, batch_size=batch_size, world=World(r, size)) for r in range(size)
    ]
    labels = [[y for _, y in mine] for mine in batches]
    assert torch.equal(torch.cat([torch.cat(mine) for mine in labels]), SPLIT.labels)
    assert {len(mine) for mine in labels} == {len(batches[0])} == {len(mine) for mine in batches}


def test_the_environment_tells_which_process_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world_from_env() == ALONE
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert world_from_env() == World(rank=5, size=8, local_rank=1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world_from_env() == ALONE


def test_the_loss_of_another_process_is_told_from_an_error_of_ones_own() -> None:
    assert lost_another(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:545] Connection reset by peer"))
    assert lost_another(torch.distributed.DistBackendError("NCCL error"))
    assert not lost_another(RuntimeError("shape mismatch"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["devices=0"], "devices=0: must be at least 1"),
        (["devices=4", "batch_size=2"], "a batch of 2 cannot be divided among them"),
        (["devices=8", "batch_size=359"], r"a batch of 1 cannot .* \(1437 images in batches of 359\)"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_settings(row(tmp_path_factory.getbasetemp(), *overrides).config)


def test_processes_begin_with_equal_weights_and_draws(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "replica", lambda world, model, device: model)  # which would ask the others
    overrides = ["model.depth=14", "model.widths=[4,4,4]", "model/survival=linear_decay", "devices=2"]
    config = row(tmp_path_factory.getbasetemp(), *overrides).config
    seen = []
    for world in (ALONE, World(0, 2), World(1, 2)):
        training = prepare(config, torch.device("cpu"), torch.float32, world)
        weights = torch.cat([parameter.flatten() for parameter in training.model.parameters()])
        draws = [training.model.survival.drawn(6, training.model.generator) for _ in range(20)]
        seen.append((weights, draws, torch.rand(5)))
    (weights, draws, random), *others = seen
    assert all(torch.equal(weights, theirs) and draws == drawn for theirs, drawn, _ in others)
    assert len({tuple(draw) for draw in draws}) > 5
    assert torch.equal(random, others[0][2])
    assert torch.equal(random, others[1][2])


def test_two_processes_on_one_gpu_are_refused_by_its_name() -> None:
    store = dist.HashStore()
    for rank, uuid in enumerate(["GPU-a", "GPU-b", "GPU-a"]):
        store.set(f"gpu of {rank}", uuid)
    check_own_gpu(store, World(1, 3), "GPU-b")
    for rank in (0, 2):
        with pytest.raises(UserError, match="devices=3: processes 0 and 2 are on one GPU, GPU-a; each needs"):
            check_own_gpu(store, World(rank, 3), "GPU-a")


class Agreeing(World):
    """Two processes that have measured and received the same."""

    def all_reduce_max(self, values: list[float]) -> list[float]:
        return values


class Loop:
    """Calls `Decisions` as an epoch does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(processes.time, "monotonic", lambda: self.now)
        self.interruption = Interruption()
        self.decide = Decisions(Agreeing(size=2), self.interruption, checkpoint_seconds=1e9)

    def goes(self, yields: int, seconds: float, *, trains: bool) -> float | None:
        """Until that many yields are over, or after how many seconds it stops."""
        begun = self.now
        for _ in range(yields):
            self.now += seconds
            if self.decide(trains=trains)[0]:
                return self.now - begun
        return None


@pytest.mark.parametrize("evaluated", [1, 2, 20, 1000])
def test_slow_iterations_after_a_fast_evaluation_are_each_asked(
    evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        assert loop.goes(6, 4.0, trains=True) is None
        assert loop.goes(evaluated, 0.001, trains=False) is None
    assert loop.goes(1, 4.0, trains=True) is None
    loop.interruption.received = signal.SIGUSR1
    assert loop.goes(6, 4.0, trains=True) == pytest.approx(4.0)


def test_fast_iterations_are_asked_about_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        loop.goes(333, 0.01, trains=True)
        loop.goes(3, 0.3, trains=False)
    asked: list[float] = []
    monkeypatch.setattr(Agreeing, "all_reduce_max", lambda _, values: asked.append(loop.now) or values)
    loop.goes(501, 0.01, trains=True)
    assert asked[-1] - asked[0] == pytest.approx(5, abs=DECISION_SECONDS)
    assert 9 <= len(asked) <= 12
    loop.goes(1000, 1e-5, trains=True)
    before = len(asked)
    loop.goes(10 * LONGEST_INTERVAL, 1e-5, trains=True)
    assert len(asked) - before == 10


@pytest.mark.attack
@pytest.mark.parametrize("user", ["the same", "another"])
def test_a_connection_of_another_user_is_refused(user: str) -> None:
    if user == "another" and os.getuid():
        pytest.skip("only root can act as another user")
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            if user == "another":
                os.setuid(65534)
            connection = socket.socket()
            connection.connect(server.getsockname())
            time.sleep(60)
            os._exit(0)
        try:
            connection, _ = server.accept()
            if user == "another":
                with pytest.raises(UserError, match="user 65534 has connected"):
                    check_peers()
            else:
                check_peers()
            connection.close()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
