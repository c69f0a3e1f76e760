"""Trainings of equal networks that step together: small networks spend their time on calls, which are then shared."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnets.data.batches import EvaluationBatches
from deepnets.models.stacked import stack
from deepnets.training.fit import Training
from deepnets.training.metrics import Mean, Sums


class Stack:
    """K trainings, at the same iteration, of networks that `models.stacked` can stack, by torch's SGD.

    Each keeps its own order of images, schedule, rate, momentum and decay. From here on their weights, gradients and
    momenta lie in three tensors (K, parameters) of which each training's own are views; so `state_dict` of a training
    is that of one trained alone, and either can go on from the other's.
    """

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        first = self.trainings[0]
        of_all = [_parameters(training) for training in self.trainings]
        self.weights = torch.stack([_flat(own) for own in of_all])
        self.gradients = torch.zeros_like(self.weights)
        self.momenta = torch.stack(
            [_flat([_momentum(training, p) for p in own]) for training, own in zip(self.trainings, of_all, strict=True)]
        )
        for training, own, *rows in zip(
            self.trainings, of_all, self.weights, self.gradients, self.momenta, strict=True
        ):
            _move(training, own, *rows)
        # In the order of the model, which may differ from the optimiser's that the three tensors have.
        places = {id(parameter): place for place, parameter in enumerate(of_all[0])}
        order = [places[id(parameter)] for parameter in first.model.parameters()]
        # As autocast has it: the weights of a pass in its precision, all that is kept in float32.
        self.rounded = self.weights.to(first.precision)
        weights, gradients = (_split(whole, of_all[0]) for whole in (self.rounded, self.gradients))
        self.model = stack(first.model, [weights[place] for place in order], [gradients[place] for place in order])
        self.optimizer = self._optimizer()

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """An iteration of each training, on its own batch of images (N, C, H, W) and labels (N,)."""
        images, labels = map(torch.stack, zip(*batches, strict=True))
        totals, logits = self._losses(images, labels)
        (totals.sum() / labels.shape[1]).backward()  # no term of the sum depends on the weights of two
        for own, group in zip(self._groups(), self.optimizer.param_groups, strict=True):
            group["lr"] = own["lr"]
        self.optimizer.step()
        if self.rounded is not self.weights:
            self.rounded.copy_(self.weights)
        for training, total, own, answers in zip(self.trainings, totals.detach(), logits.detach(), labels, strict=True):
            training.schedule.step()
            training.sums.add(total, own, answers)
            training.end_step(total)

    def evaluate(self, batches: EvaluationBatches, sums: Sequence[Sums]) -> Iterator[None]:
        """Add each network's loss and error over the split to its `sums`; yields after each batch."""
        for images, labels in batches:
            with torch.inference_mode():
                shape = len(self.trainings), len(labels)
                totals, logits = self._losses(images.expand(shape[0], *images.shape), labels.expand(shape))
                for own, total, answers in zip(sums, totals, logits, strict=True):
                    own.add(total, answers, labels)
            yield

    def _losses(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each network, summed over its images, (K,), and the logits (K, N, classes)."""
        logits = self.model(images).float()
        each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return each.view(labels.shape).sum(1), logits

    def _groups(self) -> Iterator[dict]:
        for training in self.trainings:
            yield from training.optimizer.param_groups

    def _optimizer(self) -> torch.optim.SGD:
        """torch's own update with a group of parameters, one flat tensor, for each group of each training."""
        groups, state = [], {}
        for training, *rows in zip(self.trainings, self.weights, self.gradients, self.momenta, strict=True):
            sizes = [sum(p.numel() for p in group["params"]) for group in training.optimizer.param_groups]
            for group, weights, gradients, momenta in zip(
                training.optimizer.param_groups, *(row.split(sizes) for row in rows), strict=True
            ):
                weights.grad = gradients
                if group["momentum"]:
                    state[weights] = {"momentum_buffer": momenta}
                groups.append({**group, "params": [weights]})
            training.optimizer._opt_called = True  # by what steps in its place: its schedule asks
        optimizer = torch.optim.SGD(groups, fused=True)
        optimizer.state.update(state)
        return optimizer


def fit_together(stack: Stack) -> Iterator[None]:
    """`fit` of all trainings of the stack; yields whenever each of them stands where `fit` would yield it."""
    trainings, first = stack.trainings, stack.trainings[0]
    while first.in_progress:
        epochs = [training.batches.epoch(training.epoch, start=training.batch) for training in trainings]
        for batches in zip(*epochs, strict=True):
            if first.iteration == first.iterations:
                break
            stack.step(batches)
            yield
        evaluated: list[dict[str, Mean]] = [{} for _ in trainings]
        for name, split in first.evaluated.items():
            sums = [Sums(first.device) for _ in trainings]
            for _ in stack.evaluate(split, sums):
                yield
            for means, own in zip(evaluated, sums, strict=True):
                means[name] = own.mean()
        for training, means in zip(trainings, evaluated, strict=True):
            training.end_epoch(means)
        yield
        for training in trainings:
            training.completed = {}


def _parameters(training: Training) -> list[nn.Parameter]:
    """In the order of the optimiser's groups."""
    return [parameter for group in training.optimizer.param_groups for parameter in group["params"]]


def _momentum(training: Training, parameter: nn.Parameter) -> Tensor:
    """Zero before the first step, where torch has none: it comes to the same."""
    momentum = training.optimizer.state.get(parameter, {}).get("momentum_buffer")
    return torch.zeros_like(parameter) if momentum is None else momentum


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _split(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of `whole` (..., n), which lies as `_flat` does, as (..., *shape) of each."""
    parts = whole.split([tensor.numel() for tensor in like], dim=-1)
    return [part.unflatten(-1, tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _move(training: Training, own: Sequence[nn.Parameter], weights: Tensor, gradients: Tensor, momenta: Tensor) -> None:
    """Let a training's parameters, gradients and momenta be views of its rows (parameters,) of the stack."""
    parts = (_split(row, own) for row in (weights, gradients, momenta))
    has_momentum = [bool(group["momentum"]) for group in training.optimizer.param_groups for _ in group["params"]]
    for parameter, weight, gradient, momentum, has in zip(own, *parts, has_momentum, strict=True):
        parameter.data, parameter.grad = weight, gradient
        if has:
            training.optimizer.state[parameter]["momentum_buffer"] = momentum
