"""The training loop, a generator that knows no files and no configuration, and the sums of its losses and errors."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from deepnets.config.schema import StepKind
from deepnets.data.batches import EvaluationBatches, TrainingBatches
from deepnets.data.loading import StreamedEvaluation, StreamedTraining
from deepnets.distributed.world import ALONE, World
from deepnets.loss import PLAIN, Loss
from deepnets.models.parallel import mean_statistics, named_statistics, set_statistics, statistics_of
from deepnets.schedule import end_epoch
from deepnets.training.step import Forward, check_device, check_network, check_step, forward_of

Evaluated = EvaluationBatches | StreamedEvaluation
FIRST = 20  # the first iterations' losses are always computed, to compare them with another training of the same run


@dataclass(frozen=True)
class Mean:
    """The mean loss, which in evaluation is the cross-entropy in nats, and the error in percent of the images.

    `right` (N,) says which images were predicted correctly. `top_error` is the percentage of images
    whose `top` best guesses (see `Sums`) are all wrong.
    """

    loss: float
    error: float
    right: Tensor | None = field(default=None, compare=False, repr=False)
    top_error: float | None = None


class Sums:
    """Running sums of the loss, wrong predictions and images; adding never waits for the device.

    `values` is a float64 tensor (3,); with `top`, a fourth value counts the images whose `top` best guesses are all
    wrong. With `by_image`, it also keeps which images were predicted correctly.
    """

    def __init__(self, device: torch.device, by_image: bool = False, top: int | None = None) -> None:
        self.top = top
        self.values = torch.zeros(3 if top is None else 4, dtype=torch.float64, device=device)
        self._right: list[Tensor] | None = [torch.zeros(0, dtype=torch.bool, device=device)] if by_image else None

    def add(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Add a batch: `loss` summed over its images, `logits` (N, classes), `targets` (N,) or (N, classes).

        Where targets are probabilities, the likeliest class is the label.
        """
        labels = targets if targets.ndim == 1 else targets.argmax(1)
        right = logits.argmax(1) == labels
        if self._right is not None:
            self._right.append(right)
        wrong = (~right).sum()
        images = torch.full_like(wrong, len(labels))
        values = [loss.detach().double(), wrong.double(), images.double()]
        if self.top is not None:
            highest = logits.topk(min(self.top, logits.shape[1])).indices
            values.append((highest != labels[:, None]).all(1).sum().double())
        self.values += torch.stack(values)

    def mean(self, world: World = ALONE) -> "Mean":
        """Return the means so far over all processes of `world`, by default this process. Waits for the device."""
        loss, wrong, images, *wrong_in_top = world.all_reduce_sum(self.values).tolist()
        right = None if self._right is None else _gathered(torch.cat(self._right), int(images), world)
        top_error = 100 * wrong_in_top[0] / max(images, 1) if wrong_in_top else None
        return Mean(loss / max(images, 1), 100 * wrong / max(images, 1), right, top_error)


@dataclass
class Training:
    """All objects of a run while it trains, and how much of its budget is done.

    `replica` is `model` or, with several processes, a module that averages its gradients over `world`; `forward` is its
    forward pass, executed as `step` says; `criterion` is the loss that is minimised. If the gradient of all parameters
    has a larger norm than `clip_gradient_norm`, it is scaled down to this norm (Pascanu et al. 2013). `iterations` is
    the budget; `iteration`, `epoch`, `batch` (within the epoch) and `images` count what is done. On the device, `sums`
    holds this process's training loss and error in this epoch so far, and `loss` the last batch's mean loss. Several
    processes add up `loss` only every `log_iterations` and in the first `FIRST` iterations; otherwise `loss` is None.
    `completed` is set only when an epoch ends: the means over "train" and over each evaluated split.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    batches: TrainingBatches | StreamedTraining
    evaluated: dict[str, Evaluated]
    iterations: int
    device: torch.device
    precision: torch.dtype
    sums: Sums
    criterion: Loss = PLAIN
    world: World = ALONE
    step: StepKind = StepKind.eager
    clip_gradient_norm: float | None = None
    log_iterations: int = 1
    iteration: int = 0
    epoch: int = 0
    batch: int = 0
    images: int = 0
    loss: Tensor | None = None
    completed: dict[str, Mean] = field(default_factory=dict)
    replica: nn.Module = field(init=False)
    forward: Forward = field(init=False)

    def __post_init__(self) -> None:
        check_step(self.step, self.world.size)
        check_network(self.step, self.model)
        check_device(self.step, self.device)
        self.replica = self.world.replica(self.model, self.device)
        self.forward = forward_of(self.step, self.replica, self.batches.batch_size)

    @property
    def epochs(self) -> int:
        """The budget in epochs; the last one may be shorter than the others."""
        return math.ceil(self.iterations / len(self.batches))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last iteration."""
        return float(self.schedule.base_lrs[0]) * self.schedule.lr_lambdas[0](max(self.iteration - 1, 0))

    @property
    def divisor(self) -> float:
        """The whole batch's size / the number of processes, by which each process divides the sum of its losses.

        DDP then averages the gradients over the processes, which makes them those of the whole batch's mean loss.
        """
        return self.batches.images_in(self.batch) / self.world.size

    def end_step(self, loss: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Count a batch that the optimiser has seen; `loss` is the sum over this process's images."""
        self.sums.add(loss, logits, targets)
        count = self.batches.images_in(self.batch)
        self.iteration += 1
        if self.world.size == 1:
            self.loss = loss / count
        else:
            is_logged = self.iteration % self.log_iterations == 0 or self.iteration <= FIRST
            self.loss = self.world.all_reduce_sum(loss) / count if is_logged else None
        self.batch += 1
        self.images += count

    def end_epoch(self, evaluated: dict[str, Mean]) -> None:
        """Complete the epoch with the means over each evaluated split, and go to the beginning of the next epoch."""
        self.completed = {"train": self.sums.mean(self.world), **evaluated}
        errors = {name: mean.error for name, mean in self.completed.items()}
        end_epoch(self.schedule.lr_lambdas[0], self.iteration, self.completed["train"].loss, errors)
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums.values.zero_()

    @property
    def due(self) -> dict[str, Evaluated]:
        """The splits that are evaluated at the end of this epoch, by name."""
        ends = self.iteration == self.iterations
        return {name: batches for name, batches in self.evaluated.items() if ends or not batches.is_final}

    @property
    def in_progress(self) -> bool:
        """Whether iterations of the budget are left, or an epoch has not ended."""
        return self.iteration < self.iterations or self.batch > 0

    def gather_statistics(self) -> None:
        """Average batch normalisation's running statistics over processes: the mean holds for the whole batch."""
        if self.world.size > 1:
            set_statistics(self.model, mean_statistics(self.world.all_gather(statistics_of(self.model))))

    @property
    def _survival(self) -> torch.Generator | None:
        generator = getattr(self.model, "generator", None)  # a user's own network may call a module so
        return generator if isinstance(generator, torch.Generator) else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a training needs to resume at this iteration.

        On a CPU, a run that resumes with the same number of processes ends with the same bits as an uninterrupted one.
        Every process of `world` must call this, because the state holds the sums, running statistics and random states
        of each process.
        """
        on_gpu = self.device.type == "cuda"
        model, statistics = self.model.state_dict(), None
        if self.world.size > 1:
            statistics = self.world.all_gather(statistics_of(self.model))
            model |= named_statistics(self.model, mean_statistics(statistics))
        return {
            "model": model,
            "statistics": statistics,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "iteration": self.iteration,
            "epoch": self.epoch,
            "batch": self.batch,
            "images": self.images,
            "sums": self.world.all_gather(self.sums.values),
            "survival": self._survival.get_state() if self._survival else None,
            "random": self.world.all_gather(torch.get_rng_state()),
            "random_cuda": self.world.all_gather(torch.cuda.get_rng_state(self.device)) if on_gpu else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`, a `state_dict` that any number of processes may have made."""
        rank, is_same_size = self.world.rank, len(state["sums"]) == self.world.size
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.iteration, self.epoch = state["iteration"], state["epoch"]
        self.batch, self.images = state["batch"], state["images"]
        if is_same_size:
            self.sums.values.copy_(state["sums"][rank])
        else:
            self.sums.values.copy_(state["sums"].sum(0) if self.world.is_first else torch.zeros(3))
        if is_same_size and state["statistics"] is not None:
            set_statistics(self.model, state["statistics"][rank])
        if self._survival:
            self._survival.set_state(state["survival"])
        own = rank if is_same_size else 0  # a user's layer draws other numbers where a process has fewer images
        torch.set_rng_state(state["random"][own].clone())  # a copy, as torch reads from the storage's start
        if self.device.type == "cuda" and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"][own].clone(), self.device)


def fit(training: Training) -> Iterator[Training]:
    """Train to the end of the budget; yields the same object after each iteration, evaluated batch and epoch.

    At each yield the caller may log, save `state_dict()` or stop. The caller decides when to read from the device; this
    function waits for the device only when an epoch ends. If the budget ends within an epoch, that epoch ends too.
    """
    t = training
    while t.in_progress:
        t.model.train()
        for images, targets in t.batches.epoch(t.epoch, start=t.batch):
            if t.iteration == t.iterations:
                break
            with autocast(t.device, t.precision):
                logits = t.forward(images).float()
            loss = t.criterion(logits, targets)
            t.optimizer.zero_grad()
            (loss / t.divisor).backward()
            if t.clip_gradient_norm is not None:
                clip_grad_norm_(t.model.parameters(), t.clip_gradient_norm)
            t.optimizer.step()
            t.schedule.step()
            t.end_step(loss.detach(), logits.detach(), targets)
            yield t
        t.gather_statistics()
        evaluated = {}
        for name, batches in t.due.items():
            sums = Sums(t.device, by_image=True, top=batches.top)
            for _ in evaluate(t.model, batches, sums, t.precision):
                yield t
            evaluated[name] = sums.mean(t.world)
        t.end_epoch(evaluated)
        yield t
        t.completed = {}


def evaluate(model: nn.Module, batches: Evaluated, sums: Sums, precision: torch.dtype) -> Iterator[Sums]:
    """Add the loss and error over `batches` to `sums`, with `model` in evaluation mode; yields after each batch."""
    model.eval()
    for images, labels in batches:
        if len(labels):
            with torch.inference_mode(), autocast(labels.device, precision):
                logits = logits_of(model, images, len(labels))
                sums.add(cross_entropy(logits, labels, reduction="sum"), logits, labels)
        yield sums


def logits_of(model: nn.Module, images: Tensor | Sequence[Tensor], count: int) -> Tensor:
    """Return the logits (count, classes) float32 of `count` images; views of the same image are averaged."""
    return model(images).float() if isinstance(images, Tensor) else averaged(model, images, count)


def averaged(model: nn.Module, views: Sequence[Tensor], images: int) -> Tensor:
    """Return logits (images, classes) whose softmax is the mean of the softmax over all views of an image.

    Each of `views` is (images * k, C, h, w).
    """
    scores = torch.cat([model(x).float().unflatten(0, (images, -1)).log_softmax(2) for x in views], 1)
    return scores.logsumexp(1) - math.log(scores.shape[1])  # finite where the mean itself would round to 0


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Let operations that allow it compute in bfloat16 if `precision` is bfloat16; change nothing for float32.

    Converted weights are not cached: a pass reads no weight twice, and a CUDA graph could not hold a cache.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16, cache_enabled=False)


def _gathered(right: Tensor, images: int, world: World) -> Tensor:
    """Return `right` of all images, in their order, on the host; each process has it for its part of `World.shards`."""
    if world.size == 1:
        return right.cpu()
    shards = world.shards(images)
    padded = torch.zeros(shards[0].stop, dtype=torch.uint8, device=right.device)
    padded[: len(right)] = right
    parts = zip(world.all_gather(padded), shards, strict=True)
    return torch.cat([part[: shard.stop - shard.start] for part, shard in parts]).bool().cpu()
