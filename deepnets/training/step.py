"""Executes the forward pass of training: operation by operation, from compiled code, or from a CUDA graph."""

from collections.abc import Callable
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from deepnets.config.schema import StepKind
from deepnets.errors import UserError
from deepnets.models.network import draws, is_own
from deepnets.system.files import own_cache
from deepnets.system.settings import Memory

Forward = Callable[[Tensor], Tensor]  # images (N, C, H, W) -> logits (N, classes)
BATCH_SIZES = 2  # an epoch's last batch may be shorter than the others; code is compiled for each size


def forward_of(kind: StepKind, model: nn.Module, batch_size: int) -> Forward:
    """Return a function that executes the forward pass of `model`, and later its backward pass, as `kind` says.

    With CUDA graphs, an epoch's shorter last batch is executed operation by operation.

    Raises:
        UserError: compilation is switched off.
    """
    if kind == StepKind.eager:
        return model
    executed = compiled(model, graphed="graphed" in kind) if "compiled" in kind else Captured(model)
    if kind == StepKind.compiled:
        return executed
    return lambda images: (executed if len(images) == batch_size else model)(images)


class Captured:
    """Replays the forward and backward pass of `model` from CUDA graphs, on batches of the same shape as the first one.

    The next call overwrites the logits. The graphs read the tensors of parameters and statistics; loading a state
    writes into these tensors and does not replace them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.graphs: Forward | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.graphs is None:
            self.graphs = self._capture(images.clone())
        return self.graphs(images)

    def _capture(self, images: Tensor) -> Forward:
        """Capture both passes; torch first runs them a few times, so statistics and random states are restored.

        Raises:
            UserError: a pass replaces a buffer, which a replay would not do.
        """
        buffers = dict(self.model.named_buffers())
        statistics = [buffer.clone() for buffer in buffers.values()]
        network = nn.Sequential(self.model)  # torch replaces `forward` of its argument; the model keeps its own
        with torch.cuda.device_of(images), torch.random.fork_rng([images.device] if images.is_cuda else []):
            graphs = torch.cuda.make_graphed_callables(network, (images,), allow_unused_input=True, **_thread_local())
        for (name, buffer), (there, before) in zip(self.model.named_buffers(), buffers.items(), strict=True):
            if name != there or buffer is not before:
                raise UserError(f"step=graphed: a pass replaces the buffer {there} instead of writing into it")
        for buffer, before in zip(buffers.values(), statistics, strict=True):
            buffer.copy_(before)
        return cast(Forward, graphs)


def _thread_local() -> dict[str, Any]:
    """Return the option that lets other threads call CUDA in a capture, e.g. to pin images; older torch lacks it."""
    options = signature(torch.cuda.make_graphed_callables).parameters
    return {"capture_error_mode": "thread_local"} if "capture_error_mode" in options else {}


def compiled(model: nn.Module, *, graphed: bool = False) -> Forward:
    """Compile `model` in one piece for each of at most `BATCH_SIZES` shapes; drops what was compiled before.

    The code draws the same random numbers as `model`. An operation is an error if torch.compile would silently leave
    it to Python or, with `graphed`, execute it outside of CUDA graphs.

    Raises:
        UserError: compilation is switched off, or `own_cache` raises it.
            The first call raises it if `model` cannot be compiled.
    """
    own_cache()  # torch loads code from this folder, so nobody else may write in it
    torch.compiler.reset()
    # `mode="reduce-overhead"` would exclude `fallback_random`.
    graphs = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True} if graphed else {}
    code = torch.compile(model, fullgraph=True, dynamic=False, options={"fallback_random": True, **graphs})
    if code is model or torch._dynamo.config.disable:
        raise UserError("step=compiled: TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE turns compilation off; unset both")
    failures = torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit
    strictly = torch._dynamo.config.patch(
        recompile_limit=BATCH_SIZES, fail_on_recompile_limit_hit=True, suppress_errors=False
    )

    def call(images: Tensor) -> Tensor:
        if graphed:
            torch.compiler.cudagraph_mark_step_begin()  # the former iteration's logits may be overwritten
        with strictly:
            try:
                return code(images)
            except failures as error:
                reason = str(error).partition("\n")[0]  # the rest is in log.txt
                raise UserError(
                    f"step=compiled: the network cannot be compiled in one piece; use step=eager ({reason})"
                ) from error

    return call


def check_step(kind: StepKind, processes: int) -> None:
    """Check that this number of processes can execute iterations as `kind` says.

    Raises:
        UserError: there are several processes, and `kind` is not eager.
    """
    if processes > 1 and kind != StepKind.eager:
        raise UserError(f"step={kind} devices={processes}: supports one process only; use step=eager or devices=1")


def check_network(kind: StepKind, model: nn.Module, is_streamed: bool = False) -> None:
    """Check that iterations of a network, on streamed images or images in memory, can be executed as `kind` says.

    Raises:
        UserError: names the part that cannot be compiled or captured.
    """
    memory = getattr(model, "memory", Memory.full)
    if kind == StepKind.eager:
        return
    if getattr(model, "survival", None) is not None:
        raise UserError(
            f"step={kind}: stochastic depth skips different units in each batch, and compiled code and graphs "
            "cannot do that; use step=eager"
        )
    if kind == StepKind.graphed and is_streamed and not _thread_local():
        raise UserError(
            f"step={kind}: torch {torch.__version__} cannot capture a graph while a thread pins images; "
            "use a newer torch, step=compiled_graphed or step=eager"
        )
    if "compiled" in kind and memory != Memory.full:
        raise UserError(f"step={kind} memory={memory}: compiled code decides itself what to store; use memory=full")
    if memory != Memory.full and any(draws(module) or is_own(module) for module in model.modules()):
        raise UserError(
            f"step={kind} memory={memory}: a graph cannot draw the same random numbers again when dropout, or a class "
            "of your own, is recomputed; use memory=full or step=eager"
        )


def check_device(kind: StepKind, device: torch.device) -> None:
    """Check that a device can execute iterations as `kind` says.

    Raises:
        UserError: `kind` needs CUDA graphs, and the device is no GPU.
    """
    if "graphed" in kind and device.type != "cuda":
        raise UserError(f"step={kind}: CUDA graphs need a GPU, the device is {device}; use step=eager or compiled")
