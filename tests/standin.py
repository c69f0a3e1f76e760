"""A device that stands in for a GPU: it computes on the CPU, and like a GPU it refuses tensors of two devices.

Its tensors say that they are on torch's meta device, `DEVICE`; each holds a tensor on the CPU, which computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)  # only these take tensors of two devices
JOINS = (torch.ops.aten.cat.default, torch.ops.aten.stack.default)  # these refuse even a number on the CPU


class Held(torch.Tensor):
    """A tensor on `DEVICE` with the shape, strides and type of `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls: type["Held"], held: Tensor) -> "Held":
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _computed(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)  # like a GPU's tensor, loaded with map_location="cpu"


class _Mode(TorchDispatchMode):
    """Also handles functions that make tensors without taking any."""

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _computed(function, args, kwargs or {})


@contextmanager
def stand_in() -> Iterator[torch.device]:
    """Make `DEVICE` available as long as the context lasts."""
    supported = optimizer._get_fused_kernels_supported_devices()
    with pytest.MonkeyPatch.context() as patch, _Mode():
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*supported, DEVICE.type])
        # `parameter.data = ...` would copy the strides, but not `held`.
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield DEVICE
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)


def _computed(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [isinstance(tensor, Held) for tensor in tensors]
    left = [tensor for tensor, is_there in zip(tensors, here, strict=True) if not is_there]
    left = [tensor for tensor in left if tensor.ndim or function in JOINS]
    if any(here) and left and function not in MOVES:
        raise RuntimeError(f"{function}: a tensor of shape {tuple(left[0].shape)} is on the CPU")
    given = kwargs.get("device")
    is_here = given.type == DEVICE.type if given is not None else any(here) and (function not in MOVES or here[0])
    if not any(here) and not is_here:
        return function(*args, **kwargs)
    args, kwargs = tree_map_only(Held, lambda tensor: tensor.held, (args, kwargs))
    if given is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = function(*args, **kwargs)
    if function._schema.is_mutable and isinstance(result, Tensor):
        return next((t for t in tensors if isinstance(t, Held) and t.held is result), result)
    return tree_map_only(Tensor, Held, result) if is_here else result
