"""Lesions: delete or re-order units at test time, and measure the net's error (Veit et al. 2016, section 4)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.analysis.walk import Walk
from deepnets.errors import UserError
from deepnets.models.shortcuts import Gated
from deepnets.models.unit import Unit


@dataclass(frozen=True)
class Place:
    """The unit, counted from 0, that stands at a position, and whether it is deleted."""

    unit: int
    deleted: bool = False


Variant = tuple[Place, ...]  # the unit at each position of the net


@dataclass(frozen=True)
class Scores:
    """Error (%) and mean cross-entropy (nats) of each variant, (variants,)."""

    error: np.ndarray
    loss: np.ndarray


def without_branch(unit: Unit, x: Tensor) -> Tensor:
    """Compute a unit's output x' without its branch: its shortcut, `before` and `after` stay.

    An exclusive gate is forced to 0, so that x is copied: Srivastava et al. 2015, Fig. 4. A plain unit, which has no
    shortcut, is taken out as a whole.
    """
    if unit.is_plain:
        return x
    if isinstance(unit.shortcut, Gated) and unit.shortcut.exclusive:
        return unit.after(unit.shortcut.resize(unit.before(x)))
    return unit(x, 0.0)


def closes_gates(walk: Walk) -> bool:
    """Return whether all units have exclusive gates, so that a unit is deleted by forcing its gates to 0."""
    return all(isinstance(unit.shortcut, Gated) and unit.shortcut.exclusive for unit in walk.units)


def scores(
    walk: Walk,
    batches: Iterable[tuple[Tensor, Tensor]],
    variants: Sequence[Variant],
    precision: torch.dtype = torch.float32,
) -> Scores:
    """Score each variant of a net on all batches (x (N, C, H, W), y (N,)); batch statistics stay frozen.

    With `precision` bfloat16 the net runs under autocast, as training evaluates it; with float32 it runs in the type of
    its weights.

    Variants share their activations up to the first unit that differs: all single deletions of n units cost n / 2
    evaluations, not n. Deletions hold one activation per position at a time, re-orderings may hold more. So on a CPU
    batches that fit its cache are the fastest.
    """
    sums, images = np.zeros((len(variants), 2)), 0
    for x, labels in batches:
        images += len(labels)
        sums += sums_of(walk, x, labels, variants, precision)
    return scored(sums, images)


def scored(sums: np.ndarray, images: int) -> Scores:
    """Turn the sums (variants, 2) of `sums_of` over all images into scores."""
    wrong, loss = (sums / max(images, 1)).T
    return Scores(100 * wrong, loss)


def sums_of(
    walk: Walk, x: Tensor, labels: Tensor, variants: Sequence[Variant], precision: torch.dtype = torch.float32
) -> np.ndarray:
    """Count the images of a batch that each variant gets wrong, and sum up its cross-entropy: (variants, 2)."""
    sums = torch.zeros(len(variants), 2, dtype=torch.float64)
    autocast = torch.autocast(x.device.type, torch.bfloat16, enabled=precision == torch.bfloat16)
    with torch.inference_mode(), autocast:
        for group, logits in _logits(walk, x, variants):
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            wrong = (logits.argmax(1) != labels).sum().double()
            loss = cross_entropy(logits, labels, reduction="sum").double()
            sums[group] += torch.stack((wrong, loss)).cpu()
    return sums.numpy()


def _logits(walk: Walk, x: Tensor, variants: Sequence[Variant]) -> Iterable[tuple[list[int], Tensor]]:
    """Yield the logits of each group of equal variants; variants that begin alike share this part of the work."""
    pending = [(walk.before[0](x), 0, list(range(len(variants))))]
    while pending:
        x, position, alike = pending.pop()
        if position == len(walk):
            yield alike, walk.end(x)
            continue
        groups = defaultdict(list)
        for variant in alike:
            groups[variants[variant][position]].append(variant)
        following = walk.before[position + 1] if position + 1 < len(walk) else nn.Identity()
        for place, group in groups.items():
            pending.append((following(_pass(walk, place, x)), position + 1, group))


def _pass(walk: Walk, place: Place, x: Tensor) -> Tensor:
    unit = walk.units[place.unit]
    return without_branch(unit, x) if place.deleted else unit(x, walk.b[place.unit])


def intact(walk: Walk) -> Variant:
    """Return the variant that keeps every unit in its place."""
    return tuple(Place(unit) for unit in range(len(walk)))


def with_deleted(walk: Walk, deleted: Iterable[int]) -> Variant:
    """Return the variant that has the branches of these units deleted."""
    deleted = set(deleted)
    return tuple(Place(unit, unit in deleted) for unit in range(len(walk)))


def keeping_shape(walk: Walk, x: Tensor) -> list[int]:
    """Return the units whose output has the shape of their input, on images x (N, C, H, W)."""
    with torch.inference_mode():
        inputs = walk.inputs(x[:1])[:-1]
        outputs = [unit(state) for unit, state in zip(walk.units, inputs, strict=True)]
    return [unit for unit in range(len(walk)) if inputs[unit].shape == outputs[unit].shape]


def deletable(walk: Walk, x: Tensor) -> list[int]:
    """Return the units that can be deleted: those with a shortcut, and plain units that keep the shape of their input.

    Raises:
        UserError: there is no such unit.
    """
    keeping = set(keeping_shape(walk, x))
    units = [unit for unit in range(len(walk)) if unit in keeping or not walk.units[unit].is_plain]
    if not units:
        raise UserError("each unit of this plain network changes the shape of its input: none can be taken out")
    return units


def random_deletions(walk: Walk, candidates: Sequence[int], count: int, generator: np.random.Generator) -> Variant:
    """Return the net without `count` random units of `candidates`, all subsets equally likely: Veit et al., Fig. 5a."""
    return with_deleted(walk, generator.choice(candidates, count, replace=False).tolist())


def swappable(walk: Walk, x: Tensor) -> list[tuple[int, int]]:
    """Return the pairs of units in one stage that can change places, since both keep the shape of their input.

    Raises:
        UserError: there is no such pair.
    """
    keeping = keeping_shape(walk, x)
    pairs = [(a, b) for a in keeping for b in keeping if a < b and walk.stages[a] == walk.stages[b]]
    if not pairs:
        raise UserError("no stage of this network has two units of equal shape, which could change places")
    return pairs


def reordering(walk: Walk, pairs: Sequence[tuple[int, int]], swaps: int, generator: np.random.Generator) -> Variant:
    """Return the net after `swaps` swaps, each of a pair drawn at random from `pairs`: Veit et al., Fig. 5b."""
    order = list(range(len(walk)))
    for first, second in generator.choice(pairs, swaps).tolist():
        order[first], order[second] = order[second], order[first]
    return tuple(map(Place, order))
