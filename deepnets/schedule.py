"""Learning-rate schedules: the factor on the optimiser's learning rate at each iteration.

A schedule maps the number of iterations done to the factor. `torch.optim.lr_scheduler.LambdaLR` calls it, and saves and
restores its state. `total` is the budget in iterations. A schedule may depend on the training. At the end of
each epoch, `fit` calls `schedule.observe` with the iterations done and the mean training loss, and
`schedule.observe_errors` with the iterations done and each split's error in percent, by the split's name. Either method
may be missing.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Literal

from deepnets.system.settings import Count, Factor, Natural, PositiveFactor, Rate, Share


class Step:
    """Multiplies the rate by `factor` at each milestone, and by `warmup_factor` in the first `warmup_iterations`.

    Milestones may be in any unit; `of` is the budget in that unit: `[32000, 48000]` of 64000 iterations (He et al.
    2015, section 4.2) or `[80, 121]` of 164 epochs (fb.resnet.torch). They scale with the budget, to whole iterations.
    The warm-up ends in a jump (He et al. 2015, section 4.2, for 110 layers) and does not scale.

    Raises:
        ValueError: milestones do not rise, or one of them is not between 1 and `of`.
    """

    def __init__(
        self,
        total: int,
        milestones: Sequence[Count],
        of: Count,
        factor: Factor,
        warmup_iterations: Natural,
        warmup_factor: Factor,
    ) -> None:
        if list(milestones) != sorted(set(milestones)) or not all(0 < m <= of for m in milestones):
            raise ValueError(f"milestones {list(milestones)} of {of}: must rise and lie between 1 and {of}")
        self.milestones = [milestone * total // of for milestone in milestones]
        self.factor = factor
        self.warmup_iterations = warmup_iterations
        self.warmup_factor = warmup_factor

    def __call__(self, iteration: int) -> float:
        warmup = self.warmup_factor if iteration < self.warmup_iterations else 1.0
        return warmup * self.factor ** bisect_right(self.milestones, iteration)

    def __str__(self) -> str:
        warmup = [f"x {self.warmup_factor:g} for {_iterations(self.warmup_iterations)}"] * bool(self.warmup_iterations)
        iterations = f"iteration{'s' * (len(self.milestones) > 1)} {' and '.join(map(str, self.milestones))}"
        falls = [f"x {self.factor:g} at {iterations}"] * bool(self.milestones)
        return f"learning rate {', '.join(warmup + falls) or 'constant'}"


class Cosine:
    """Falls in half a cosine from the full learning rate to zero (Loshchilov and Hutter 2017)."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, iteration: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(iteration / self.total, 1)))

    def __str__(self) -> str:
        return "learning rate falling to 0 in half a cosine"


class WarmupCosine:
    """Rises linearly for `warmup` units of time, then falls in half a cosine to `final_factor` times the full rate.

    `of` is the budget in the same unit, e.g. in epochs; the warm-up scales with the budget. With `warmup` 0 there is no
    rise. The rise begins one step above 0 and ends at the full learning rate.

    Raises:
        ValueError: the warm-up is as long as the budget.
    """

    def __init__(self, total: int, warmup: Natural, of: Count, final_factor: Factor) -> None:
        if warmup >= of:
            raise ValueError(f"warmup {warmup} of {of}: must be shorter than the budget")
        self.total, self.final_factor = total, final_factor
        self.warmup_iterations = warmup * total // of

    def __call__(self, iteration: int) -> float:
        if iteration < self.warmup_iterations:
            return (iteration + 1) / self.warmup_iterations
        done = (iteration - self.warmup_iterations) / max(1, self.total - self.warmup_iterations)
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * min(done, 1)))

    def __str__(self) -> str:
        rise = f"rising for {_iterations(self.warmup_iterations)}, then " * bool(self.warmup_iterations)
        end = f"x {self.final_factor:g}" if self.final_factor else "0"
        return f"learning rate {rise}falling to {end} in half a cosine"


class Exponential:
    """Falls as exp(-k t) to `final_factor` at the end of the budget (Srivastava et al. 2015, section 3.1)."""

    def __init__(self, total: int, final_factor: PositiveFactor) -> None:
        self.total = total
        self.final_factor = final_factor

    def __call__(self, iteration: int) -> float:
        return self.final_factor ** (iteration / self.total)

    def __str__(self) -> str:
        return f"learning rate falling exponentially to x {self.final_factor:g}"


class Plateau:
    """Multiplies the rate by `factor` when the loss has fallen too little for `patience` epochs in a row.

    The loss falls too little if it falls by less than `threshold` times its value `window` epochs ago (Balduzzi et al.
    2017, A4). After a change of the rate, epochs are counted anew. A change acts from the second iteration of the next
    epoch on, because the rate of the first iteration is set already.
    """

    def __init__(self, total: int, window: Count, patience: Count, threshold: Share, factor: Share) -> None:
        self.window, self.patience, self.threshold, self.factor = window, patience, threshold, factor
        self.losses: list[float] = []
        self.slow_epochs = 0
        self.falls: list[int] = []

    def __call__(self, iteration: int) -> float:
        return self.factor ** bisect_left(self.falls, iteration)

    def __str__(self) -> str:
        return f"learning rate x {self.factor:g} on a plateau"

    def observe(self, iteration: int, training_loss: float) -> None:
        """Take note of the mean training loss of an epoch."""
        self.losses = [*self.losses[-self.window :], training_loss]
        if len(self.losses) <= self.window:
            return
        slow = self.losses[0] - self.losses[-1] < self.threshold * self.losses[0]
        self.slow_epochs = self.slow_epochs + 1 if slow else 0
        if self.slow_epochs == self.patience:
            self.slow_epochs, self.falls = 0, [*self.falls, iteration]


class ErrorPlateau:
    """Multiplies the rate by `factor` when an error has reached no new low for `patience` epochs.

    `watched` names the error: train, validation or test. A new low is below the lowest error so far by more than
    `threshold` times that error. He et al. 2015 only say "when the error plateaus". A change acts as in `Plateau`.
    """

    def __init__(
        self,
        total: int,
        watched: Literal["train", "validation", "test"],
        patience: Count,
        threshold: Rate,
        factor: Share,
    ) -> None:
        self.watched, self.patience, self.threshold, self.factor = watched, patience, threshold, factor
        self.lowest = math.inf
        self.epochs_since = 0
        self.falls: list[int] = []

    def __call__(self, iteration: int) -> float:
        return self.factor ** bisect_left(self.falls, iteration)

    def __str__(self) -> str:
        return f"learning rate x {self.factor:g} where the {self.watched} error plateaus"

    def observe_errors(self, iteration: int, errors: dict[str, float]) -> None:
        """Take note of the errors of an epoch; an epoch that is only timed has no errors."""
        if self.watched not in errors:
            return
        is_lower = errors[self.watched] < self.lowest * (1 - self.threshold)
        self.lowest = errors[self.watched] if is_lower else self.lowest
        self.epochs_since = 0 if is_lower else self.epochs_since + 1
        if self.epochs_since == self.patience:
            self.epochs_since, self.falls = 0, [*self.falls, iteration]


def end_epoch(schedule: Any, iteration: int, training_loss: float, errors: dict[str, float]) -> None:
    """Give the results of an epoch that ends at `iteration` to a schedule that depends on the training."""
    if hasattr(schedule, "observe"):
        schedule.observe(iteration, training_loss)
    if hasattr(schedule, "observe_errors"):
        schedule.observe_errors(iteration, errors)


def _iterations(count: int) -> str:
    return f"{count} iteration{'s' * (count != 1)}"
