"""How an iteration is executed: operation by operation, from compiled code, or as a CUDA graph."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.errors import UserError
from deepnets.models.recomputation import draws
from deepnets.training.cuda_graph import CudaGraphs, Graphed
from deepnets.training.metrics import Sums

Kind = Literal["eager", "compiled", "graphed", "compiled_graphed"]
Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # images, labels -> loss summed over the images, logits
BATCH_SIZES = 2  # of a run: code is compiled for each, that of the epoch's short last batch included


class Iteration:
    """Forward and backward pass, an optimiser step, and the addition to the sums; nothing waits for the device."""

    def __init__(self, forward: Forward, optimizer: torch.optim.Optimizer, sums: Sums) -> None:
        self.forward, self.optimizer, self.sums = forward, optimizer, sums

    def __call__(self, images: Tensor, labels: Tensor, divisor: float) -> Tensor:
        """Train on images (N, C, H, W) and labels (N,) by the gradient of their summed loss / `divisor`; that sum."""
        total, logits = self.forward(images, labels)
        self.optimizer.zero_grad()
        (total / divisor).backward()
        self.optimizer.step()
        self.sums.add(total, logits, labels)
        return total.detach()


def iteration_of(
    kind: Kind,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sums: Sums,
    *,
    batch_size: int,
    device: torch.device,
    precision: torch.dtype,
) -> Callable[[Tensor, Tensor, float], Tensor]:
    """What executes an iteration in that way; to be made anew when the optimiser has loaded another state.

    Raises:
        UserError: not on this device.
    """
    check_device(kind, device)
    forward = forward_of(model, precision)
    iteration = Iteration(compiled(forward) if "compiled" in kind else forward, optimizer, sums)
    return Graphed(iteration, optimizer, batch_size, CudaGraphs(device)) if "graphed" in kind else iteration


def forward_of(model: nn.Module, precision: torch.dtype) -> Forward:
    """The network in `precision`, its logits and loss in float32."""

    def forward(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(images.device, precision):
            logits = model(images)
        logits = logits.float()
        return cross_entropy(logits, labels, reduction="sum"), logits

    return forward


def compiled(forward: Forward) -> Forward:
    """`forward` compiled in one piece for each of at most `BATCH_SIZES` shapes; drops what was compiled before.

    Random numbers are those of `forward`. Whatever torch.compile would leave to Python without a word is an error.

    Raises:
        UserError: compilation is switched off, or, when called, `forward` cannot be compiled.
    """
    torch.compiler.reset()
    code = torch.compile(forward, fullgraph=True, dynamic=False, options={"fallback_random": True})
    if code is forward or torch._dynamo.config.disable:
        raise UserError("step=compiled: TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE turns it off; unset both")
    failures = torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit
    strictly = torch._dynamo.config.patch(
        recompile_limit=BATCH_SIZES, fail_on_recompile_limit_hit=True, suppress_errors=False
    )

    def call(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with strictly:
            try:
                return code(images, labels)
            except failures as error:
                reason = str(error).partition("\n")[0]  # the rest is in log.txt
                raise UserError(
                    f"step=compiled: cannot be compiled in one piece; give step=eager ({reason})"
                ) from error

    return call


def check_network(kind: Kind, model: nn.Module, processes: int) -> None:
    """Whether iterations of a network, trained by so many processes, can be executed in that way.

    Raises:
        UserError: names what cannot be compiled or captured.
    """
    memory = getattr(model, "memory", "full")
    if kind == "eager":
        return
    if processes > 1:
        raise UserError(f"step={kind} devices={processes}: runs of one process only; give step=eager or devices=1")
    if getattr(model, "survival", None) is not None:
        raise UserError(
            f"step={kind}: stochastic depth draws anew which units each batch passes, which no compiled code or graph "
            "can follow; give step=eager"
        )
    if "compiled" in kind and memory != "full":
        raise UserError(f"step={kind} memory={memory}: compiled code chooses itself what it keeps; give memory=full")
    if memory != "full" and any(map(draws, model.modules())):
        raise UserError(
            f"step={kind} memory={memory}: dropout that is computed again must draw the same numbers again, which a "
            "graph cannot; give memory=full or step=eager"
        )


def check_device(kind: Kind, device: torch.device) -> None:
    """Whether iterations can be executed in that way on a device.

    Raises:
        UserError: a graph where there is no CUDA.
    """
    if "graphed" in kind and device.type != "cuda":
        raise UserError(f"step={kind}: CUDA graphs need a GPU, the device is {device}; give step=eager or compiled")


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """bfloat16 where the arithmetic allows it, for `precision` bfloat16; nothing for float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16)
