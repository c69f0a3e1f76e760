"""The largest eigenvalues and the trace of the Hessian of the loss, with stored batch statistics.

Lanczos' method computes the eigenvalues and Hutchinson's estimates the trace. Both need only products of the Hessian
with a vector; a product costs about seven evaluations of the images. A killed analysis resumes by the same command.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from deepnets.analysis.commands.output import Output
from deepnets.analysis.commands.subject import names_apart, subjects_of
from deepnets.command import count, number, whole
from deepnets.data.batches import EvaluationBatches
from deepnets.errors import UserError
from deepnets.monitor.style import COLOURS, from_zero, line, new_figure
from deepnets.system.printing import with_progress

AT_ONCE = 250  # images in one double backward pass, which holds all activations


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options besides the subject."""
    parser.add_argument("--images", type=number, default=1000, help="use this many random images (default: 1000)")
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="source of the images (default: train)"
    )
    parser.add_argument("--eigenvalues", type=count, default=3, help="number of largest eigenvalues (default: 3)")
    parser.add_argument("--tolerance", type=float, default=0.01, help="relative error of an eigenvalue (default: 0.01)")
    parser.add_argument("--draws", type=number, default=10, help="random vectors to estimate the trace (default: 10)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the random vectors (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the files and print the finding."""
    if arguments.draws < 2 or not arguments.tolerance > 0:
        raise UserError("--draws must be at least 2, and --tolerance above 0")
    subjects = subjects_of(arguments)
    labels = names_apart(subjects)
    rows = []
    with Output("curvature", subjects[0].folder, arguments) as output:
        figure = new_figure(3)
        axes = figure.subplots()
        with output.saved(*(subject.settled() for subject in subjects)) as saved:
            for subject, label, color in zip(subjects, labels, COLOURS * len(subjects), strict=False):
                batches = subject.batches(arguments.split, arguments.images)
                batches.batch_size = min(batches.batch_size, AT_ONCE)
                hessian = Hessian(subject.model, _Shown(batches, subject.name))
                values = saved.once(
                    f"{subject.name} eigenvalues",
                    partial(largest_eigenvalues, hessian, arguments.eigenvalues, arguments.tolerance, arguments.seed),
                )
                traces = [
                    saved.once(f"{subject.name} trace {draw}", partial(trace_samples, hessian, [draw]))[0]
                    for draw in range(arguments.seed, arguments.seed + arguments.draws)
                ]
                trace, deviation = np.mean(traces), np.std(traces, ddof=1) / np.sqrt(len(traces))
                rows += [(subject.name, "eigenvalue", rank, value) for rank, value in enumerate(values, 1)]
                rows += [(subject.name, "trace", draw, value) for draw, value in enumerate(traces, 1)]
                line(axes, values, label=label, color=color)
                output.finding(
                    f"{subject.name}: the largest eigenvalues of the Hessian are "
                    f"{', '.join(f'{value:.4g}' for value in values)}; its trace over {hessian.size:,} weights is "
                    f"{trace:.4g} (standard error {deviation:.2g} of {len(traces)} draws)",
                    eigenvalues=values,
                    trace=trace,
                    standard_error=deviation,
                )
        axes.set(xlabel="rank", ylabel="eigenvalue of the Hessian")
        from_zero(axes)
        axes.locator_params(axis="x", integer=True)
        figure.legend(loc="outside upper left", fontsize=7)
        output.rows("spectrum", ("run", "quantity", "number", "value"), rows)
        output.figure("spectrum", figure)


class _Shown:
    """Batches that show a progress bar for each pass over them."""

    def __init__(self, batches: EvaluationBatches, name: str) -> None:
        self.batches, self.name, self.passes = batches, name, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return with_progress(self.batches, f"product {self.passes} of {self.name}")


class Hessian:
    """The Hessian of the mean cross-entropy over all batches (x (N, C, H, W), y (N,)) with respect to all parameters.

    The net is in evaluation mode, so batch statistics are stored constants. A product costs about seven forward passes.
    """

    def __init__(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.model = model.requires_grad_(True)
        self.batches = batches
        self.parameters = list(model.parameters())
        self.size = sum(parameter.numel() for parameter in self.parameters)
        self.products = 0

    def __matmul__(self, vector: Tensor) -> Tensor:
        """Return H v for a vector (size,), in the vector's type."""
        total, images = torch.zeros(self.size, dtype=torch.float64), 0
        v = vector.to(self.parameters[0])
        for x, labels in self.batches:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # other kernels have no second derivative
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
    """Compute the `count` largest eigenvalues to a relative tolerance by restarted Lanczos (ARPACK), greatest first."""

    def product(v: np.ndarray) -> np.ndarray:
        return (hessian @ torch.from_numpy(v.ravel().copy())).numpy()

    shape = (hessian.size, hessian.size)
    start = np.random.default_rng(seed).normal(size=hessian.size)
    operator = LinearOperator(shape, matvec=product, dtype=np.float64)
    values = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance, return_eigenvectors=False)
    return np.sort(values)[::-1].tolist()


def trace_samples(hessian: Hessian, seeds: Iterable[int]) -> list[float]:
    """Compute v' H v with one v of random signs per seed; its expectation is the trace (Hutchinson 1989)."""
    samples = []
    for seed in seeds:
        v = torch.randint(2, (hessian.size,), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
        samples.append((v @ (hessian @ v)).item())
    return samples
