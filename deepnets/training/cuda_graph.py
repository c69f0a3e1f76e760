"""An iteration captured once as a CUDA graph and replayed: thousands of kernels by one launch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

WARM_UP = 3  # iterations, as in PyTorch's notes on CUDA graphs


class Recorder(Protocol):
    """Records what a function asks of the device, on a stream of its own."""

    def aside(self) -> AbstractContextManager[None]:
        """Within it the work goes to that stream, behind all work so far and before all that follows."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """What does the recorded work, with the tensors of the one call of `function`."""


class CudaGraphs:
    """Records CUDA graphs. The call itself computes nothing; random numbers go on from replay to replay."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            yield
        here.wait_stream(self.stream)

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=self.stream):
            function()
        return graph.replay


class Graphed:
    """`iteration`, replayed for batches of `batch_size` images.

    The first ones are executed operation by operation: they train as all others do, while libraries set themselves up
    and the optimiser makes its state, whose tensors the graph then holds. So is an epoch's short last batch, always.
    """

    def __init__(
        self,
        iteration: Callable[[Tensor, Tensor, float], Tensor],
        optimizer: torch.optim.Optimizer,
        batch_size: int,
        record: Recorder,
    ) -> None:
        self.iteration, self.batch_size, self.record = iteration, batch_size, record
        self.rates = DeviceRates(optimizer)
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.warm_up = WARM_UP
        self.replay: Callable[[], None] | None = None

    def __call__(self, images: Tensor, labels: Tensor, divisor: float) -> Tensor:
        """As `iteration`; the next call overwrites what it returns."""
        self.rates.write()
        if len(labels) != self.batch_size:
            return self._executed(images, labels, divisor)
        if self.warm_up:
            self.warm_up -= 1
            with self.record.aside():
                return self._executed(images, labels, divisor)
        if self.replay is None:
            self._capture(images, labels, divisor)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.replay()
        if self.parameters[0].grad is not self.gradients[0]:  # a short batch has left its own
            for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
                parameter.grad = gradient
        return self.total

    def _executed(self, images: Tensor, labels: Tensor, divisor: float) -> Tensor:
        with self.rates.on_device():
            return self.iteration(images, labels, divisor)

    def _capture(self, images: Tensor, labels: Tensor, divisor: float) -> None:
        self.images, self.labels = images.clone(), labels.clone()

        def act() -> None:
            with self.rates.on_device(), self.rates.capturable():
                self.total = self.iteration(self.images, self.labels, divisor)

        self.replay = self.record(act)
        self.gradients = [parameter.grad for parameter in self.parameters]


class DeviceRates:
    """The learning rate of each parameter group in a tensor that a captured optimiser step reads.

    Outside of `on_device` the optimiser holds plain numbers, which schedules set and checkpoints keep.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups
        self.tensors = [torch.zeros((), device=group["params"][0].device) for group in self.groups]
        self.written: list[float | None] = [None for _ in self.groups]

    def write(self) -> None:
        """Bring the tensors up to the optimiser's numbers; does not wait for the device."""
        for index, (group, tensor) in enumerate(zip(self.groups, self.tensors, strict=True)):
            if group["lr"] != self.written[index]:
                tensor.fill_(group["lr"])
                self.written[index] = group["lr"]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Within it the optimiser reads the tensors."""
        numbers = [group["lr"] for group in self.groups]
        for group, tensor in zip(self.groups, self.tensors, strict=True):
            group["lr"] = tensor
        try:
            yield
        finally:
            for group, number in zip(self.groups, numbers, strict=True):
                group["lr"] = number

    @contextmanager
    def capturable(self) -> Iterator[None]:
        """Within it an optimiser that asks for leave to be captured, as Adam does, has it."""
        asking = [group for group in self.groups if "capturable" in group]
        for group in asking:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in asking:
                group["capturable"] = False
