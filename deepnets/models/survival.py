"""Stochastic depth draws, for each unit of a net, whether its branch survives: b in x' = f(h(x) + b F(x))."""

from dataclasses import dataclass

import torch

from deepnets.system.settings import PositiveFactor, Size


@dataclass(frozen=True)
class LinearDecay:
    """Unit l of L survives with p_l = 1 - (l / L) (1 - p_L), where p_L is `last` (Huang et al. 2016, Eq. 4)."""

    last: PositiveFactor

    def drawn(self, units: int, generator: torch.Generator | None = None) -> list[float]:
        """Draw b of each unit for one mini-batch in training: 1 with probability p_l, else 0."""
        return _bernoulli(self.expected(units), generator)

    def expected(self, units: int) -> list[float]:
        """Return b of each unit at test: p_l."""
        return [1 - unit / units * (1 - self.last) for unit in range(1, units + 1)]


@dataclass(frozen=True)
class Uniform:
    """All units survive with the same probability p (Huang et al. 2016, Fig. 8)."""

    probability: PositiveFactor

    def drawn(self, units: int, generator: torch.Generator | None = None) -> list[float]:
        """Draw b of each unit for one mini-batch in training: 1 with probability p, else 0."""
        return _bernoulli(self.expected(units), generator)

    def expected(self, units: int) -> list[float]:
        """Return b of each unit at test: p."""
        return [self.probability] * units


@dataclass(frozen=True)
class RandomSubset:
    """Exactly `size` units survive in each mini-batch, and all subsets are equally likely (Veit et al. 2016, sec. 5).

    The paper leaves two choices open. Here units that open a stage are drawn like all others. At test all units are
    used, and F(x) is multiplied by size / L, the fraction of mini-batches in which a unit survives, as in Huang et al.
    `expected` raises ValueError unless 1 <= size <= L.
    """

    size: Size

    def drawn(self, units: int, generator: torch.Generator | None = None) -> list[float]:
        """Draw b of each unit for one mini-batch in training: 1 for `size` of them, else 0."""
        survivors = set(torch.randperm(units, generator=generator, device="cpu")[: self.size].tolist())
        return [float(unit in survivors) for unit in range(units)]

    def expected(self, units: int) -> list[float]:
        """Return b of each unit at test: size / L."""
        if not 1 <= self.size <= units:
            raise ValueError(f"size is {self.size}; of {units} units, 1 to {units} can survive")
        return [self.size / units] * units


Survival = LinearDecay | Uniform | RandomSubset


def own_generator() -> torch.Generator:
    """Make a random generator for one net; it draws the same numbers in all processes of a run.

    Torch's generator seeds it. It draws on the CPU, so that no step waits for the GPU.
    """
    return torch.Generator("cpu").manual_seed(int(torch.randint(2**32, (), device="cpu")))


def _bernoulli(probabilities: list[float], generator: torch.Generator | None) -> list[float]:
    draws = torch.rand(len(probabilities), generator=generator, device="cpu").tolist()
    return [float(draw < probability) for draw, probability in zip(draws, probabilities, strict=True)]
