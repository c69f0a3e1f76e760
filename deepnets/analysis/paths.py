"""Paths: the gradient at the input by the number of branches it came through (Veit et al. 2016, section 5, Fig. 6).

With h and F the two terms of every unit, y = h(x) + F(x), the gradient of n units is the sum over 2^n paths, each of
which goes through h or F alone in each unit. A path's length is the number of F's on it. For gated units h(x) is
(1 - g(x)) x and F is what it lacks to y, so that the sum stays the whole gradient.
"""

from collections.abc import Callable, Sequence
from math import comb

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepnets.analysis.walk import Walk, terms
from deepnets.errors import UserError
from deepnets.models.unit import Unit

CHUNK = 64  # images and paths in one pass


def path_gradients(walk: Walk, x: Tensor, labels: Tensor, through: Tensor) -> Tensor:
    """The gradient of each image's cross-entropy at x (N, C, H, W) along its own path.

    `through` (N, units) tells in which units that path takes F, and not h. The forward pass is the whole net's, so that
    all activations are those of the net. Raises a UserError for plain units, which have one path.
    """
    _check(walk)
    x = x.detach().requires_grad_()
    state = x
    with torch.enable_grad():
        for unit, before, b, chosen in zip(walk.units, walk.before, walk.b, through.T, strict=True):
            h, y = terms(unit, before(state), b)
            term = torch.where(chosen.view(-1, *[1] * (h.dim() - 1)), y - h, h)
            state = unit.after(y.detach() + (term - term.detach()))
        loss = cross_entropy(walk.end(state), labels, reduction="sum")
    return torch.autograd.grad(loss, x)[0]


def norms_by_length(
    walk: Walk, x: Tensor, labels: Tensor, lengths: Sequence[int], draws: int, generator: torch.Generator
) -> np.ndarray:
    """The Euclidean norm of the gradient along `draws` random paths of each length, (lengths, draws): Fig. 6b.

    Every draw takes one of the paths of that length, all equally likely, and the images x (N, C, H, W) in turn.
    """
    count = len(lengths) * draws
    ranks = torch.rand(count, len(walk), generator=generator).argsort(1).argsort(1)
    through = (ranks < torch.tensor(lengths).repeat_interleave(draws)[:, None]).to(x.device)
    image = (torch.arange(draws) % len(x)).repeat(len(lengths)).to(x.device)
    norms = [
        path_gradients(walk, x[some], labels[some], paths).flatten(1).norm(dim=1).cpu()
        for some, paths in zip(image.split(CHUNK), through.split(CHUNK), strict=True)
    ]
    return torch.cat(norms).view(len(lengths), draws).numpy()


def means_by_image(norms: np.ndarray, images: int) -> np.ndarray:
    """Each image's mean of `norms_by_length`, (lengths, images): draws of one image are not independent, images are."""
    return np.stack([norms[:, image::images].mean(1) for image in range(images)], axis=1)


def gradients_by_length(walk: Walk, x: Tensor, labels: Tensor) -> Tensor:
    """The sum of the gradients at x along all paths of each length 0 to n, (n + 1, N, C, H, W), without sampling.

    Behind every unit the sums by length are known from those in front of the next: through h a path keeps its length,
    through F it gains one. Costs about 3 n / 2 evaluations of the net. Raises a UserError for plain units.
    """
    _check(walk)
    sources, state = [], x
    with torch.no_grad():
        for unit, before, b in zip(walk.units, walk.before, walk.b, strict=True):
            sources.append(state)
            state = unit(before(state), b)
    sums = _pulled_back(lambda s: -torch.log_softmax(walk.end(s), 1).gather(1, labels[:, None]), state)[None]
    for unit, before, b, source in reversed(list(zip(walk.units, walk.before, walk.b, sources, strict=True))):
        through_h, through_branch = _pulled_back_by_term(unit, before, b, source, sums)
        sums = torch.cat((through_h, torch.zeros_like(through_h[:1])))
        sums[1:] += through_branch
    return sums


def _pulled_back(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(function(x).sum(), x)[0]


def _pulled_back_by_term(
    unit: Unit, before: Callable[[Tensor], Tensor], b: float, source: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients `sums` (lengths, N, ...) behind the unit as they arrive in front of it: through h, through F."""
    source = source.detach().requires_grad_()
    with torch.enable_grad():
        h, y = terms(unit, before(source), b)
        branch = y - h
        y = y.detach().requires_grad_()
        after = unit.after(y)
    pulled = []
    for gradient in sums:
        (at_y,) = torch.autograd.grad(after, y, gradient, retain_graph=True)
        pulled.append([torch.autograd.grad(term, source, at_y, retain_graph=True)[0] for term in (h, branch)])
    through_h, through_branch = map(torch.stack, zip(*pulled, strict=True))
    return through_h, through_branch


def path_share(units: int, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Which share of all 2^n paths has each length: Fig. 6a, Binomial(n, 1/2)."""
    return binom.pmf(lengths, units, 0.5)


def surviving_paths(units: int, deleted: int, lengths: tuple[int, int] | None = None) -> int:
    """How many of the 2^units paths are left without `deleted` branches, 2^(units - deleted); of `lengths` only.

    Both ends count. Veit et al. 2016, section 4.2.
    """
    left = units - deleted
    first, last = lengths or (0, left)
    return sum(comb(left, length) for length in range(first, last + 1))


def effective_lengths(products: np.ndarray, share: float = 0.95) -> tuple[int, int]:
    """The shortest range of indices, both ends included, that holds that share of the sum of `products`.

    Raises:
        UserError: they are not finite.
    """
    if not np.isfinite(products).all():
        raise UserError("the gradients of this network are not finite: it diverged or overflows; choose another")
    sums = np.concatenate(([0.0], np.cumsum(products)))
    ranges = [
        (last - first, first, last)
        for first in range(len(products))
        for last in range(first, len(products))
        if sums[last + 1] - sums[first] >= share * sums[-1]
    ]
    _, first, last = min(ranges)
    return first, last


def effective_paths(
    means: np.ndarray, share_of_paths: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Which share of all paths has an effective length, and its bootstrap 95 % interval over the images.

    `means` (lengths, images) are of `means_by_image`, `share_of_paths` is of the same lengths. Gradients differ so much
    between images that a few of them may decide. Raises a UserError where they are not finite.
    """

    def share(means: np.ndarray) -> float:
        first, last = effective_lengths(share_of_paths * means.mean(1))
        return share_of_paths[first : last + 1].sum()

    images = means.shape[1]
    resampled = [share(means[:, rng.integers(images, size=images)]) for _ in range(resamples)]
    low, high = np.quantile(resampled, (0.025, 0.975))
    return share(means), (low, high)


def _check(walk: Walk) -> None:
    if any(unit.is_plain for unit in walk.units):
        raise UserError("a plain network has a single path, through all branches: paths need a shortcut")
