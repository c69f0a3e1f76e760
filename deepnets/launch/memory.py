"""How much memory a computation takes at most."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """While it is entered, `bytes` is the most that tensors made inside it have held at once.

    Made are the storages that an operation returns and was not given: what it takes for itself meanwhile, and what an
    allocator keeps, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._held = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if id(storage) not in given | self._known:
                self._add(storage)
        return result

    def _add(self, storage: UntypedStorage) -> None:
        self._known.add(id(storage))
        self._held += storage.nbytes()
        self.bytes = max(self.bytes, self._held)
        weakref.finalize(storage, self._drop, id(storage), storage.nbytes())

    def _drop(self, number: int, size: int) -> None:
        self._known.remove(number)
        self._held -= size


def _storages(tree: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
