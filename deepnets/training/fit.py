"""The training loop: a generator that knows no files and no configuration."""

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
from deepnets.training.metrics import Mean, Sums
from deepnets.training.step import Forward, check_device, check_network, check_step, forward_of

Evaluated = EvaluationBatches | StreamedEvaluation
FIRST = 20  # iterations whose loss is always known: what a later training of the run is compared with


@dataclass
class Training:
    """All that a run consists of while it trains, and where in its budget it stands.

    `replica` is `model`, or what averages the gradients of its copies in all processes of `world`; `forward` is its
    forward pass, executed in the way that `step` names; `criterion` is the loss that is minimised. `clip_gradient_norm`
    is the largest norm of the gradient of all parameters (Pascanu et al. 2013); a larger one is scaled down.
    `iterations` is the budget. `iteration`, `epoch`, `batch` (within the epoch) and `images` count what is done. `sums`
    holds this process's part of this epoch's training loss and error so far, `loss` the last batch's mean loss, both on
    the device; of several processes it is summed, and is not None, only every `log_iterations` and in the first
    `FIRST`. `completed` is set only in the state that ends an epoch: the means over "train" and over each evaluated
    split.
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
        """The rate of the last iteration."""
        return float(self.schedule.base_lrs[0]) * self.schedule.lr_lambdas[0](max(self.iteration - 1, 0))

    @property
    def divisor(self) -> float:
        """Whole batch size / number of processes. DDP averages gradients: loss sum / divisor gives the batch's mean."""
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
        """Complete the epoch, with the means over each evaluated split, and stand at the next one's beginning."""
        self.completed = {"train": self.sums.mean(self.world), **evaluated}
        errors = {name: mean.error for name, mean in self.completed.items()}
        end_epoch(self.schedule.lr_lambdas[0], self.iteration, self.completed["train"].loss, errors)
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums.values.zero_()

    @property
    def due(self) -> dict[str, Evaluated]:
        """What is evaluated at the end of this epoch."""
        ends = self.iteration == self.iterations
        return {name: batches for name, batches in self.evaluated.items() if ends or not batches.is_final}

    @property
    def in_progress(self) -> bool:
        """Whether the budget or an epoch has not ended."""
        return self.iteration < self.iterations or self.batch > 0

    def gather_statistics(self) -> None:
        """Let the running statistics of batch normalisation be the whole batch's, in all processes."""
        if self.world.size > 1:
            set_statistics(self.model, mean_statistics(self.world.all_gather(statistics_of(self.model))))

    @property
    def _survival(self) -> torch.Generator | None:
        return getattr(self.model, "draws", None)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here, by as many processes to the same weights, bit by bit.

        Every process of `world` must ask. What they have of their own lies by rank: sums and running statistics.
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
        """Stand where `state_dict` was taken, by however many processes."""
        rank, is_alike = self.world.rank, len(state["sums"]) == self.world.size
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.iteration, self.epoch = state["iteration"], state["epoch"]
        self.batch, self.images = state["batch"], state["images"]
        if is_alike:
            self.sums.values.copy_(state["sums"][rank])
        else:
            self.sums.values.copy_(state["sums"].sum(0) if self.world.is_first else torch.zeros(3))
        if is_alike and state["statistics"] is not None:
            set_statistics(self.model, state["statistics"][rank])
        if self._survival:
            self._survival.set_state(state["survival"])
        torch.set_rng_state(state["random"][0].clone())  # torch reads from the start of a storage
        if self.device.type == "cuda" and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"][0].clone(), self.device)


def fit(training: Training) -> Iterator[Training]:
    """Train to the end of the budget; yields the same object after each iteration, evaluated batch and epoch.

    Whoever iterates may log, save `state_dict()` or stop at each yield, and decides when to read from the device:
    nothing here waits for it except the end of an epoch. A budget that ends within an epoch ends that epoch.
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
    """Add the loss and error of the whole split to `sums`, in evaluation mode; yields after each batch."""
    model.eval()
    for images, labels in batches:
        if len(labels):
            with torch.inference_mode(), autocast(labels.device, precision):
                logits = logits_of(model, images, len(labels))
                sums.add(cross_entropy(logits, labels, reduction="sum"), logits, labels)
        yield sums


def logits_of(model: nn.Module, images: Tensor | Sequence[Tensor], count: int) -> Tensor:
    """Of `count` images, or of several views of each, float32 (count, classes)."""
    return model(images).float() if isinstance(images, Tensor) else averaged(model, images, count)


def averaged(model: nn.Module, views: Sequence[Tensor], images: int) -> Tensor:
    """Logits (images, classes) whose softmax is the mean of those of all views of an image.

    Each of `views` is (images * k, C, h, w).
    """
    scores = torch.cat([model(x).float().unflatten(0, (images, -1)).log_softmax(2) for x in views], 1)
    return scores.logsumexp(1) - math.log(scores.shape[1])  # finite where the mean itself would round to 0


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """bfloat16 where the arithmetic allows it, for `precision` bfloat16; nothing for float32.

    No weight is read twice in a pass, so nothing is cached, which a CUDA graph could not hold.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == torch.bfloat16, cache_enabled=False)
