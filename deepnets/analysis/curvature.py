"""Curvature of the loss: the largest eigenvalues and the trace of its Hessian, by Hessian-vector products."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy


class Hessian:
    """The Hessian of the mean cross-entropy over all batches (x (N, C, H, W), y (N,)) with respect to all parameters.

    The net is in evaluation mode: batch statistics are stored constants. A product costs about seven forward passes.
    """

    def __init__(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.model = model.requires_grad_(True)
        self.batches = batches
        self.parameters = list(model.parameters())
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.products = 0

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v of a vector (size,), in its type."""
        total, images = torch.zeros(self.size, dtype=torch.float64), 0
        v = vector.to(self.parameters[0])
        for x, labels in self.batches:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # other attention has no second derivative
                loss = cross_entropy(self.model(x), labels, reduction="sum")
                gradients = torch.autograd.grad(loss, self.parameters, create_graph=True)
                product = torch.autograd.grad(_flat(gradients) @ v, self.parameters)
            total += _flat(product).double().cpu()
            images += len(labels)
        self.products += 1
        return (total / images).to(vector.dtype)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def largest_eigenvalues(hessian: Hessian, count: int, tolerance: float, seed: int) -> list[float]:
    """The `count` largest eigenvalues, the greatest first, to a relative tolerance: restarted Lanczos (ARPACK)."""

    def product(v: np.ndarray) -> np.ndarray:
        return (hessian @ torch.from_numpy(v.ravel().copy())).numpy()

    shape = (hessian.size, hessian.size)
    start = np.random.default_rng(seed).normal(size=hessian.size)
    operator = LinearOperator(shape, matvec=product, dtype=np.float64)
    found = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)
    return np.sort(found)[::-1].tolist()


def trace_samples(hessian: Hessian, seeds: Iterable[int]) -> list[float]:
    """v' H v for a vector v of random signs by each seed: their expectation is the trace (Hutchinson 1989)."""
    found = []
    for seed in seeds:
        v = torch.randint(2, (hessian.size,), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
        found.append((v @ (hessian @ v)).item())
    return found
