"""Splits the gradient at the input by the number of branches that it came through (Veit et al. 2016, Fig. 6).

Every unit adds two terms, y = h(x) + F(x). So the gradient of n units is the sum over 2^n paths; in each unit a path
goes through either h or F. A path's length is the number of F's on it. For gated units h(x) is (1 - g(x)) x and F is
y - h(x), so that the sum stays the whole gradient.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import cross_entropy

from deepnets.analysis.walk import Walk, terms
from deepnets.errors import UserError
from deepnets.models.shortcuts import Dropped, Identity, Projected, Scaled
from deepnets.models.unit import Unit

AT_ONCE = 32  # images, or paths with an image each, of one backward pass
PATHS = 256  # paths whose gradients are held at once
FAR = 40  # powers of two: a gradient that is further than this from 1 is rescaled
# With these shortcuts y is h(x) plus a term of r alone. So `_branch_of` detaches the x in h(x): if it computed
# y - h(x) instead, rounding of h's gradient would drown a small gradient of F.
APART = (Identity, Scaled, Projected, Dropped)


def path_gradients(walk: Walk, x: Tensor, labels: Tensor, through: Tensor) -> Tensor:
    """Compute the gradient of each image's cross-entropy at x (N, C, H, W) along a path of its own.

    `through` (N, units) is true where the path takes F, and false where it takes h. The activations are always those of
    the whole net. Raises a UserError for plain units, which have one path.
    """
    gradients, exponents = _along(walk, x, labels, through, torch.arange(len(x), device=x.device))
    return gradients * _power(exponents, gradients)


def norms_by_length(
    walk: Walk, x: Tensor, labels: Tensor, lengths: Sequence[int], draws: int, generator: torch.Generator
) -> np.ndarray:
    """Compute the Euclidean norm of the gradient along `draws` random paths of each length, (lengths, draws): Fig. 6b.

    All paths of a length are equally likely, and the images x (N, C, H, W) take turns. A path costs about one
    evaluation of the net.
    """
    through, image = random_paths(len(walk), lengths, draws, len(x), generator)
    return norms_along(walk, x, labels, through, image).view(len(lengths), draws).numpy()


def random_paths(
    units: int, lengths: Sequence[int], draws: int, images: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw `draws` random paths of each length, (paths, units), and assign the images to them in turn, (paths,)."""
    ranks = torch.rand(len(lengths) * draws, units, generator=generator).argsort(1).argsort(1)
    through = ranks < torch.tensor(lengths).repeat_interleave(draws)[:, None]
    return through, (torch.arange(draws) % images).repeat(len(lengths))


def norms_along(walk: Walk, x: Tensor, labels: Tensor, through: Tensor, image: Tensor) -> Tensor:
    """Compute the gradient's norm, (paths,) float64, along each path of `through` (paths, units) for its `image`."""
    norms = torch.empty(len(image), dtype=torch.float64)
    for some in image.argsort().split(PATHS):
        chosen, places = image[some].to(x.device).unique(return_inverse=True)
        gradients, exponents = _along(walk, x[chosen], labels[chosen], through[some].to(x.device), places)
        gradients = gradients.double().flatten(1)
        norms[some] = (gradients.norm(dim=1) * _power(exponents, gradients)[:, 0]).cpu()
    return norms


def _along(walk: Walk, x: Tensor, labels: Tensor, through: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradient along each path, for its `image` (paths,): g 2^e with g (paths, C, H, W) and e (paths,).

    All paths of an image share one forward pass; in the backward pass, F is computed again only for paths through F.
    The gradients of the longest paths are too small for float32, so g is rescaled from unit to unit.
    """
    _refuse_plain(walk)
    passed, state = _passed(walk, x)
    gradients = _rows(_pulled_back(lambda s: cross_entropy(walk.end(s), labels, reduction="sum"), state), image)
    exponents = torch.zeros(len(image), dtype=torch.int64, device=x.device)
    units = list(zip(walk.units, walk.before, walk.b, passed, through.T, strict=True))
    for unit, before, b, (source, y), takes_branch in reversed(units):
        pulled = _in_order(source.new_empty(len(image), *_in_order(source).shape[1:]), back=True)
        for chosen, term_of in ((takes_branch, _branch_of), (~takes_branch, _shortcut_of)):
            for some in chosen.nonzero()[:, 0].split(AT_ONCE):
                at_y = _pulled_back(unit.after, _rows(y, image[some]), _rows(gradients, some))
                at_source = _pulled_back(partial(term_of, unit, before, b), _rows(source, image[some]), at_y)
                _in_order(pulled).index_copy_(0, some, _in_order(at_source))
        gradients, exponents = _scaled(pulled, exponents)
    return gradients, exponents


def _passed(walk: Walk, x: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return each unit's input with the unit's sum y, and the output of the last unit."""
    passed = []
    with torch.no_grad():
        for unit, before, b in walk:
            _, y = terms(unit, before(x), b)
            passed.append((x, y))
            x = unit.after(y)
    return passed, x


def _branch_of(unit: Unit, before: Callable[[Tensor], Tensor], b: float, x: Tensor) -> Tensor:
    """Compute F(x) up to a constant, which has no gradient."""
    x = unit.before(before(x))
    r = unit.branch(x)
    r = r if b == 1 else b * r
    if isinstance(unit.shortcut, APART):
        return unit.shortcut(x.detach(), r)
    return unit.shortcut(x, r) - unit.shortcut(x, unit.zero(x))


def _shortcut_of(unit: Unit, before: Callable[[Tensor], Tensor], _: float, x: Tensor) -> Tensor:
    x = unit.before(before(x))
    return unit.shortcut(x, unit.zero(x))


def _scaled(gradients: Tensor, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale g 2^e, so that the greatest value of each path's g stays far from float32's limits."""
    rows = _in_order(gradients).flatten(1)
    greatest = torch.maximum(rows.amax(1), -rows.amin(1))
    more = torch.frexp(greatest).exponent.to(exponents)
    if more.abs().max() <= FAR:
        return gradients, exponents
    return gradients * _power(-more, gradients), exponents + more


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index]; each row is copied as one block of memory."""
    return _in_order(_in_order(x).index_select(0, index), back=True)


def _in_order(x: Tensor, back: bool = False) -> Tensor:
    """View images x (N, C, H, W) as (N, H, W, C), the order in which their values lie in memory, or back."""
    if x.dim() != 4:
        return x
    return x.permute(0, 3, 1, 2) if back else x.permute(0, 2, 3, 1)


def _power(exponents: Tensor, like: Tensor) -> Tensor:
    """Return 2^e in the type of `like`, shaped as factors for its first dimension."""
    return torch.exp2(exponents.to(like)).view(-1, *[1] * (like.dim() - 1))


def gradients_by_length(walk: Walk, x: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum of the gradients at x along all paths of each length 0 to n, without sampling.

    The result is float64 (n + 1, N, C, H, W). The sums at a unit's input follow from those at its output: through h a
    path keeps its length, through F it gains one. This costs about n / 2 backward passes. Raises a UserError for plain
    units.
    """
    _refuse_plain(walk)
    parts = [_sums(walk, *part) for part in zip(x.split(AT_ONCE), labels.split(AT_ONCE), strict=True)]
    return torch.cat(parts, dim=1)


def _sums(walk: Walk, x: Tensor, labels: Tensor) -> Tensor:
    passed, state = _passed(walk, x)
    sums = [_pulled_back(lambda s: cross_entropy(walk.end(s), labels, reduction="sum"), state)]
    exponents = [0]
    for unit, before, b, (source, y) in reversed(list(zip(walk.units, walk.before, walk.b, passed, strict=True))):
        parts: list[list[tuple[Tensor, int]]] = [[] for _ in range(len(sums) + 1)]
        for length, both in enumerate(_pulled_back_by_term(unit, before, b, source, y, sums)):
            for more, pulled in enumerate(both):
                parts[length + more].append((pulled, exponents[length]))
        sums, exponents = map(list, zip(*map(_added, parts), strict=True))
    return torch.stack([total.double() * 2.0**exponent for total, exponent in zip(sums, exponents, strict=True)])


def _added(parts: list[tuple[Tensor, int]]) -> tuple[Tensor, int]:
    """Add all g 2^e and return the sum as one pair (g, e); the greatest value of g is far from float32's limits."""
    exponent = max(exponent for _, exponent in parts)
    total, *others = (part if power == exponent else part * 2.0 ** (power - exponent) for part, power in parts)
    for other in others:
        total = total + other
    _, more = math.frexp(torch.linalg.vector_norm(total, torch.inf).item())
    return (total, exponent) if abs(more) <= FAR else (total * 2.0**-more, exponent + more)


def _pulled_back(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor | None = None) -> Tensor:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(function(x), x, gradient)[0]


def _pulled_back_by_term(
    unit: Unit, before: Callable[[Tensor], Tensor], b: float, source: Tensor, y: Tensor, gradients: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each gradient (N, ...) at the unit's output, the gradients at its input: through h, and through F."""
    source, y = source.detach().requires_grad_(), y.detach().requires_grad_()
    with torch.enable_grad():
        after = unit.after(y)
        h, branch = _shortcut_of(unit, before, b, source), _branch_of(unit, before, b, source)
    for gradient in gradients:
        (at_y,) = torch.autograd.grad(after, y, gradient, retain_graph=True)
        (through_h,) = torch.autograd.grad(h, source, at_y, retain_graph=True)
        (through_branch,) = torch.autograd.grad(branch, source, at_y, retain_graph=True)
        yield through_h, through_branch


def _refuse_plain(walk: Walk) -> None:
    if any(unit.is_plain for unit in walk.units):
        raise UserError("a plain network has a single path, through all branches: paths need a shortcut")


def path_share(units: int, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the share of all 2^n paths that has each length: Fig. 6a, Binomial(n, 1/2)."""
    return binom.pmf(lengths, units, 0.5)


def surviving_paths(units: int, deleted: int, lengths: tuple[int, int] | None = None) -> int:
    """Count how many of 2^units paths are left after `deleted` branches are deleted: 2^(units - deleted).

    With `lengths`, a range that includes both ends, only paths of these lengths count. Veit et al. 2016, section 4.2.
    """
    left = units - deleted
    first, last = lengths or (0, left)
    return sum(math.comb(left, length) for length in range(first, last + 1))


def effective_lengths(products: np.ndarray, share: float = 0.95) -> tuple[int, int]:
    """Return the shortest range of indices, both ends included, that holds at least `share` of the sum of `products`.

    Raises:
        UserError: the products are not finite.
    """
    if not np.isfinite(products).all():
        raise UserError("the gradients of this network are not finite: it diverged or overflows; use another")
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
    """Return the share of all paths that has an effective length, and its bootstrap 95 % interval over the images.

    `means` (lengths, images) come from `means_by_image`, and `share_of_paths` (lengths,) from `path_share`. Gradients
    differ so much between images that a few images may decide the result. Raises a UserError for means that are not
    finite.
    """

    def share(means: np.ndarray) -> float:
        first, last = effective_lengths(share_of_paths * means.mean(1))
        return share_of_paths[first : last + 1].sum()

    images = means.shape[1]
    resampled = [share(means[:, rng.integers(images, size=images)]) for _ in range(resamples)]
    low, high = np.quantile(resampled, (0.025, 0.975))
    return share(means), (low, high)


def means_by_image(norms: np.ndarray, images: int) -> np.ndarray:
    """Average `norms_by_length` over the draws of each image, (lengths, images).

    Draws of one image are not independent of each other; images are.
    """
    return np.stack([norms[:, image::images].mean(1) for image in range(images)], axis=1)
