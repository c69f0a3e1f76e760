"""Trains equal small networks together: most of their time goes into calls, and a stack makes each call only once."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import batch_norm, cross_entropy, linear
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from deepnets.data.batches import EvaluationBatches
from deepnets.models.batchnorm import let_fold
from deepnets.models.network import draws
from deepnets.training.fit import Mean, Sums, Training, autocast

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class Stack:
    """Executes K trainings at once, which are at the same iteration and train networks of one structure.

    They use torch's SGD without clipping, plain cross-entropy, one precision, and the same images in memory, and their
    networks have no `obstacle`. Each has its own order of images, schedule, learning rate, momentum and weight decay.
    The stack moves their weights, gradients and momenta into three tensors (K, parameters), and each buffer into one
    tensor (K, *shape). The tensors of each training become views of these. A training's `state_dict` has the same
    entries as if it trained alone, so stacked and single trainings can resume each other.
    """

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        all_parameters = [_parameters(training) for training in self.trainings]
        self.weights = torch.stack([_flat(parameters) for parameters in all_parameters])
        pairs = zip(self.trainings, all_parameters, strict=True)
        momenta = torch.stack([_flat(_momenta(training, parameters)) for training, parameters in pairs])
        rows = self.weights, torch.zeros_like(self.weights), momenta
        for training, *tensors in zip(self.trainings, *rows, strict=True):
            training.optimizer.zero_grad()
            training.optimizer.step()  # changes nothing without gradients; the schedule warns if no step was taken
            _move(training, *tensors)
        self.optimizer = self._optimizer(*rows)

        self.network, self.precision = self.trainings[0].model, self.trainings[0].precision
        let_fold(self.network, False)  # vmap has rules only for torch's operations
        # One operation rounds all weights for a pass; autocast would need two for each layer.
        self.rounded = self.weights.to(self.precision)
        layers = [module for module in self.network.modules() if isinstance(module, nn.Linear | _ConvNd)]
        of_layers = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
        names = {parameter: name for name, parameter in self.network.named_parameters()}
        first = all_parameters[0]
        exact, rounded, self.gradients = (_split(whole, first) for whole in (self.weights, self.rounded, rows[1]))
        self.parameters = {
            names[parameter]: (rounded_values if parameter in of_layers else values).detach().requires_grad_()
            for parameter, values, rounded_values in zip(first, exact, rounded, strict=True)
        }
        self.buffers = _stacked_buffers([training.model for training in self.trainings])

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Train each network once, on its own batch of images (N, C, H, W) and targets (N,) or (N, classes)."""
        images, targets = map(torch.stack, zip(*batches, strict=True))
        losses, logits = self._losses(images, targets)
        # No term of the sum depends on the weights of two networks.
        gradients = torch.autograd.grad(losses.sum() / targets.shape[1], list(self.parameters.values()))
        for whole, gradient in zip(self.gradients, gradients, strict=True):
            whole.copy_(gradient)
        groups = (group for training in self.trainings for group in training.optimizer.param_groups)
        for scheduled, group in zip(groups, self.optimizer.param_groups, strict=True):
            group["lr"] = scheduled["lr"]
        self.optimizer.step()
        if self.rounded is not self.weights:
            self.rounded.copy_(self.weights)
        for training, *outcome in zip(self.trainings, losses.detach(), logits.detach(), targets, strict=True):
            training.schedule.step()
            training.end_step(*outcome)

    def evaluate(self, batches: EvaluationBatches, sums: Sequence[Sums]) -> Iterator[None]:
        """Add each network's loss and error over the split to its `sums`; yields after each batch."""
        for images, labels in batches:
            with torch.inference_mode():
                k = len(self.trainings)
                losses, logits = self._losses(images.expand(k, *images.shape), labels.expand(k, len(labels)))
                for network_sums, loss, network_logits in zip(sums, losses, logits, strict=True):
                    network_sums.add(loss, network_logits, labels)
            yield

    def _losses(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each network, summed over its images, (K,), and the logits (K, N, classes)."""
        with autocast(images.device, self.precision):
            logits = stacked(self.network, self.parameters, self.buffers, images).float()
        each = cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1), reduction="none")
        return each.view(logits.shape[:2]).sum(1), logits

    def _optimizer(self, *rows: Tensor) -> torch.optim.SGD:
        """Make one optimiser for all trainings; each group of a training becomes a group with one flat tensor."""
        groups, state = [], {}
        for training, *tensors in zip(self.trainings, *rows, strict=True):
            sizes = [sum(p.numel() for p in group["params"]) for group in training.optimizer.param_groups]
            for group, weights, gradients, momenta in zip(
                training.optimizer.param_groups, *(row.split(sizes) for row in tensors), strict=True
            ):
                weights.grad = gradients
                if group["momentum"]:
                    state[weights] = {"momentum_buffer": momenta}
                groups.append({**group, "params": [weights]})
        optimizer = torch.optim.SGD(groups, fused=True)
        optimizer.state.update(state)
        return optimizer


def fit_together(stack: Stack) -> Iterator[None]:
    """Do for all trainings of the stack at once what `fit` does for one; yields where `fit` yields."""
    trainings, first = stack.trainings, stack.trainings[0]
    while first.in_progress:
        for training in trainings:
            training.model.train()
        epochs = [training.batches.epoch(training.epoch, start=training.batch) for training in trainings]
        for batches in zip(*epochs, strict=True):
            if first.iteration == first.iterations:
                break
            stack.step(batches)
            yield
        for training in trainings:
            training.model.eval()
        evaluated: list[dict[str, Mean]] = [{} for _ in trainings]
        for name, split in first.evaluated.items():
            assert isinstance(split, EvaluationBatches)  # trainings on streamed images are not stacked
            sums = [Sums(first.device, by_image=True) for _ in trainings]
            for _ in stack.evaluate(split, sums):
                yield
            for means, each in zip(evaluated, sums, strict=True):
                means[name] = each.mean()
        for training, means in zip(trainings, evaluated, strict=True):
            training.end_epoch(means)
        yield
        for training in trainings:
            training.completed = {}


def stacked(network: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor) -> Tensor:
    """Compute the logits (K, N, classes) of K networks like `network`, each on its own `images` (K, N, C, H, W).

    `parameters` and `buffers` are given by name, each (K, *shape).
    """

    def logits(parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(network, (parameters, buffers), (images,))

    with _Layers():
        return vmap(logits)(parameters, buffers, images)


class _Layers(TorchFunctionMode):
    """Replaces autocast, which does not see linear layers, convolutions and batch normalisation within vmap.

    Linear layers and convolutions compute in the precision of their weights, batch normalisation in float32 at least.
    """

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is linear:
            x, weight, bias = args
            y = x.to(weight.dtype) @ weight.mT  # vmap's own rule multiplies twice more, by 1
            return y if bias is None else y + bias
        if function in CONVOLUTIONS:
            args = args[0].to(args[1].dtype), *args[1:]
        if function is batch_norm:
            x, *others = args
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            return batch_norm(x, *others, **kwargs or {}).to(args[0].dtype)
        return function(*args, **kwargs or {})


def obstacle(network: nn.Module, shape: tuple[int, int, int]) -> str | None:
    """Return why networks like this one, for images of `shape`, cannot be stacked; None if they can be stacked.

    Networks cannot be stacked if their random draws or control flow may differ. The user's own classes are tried on the
    meta device.
    """
    if getattr(network, "survival", None) is not None:
        return "stochastic depth skips different units in each network"
    if any(map(draws, network.modules())):
        return "dropout drops different values in each network"
    own = own_modules(network)
    for module in own:
        for name, value in _attributes(module).items():
            if _holds_tensor(value, set()):  # all networks would use the first one's
                return f"{type(module).__name__}: its tensor {name} is neither a parameter nor a buffer"
        for name, parameter in module.named_parameters(recurse=False):
            if not _is_dense(parameter):
                return f"{type(module).__name__}: its parameter {name} has gaps in memory"
    if unknown := sorted({type(module).__name__ for module in own}):
        parameters, buffers = (
            {
                name: tensor.detach().to("meta").expand(2, *tensor.shape).clone().requires_grad_(tensor.requires_grad)
                for name, tensor in named
            }
            for named in (network.named_parameters(), network.named_buffers())
        )
        try:
            logits = stacked(network, parameters, buffers, torch.empty(2, 2, *shape, device="meta"))
            torch.autograd.grad(logits.sum(), list(parameters.values()))
            if replaced := _replaced_buffer(network, shape):
                return f"a pass replaces the buffer {replaced} instead of writing into it"
        except Exception as error:  # a user's own class may raise anything
            return f"{', '.join(unknown)}: {str(error).partition('. ')[0]}"
    return None


def own_modules(network: nn.Module) -> list[nn.Module]:
    """Return the modules of `network` whose classes are neither torch's nor deepnets'."""
    return [
        module for module in network.modules() if not type(module).__module__.startswith(("torch.nn.", "deepnets."))
    ]


def plain_values(network: nn.Module) -> list[Any]:
    """Return the numbers and texts that the user's own modules hold; a stack takes them from its first network."""
    return [_plain(_attributes(module)) for module in own_modules(network)]


def _attributes(module: nn.Module) -> dict[str, Any]:
    registered = ("_parameters", "_buffers", "_modules")
    return {name: value for name, value in vars(module).items() if name not in registered}


def _plain(value: Any) -> Any:
    """Return the numbers and texts in lists and dicts; of another object, only its type."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, int | float | complex | str) else type(value)


def _holds_tensor(value: Any, seen: set[int]) -> bool:
    """Return whether a value is a tensor or holds one, in a list, a dict or the closure of a function."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, FunctionType):
        value = list(getclosurevars(value).nonlocals.values())
    if isinstance(value, list | tuple | set):
        return any(_holds_tensor(each, seen) for each in value)
    return isinstance(value, Tensor)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the numbers of `tensor` lie side by side in memory, in any order."""
    steps = ((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return sum(steps) + 1 == tensor.numel() or not tensor.numel()


def _replaced_buffer(network: nn.Module, shape: tuple[int, int, int]) -> str | None:
    """Return the name of a buffer that a pass of `network` assigns anew; a stack would lose its new value."""
    trial = deepcopy(network).to("meta")
    before = dict(trial.named_buffers())
    trial(torch.empty(2, *shape, device="meta"))
    after = dict(trial.named_buffers())
    return next((name for name, buffer in before.items() if after.get(name) is not buffer), None)


def _parameters(training: Training) -> list[nn.Parameter]:
    """Return the parameters of a training in the order of the optimiser's groups."""
    return [parameter for group in training.optimizer.param_groups for parameter in group["params"]]


def _momenta(training: Training, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return copies of the momenta; before the first step torch has none, and zeros act the same."""
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    for parameter, momentum in zip(parameters, momenta, strict=True):
        if (buffer := training.optimizer.state.get(parameter, {}).get("momentum_buffer")) is not None:
            momentum.copy_(buffer)
    return momenta


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Join the tensors' values as they lie in memory: a fused update reads weights and momenta side by side."""
    return torch.cat([tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in tensors])


def _split(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split `whole` (..., n), whose rows are in the order of `_flat`, into views (..., *shape) like each tensor."""
    parts = whole.split([tensor.numel() for tensor in like], dim=-1)
    return [
        part.as_strided((*part.shape[:-1], *tensor.shape), (*part.stride()[:-1], *tensor.stride()))
        for part, tensor in zip(parts, like, strict=True)
    ]


def _move(training: Training, weights: Tensor, gradients: Tensor, momenta: Tensor) -> None:
    """Make a training's parameters, gradients and momenta views of its rows (parameters,) of the stack."""
    parameters = _parameters(training)
    parts = (_split(row, parameters) for row in (weights, gradients, momenta))
    has_momentum = [bool(group["momentum"]) for group in training.optimizer.param_groups for _ in group["params"]]
    for parameter, weight, gradient, momentum, has in zip(parameters, *parts, has_momentum, strict=True):
        parameter.data, parameter.grad = weight, gradient
        if has:
            training.optimizer.state[parameter]["momentum_buffer"] = momentum


def _stacked_buffers(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Stack the buffers of all networks by name, (K, *shape); each network's buffers become views of them."""
    all_buffers = [dict(network.named_buffers()) for network in networks]
    whole = {name: torch.stack([buffers[name] for buffers in all_buffers]) for name in all_buffers[0]}
    for name, rows in whole.items():
        for buffers, row in zip(all_buffers, rows, strict=True):
            buffers[name].data = row
    return whole
