"""What a result can be checked by later: how the run began, and which test images it got right in the end."""

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from deepnets.runs.contents import packed
from deepnets.training.fit import FIRST, Training


class Evidence:
    """Noted while a run trains; `state` goes into its checkpoints, `facts` into its result.

    The losses are those of the first `FIRST` iterations, on the device until they are read; the checksum is of the
    weights behind them. `right` (N,) is of the test images after the last completed epoch.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self.losses: list[Tensor] = list(state.get("losses", torch.zeros(0)))
        self.weights: str | None = state.get("weights")
        self.right: Tensor | None = state.get("right")

    def note(self, training: Training) -> None:
        """To be called where `fit` yields; waits for the device once, and at the ends of epochs."""
        first = min(FIRST, training.iterations)
        if training.loss is not None and len(self.losses) == training.iteration - 1 < first:
            self.losses.append(training.loss)
            if training.iteration == first:
                self.weights = weights_checksum(training.model)
        if training.completed:
            self.right = training.completed["test"].right

    @property
    def state(self) -> dict[str, Any]:
        """Tensors and text."""
        # Those of before a resume are not on the device.
        losses = torch.stack([loss.cpu() for loss in self.losses]) if self.losses else torch.zeros(0)
        return {"losses": losses, "weights": self.weights, "right": self.right}

    def facts(self) -> dict[str, Any]:
        """By the names of result.json: `beginning`, losses in nats (null if not finite), and `test_right`, `packed`."""
        facts: dict[str, Any] = {}
        if self.weights:
            losses = [float(f"{loss:.9g}") if isfinite(loss) else None for loss in self.state["losses"].tolist()]
            facts["beginning"] = {"losses": losses, "weights": self.weights}
        if self.right is not None:
            facts["test_right"] = packed(self.right.numpy())
        return facts


def weights_checksum(model: torch.nn.Module) -> str:
    """Sixteen hexadecimal digits (SHA-256) of all parameters in the order of their names."""
    checksum = hashlib.sha256()
    for name, weights in sorted(model.named_parameters()):
        checksum.update(name.encode())
        checksum.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()[:16]


def state_checksum(state: Mapping[str, Tensor]) -> str:
    """SHA-256 (hexadecimal) of all tensors in the order of their names: name, type, shape and bytes of each."""
    checksum = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        checksum.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        checksum.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()
