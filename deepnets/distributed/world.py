"""The processes that train a run together: which one this is, and how they exchange values and decide together."""

import json
import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deepnets.distributed.signals import Interruption
from deepnets.errors import UserError

T = TypeVar("T")
STORE = "DEEPNETS_STORE"  # names the file through which processes of one machine connect, unless torchrun starts them
DECISION_SECONDS = 0.5  # between two decisions of several processes
LONGEST_INTERVAL = 100  # at most this many yields between two decisions
ESTABLISHED = "01"  # the state of an open connection in /proc/net/tcp
LOOPBACK = "[0-9A-F]{6}7F:|0{24}01000000:"  # 127.0.0.0/8 or ::1, as a little-endian Linux writes them
ATTEMPTS = 4  # /proc/net/tcp can lack a line if it changes while it is read
GPU_TIMEOUT = timedelta(minutes=10)  # NCCL's default; the mixed backend would use gloo's 30


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, the `local_rank`-th on its machine; `ALONE` is a process on its own.

    If there are several processes, all must call the methods below, except `shard` and `shards`, in the same order,
    inside `joined`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """Return this process's part of `count` things."""
        return self.shards(count)[self.rank]

    def shards(self, count: int) -> list[slice]:
        """Return the parts of all processes by rank: contiguous, as equal as possible, the larger ones first."""
        each, rest = divmod(count, self.size)
        starts = [rank * each + min(rank, rest) for rank in range(self.size + 1)]
        return [slice(start, stop) for start, stop in pairwise(starts)]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all processes; does not wait for the device."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Return the largest of each value over all processes; waits for the processes, but not for the device."""
        if self.size == 1:
            return values
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    def all_gather(self, values: Tensor) -> Tensor:
        """Return the `values` of every process by rank: (size, *shape)."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values)
        return torch.stack(parts)

    def broadcast_value(self, value: T) -> T:
        """Return the first process's `value`, which may nest JSON values, tuples, and tensors on the CPU.

        Raises:
            TypeError: `value` holds something else. Nothing is pickled, because unpickling can execute anything.
        """
        if self.size == 1:
            return value
        tensors: list[Tensor] = []
        text = json.dumps(_in_json(value, tensors) if self.is_first else None).encode()
        length = torch.tensor(len(text))
        dist.broadcast(length, src=0)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        dist.broadcast(content, src=0)
        if not self.is_first:
            value = _from_json(json.loads(content.numpy().tobytes()), tensors)
        for tensor in tensors:
            dist.broadcast(_bytes_of(tensor), src=0)
        return value

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.all_reduce_max([0])

    def replica(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the module that training calls, so that gradients of `model` become means over all processes."""
        if self.size == 1:
            return model
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")  # torch 2.11 has no successor
        on_gpu = device.type == "cuda"
        replica = DistributedDataParallel(
            model, device_ids=[device] if on_gpu else None, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        if self.size > 2 and not on_gpu:
            replica.register_comm_hook(None, _mean_in_order)
        return replica


ALONE = World()


def world_from_env() -> World:
    """Return the world that torchrun, or another program that starts processes, has set in the environment."""
    rank, size, local_rank = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return World(rank, size, local_rank) if size > 1 else ALONE


@contextmanager
def joined(world: World, device: torch.device) -> Iterator[None]:
    """Connect this process to the others while the context lasts: gloo sends tensors on the CPU, NCCL on GPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # otherwise a single process would also open a context on the first GPU
    if world.size == 1:
        yield
        return
    file = os.environ.get(STORE)
    store = dist.FileStore(file, world.size) if file else next(dist.rendezvous("env://"))[0]
    if device.type == "cuda":
        check_own_gpu(store, world, str(torch.cuda.get_device_properties(device).uuid))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=GPU_TIMEOUT,
            device_id=device,
        )
    else:
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    if file:
        check_peers()  # before anything is sent; all have connected
    yield
    dist.destroy_process_group()  # not after an exception: the end of this process tells the others


class Decisions:
    """Decides whether to stop, on which signal, and whether to save. All processes decide the same at the same yield.

    Several processes decide together roughly once per `DECISION_SECONDS`, measured at the pace of the slowest one, and
    also when they turn from training to evaluation or back, because the two have different paces.
    """

    def __init__(self, world: World, interruption: Interruption, checkpoint_seconds: float) -> None:
        self.world, self.interruption, self.checkpoint_seconds = world, interruption, checkpoint_seconds
        self.saved_at = self.asked_at = time.monotonic()
        self.intervals = {True: 1, False: 1}
        self.trains, self.left = True, 1

    def __call__(self, *, trains: bool) -> tuple[int | None, bool]:
        """Return the signal on which to stop, or None, and whether to save.

        Call this at each yield of `fit`, after an iteration of training (`trains`) or of evaluation.
        """
        has_turned, self.trains = trains != self.trains, trains
        self.left -= 1
        if self.left and not has_turned:
            return None, False
        now = time.monotonic()
        pace = (now - self.asked_at) / self.intervals[trains]
        wishes = [self.interruption.received or 0, now - self.saved_at >= self.checkpoint_seconds, pace]
        stop, due, pace = self.world.all_reduce_max(wishes)
        if self.world.size > 1 and not has_turned:
            self.intervals[trains] = max(1, min(int(DECISION_SECONDS / pace), LONGEST_INTERVAL))
        self.left, self.asked_at = self.intervals[trains], now
        return int(stop) or None, bool(due)


def check_own_gpu(store: dist.Store, world: World, uuid: str) -> None:
    """Check that no two processes of this `store` use one GPU; NCCL would refuse that without naming them.

    Raises:
        UserError: another process is on this one's GPU.
    """
    store.set(f"gpu of {world.rank}", uuid)
    uuids = [store.get(f"gpu of {rank}").decode() for rank in range(world.size)]
    if len(ranks := [rank for rank in range(world.size) if uuids[rank] == uuid]) > 1:
        raise UserError(
            f"devices={world.size}: processes {' and '.join(map(str, ranks))} are on one GPU, {uuid}; each needs a GPU "
            "of its own: start fewer processes, or let each see another one"
        )


def check_peers() -> None:
    """Check that each connection of this process over loopback is with a process of the same user.

    Gloo accepts any process that connects to its port first.

    Raises:
        UserError: a connection is with another user's process, or with a process that has ended.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(0.1 * attempt)
        strangers = _users() - {str(os.getuid())}
        if not strangers:
            return
    raise UserError(
        f"devices: a process of user {strangers.pop()} has connected in place of this run's; start the run again"
    )


def lost_another(error: BaseException) -> bool:
    """Return whether the error only says that another process has ended; that process knows the true cause."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def slurm_task() -> str | None:
    """Return `123_4` for task 4 of array 123, `123` for a job without an array, None outside SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID")


def _mean_in_order(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Add the gradients of a bucket over all processes, in the order of the ranks, and return their mean.

    Gloo adds the gradients of three or more processes in an order that depends on their place in the bucket, and DDP
    rearranges its buckets after the first iteration. With gloo's sum, a resumed run would differ from an uninterrupted
    one in the last bits.
    """
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    gathered = dist.all_gather(parts, bucket.buffer(), async_op=True).get_future()
    return gathered.then(lambda _: reduce(Tensor.add_, parts).div_(len(parts)))


def _in_json(value: Any, tensors: list[Tensor]) -> Any:
    """Convert a value to JSON that describes its tensors; adds copies of them, without gaps, to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value.detach().clone())
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), list(tensors[-1].stride())]}
    if isinstance(value, dict):
        return {"dict": [[key, _in_json(each, tensors)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_in_json(each, tensors) for each in value]}
    return value


def _from_json(node: Any, tensors: list[Tensor]) -> Any:
    """Rebuild the value that `_in_json` described; adds its tensors, still without content, to `tensors`."""
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        dtype, shape, stride = content
        tensors.append(torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)))
        return tensors[-1]
    if kind == "dict":
        return {key: _from_json(each, tensors) for key, each in content}
    return {"list": list, "tuple": tuple}[kind](_from_json(each, tensors) for each in content)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor as uint8; the tensor must have no gaps."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _users() -> set[str]:
    """Return the ids of the users at the other ends of this process's connections over loopback."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    connections = {(row[1], row[2]): (row[7], row[9]) for row in rows if row[3] == ESTABLISHED}
    links = _links()
    other_ends = [
        (remote, local)
        for (local, remote), (_, inode) in connections.items()
        if f"socket:[{inode}]" in links and re.match(LOOPBACK, local)
    ]
    return {connections.get(other_end, ("unknown", ""))[0] for other_end in other_ends}


def _links() -> set[str]:
    """Return the files and sockets behind this process's file descriptors."""
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            links.add(os.readlink(descriptor))
    return links
