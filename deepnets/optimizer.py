"""torch's optimisers for a model; weight decay acts on all parameters or only on weights, because papers do both."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Len
from torch import nn

from deepnets.system.settings import NotNegative, Positive, Rate

Decayed = Literal["all", "weights"]


def parameter_groups(model: nn.Module, weight_decay: float, decayed: Decayed) -> list[dict]:
    """Group the model's parameters by their weight decay.

    With `all`, weight decay acts on every parameter (fb.resnet.torch); with `weights`, on parameters of two or more
    dimensions. These are the weights of convolutions (He et al. 2015, according to fb.resnet.torch's README) and, by
    our choice, those of linear layers and a transformer's position embeddings and class token.
    """
    weights = [parameter for parameter in model.parameters() if decayed == "all" or parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if decayed == "weights" and parameter.ndim <= 1]
    groups = [{"params": weights, "weight_decay": weight_decay}]
    return [*groups, {"params": others, "weight_decay": 0.0}] if others else groups


def sgd(
    model: nn.Module, lr: Positive, momentum: Rate, nesterov: bool, weight_decay: NotNegative, decayed: Decayed
) -> torch.optim.SGD:
    """Build stochastic gradient descent: v = momentum v + g and w = w - lr v, where g includes the weight decay.

    With `nesterov`, w = w - lr (g + momentum v). There is no dampening.
    """
    groups = parameter_groups(model, weight_decay, decayed)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


def scalar_sgd(
    model: nn.Module,
    lr: Positive,
    momentum: Rate,
    nesterov: bool,
    weight_decay: NotNegative,
    scalar_lr_factor: NotNegative,
) -> torch.optim.SGD:
    """`sgd` with weight decay on all parameters; the learning rate of scalars is multiplied by `scalar_lr_factor`.

    Scalars are all parameters of fewer than two dimensions. In Zhang et al. 2019 they learn ten times as slowly.
    """
    (group,) = parameter_groups(model, weight_decay, "all")
    weights = [parameter for parameter in group["params"] if parameter.ndim > 1]
    scalars = [parameter for parameter in group["params"] if parameter.ndim <= 1]
    groups = [{**group, "params": weights}, {**group, "params": scalars, "lr": lr * scalar_lr_factor}]
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


def caffe_sgd(
    model: nn.Module,
    lr: Positive,
    momentum: Rate,
    nesterov: bool,
    weight_decay: NotNegative,
    bias_lr_factor: NotNegative,
    head_decay_factor: NotNegative,
) -> torch.optim.SGD:
    """`sgd` with Caffe's factors on the weight decay of the last linear layer and on the learning rate of biases.

    All other parameters of fewer than two dimensions are treated like biases. Biases have no decay (Srivastava et al.
    2015, their network files).

    Raises:
        ValueError: the model has no linear layer.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("head_decay_factor: this network has no linear layer to apply it to")
    head = linear[-1].weight
    weights, biases = parameter_groups(model, weight_decay, "weights")
    weights["params"] = [weight for weight in weights["params"] if weight is not head]
    groups = [
        weights,
        {"params": [head], "weight_decay": weight_decay * head_decay_factor},
        {**biases, "lr": lr * bias_lr_factor},
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


def adam(
    model: nn.Module,
    lr: Positive,
    betas: Annotated[Sequence[Rate], Len(2, 2)],
    eps: Positive,
    weight_decay: NotNegative,
    decayed: Decayed,
) -> torch.optim.Adam:
    """Adam (Kingma and Ba 2015)."""
    beta1, beta2 = betas
    groups = parameter_groups(model, weight_decay, decayed)
    return torch.optim.Adam(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)


def adamw(
    model: nn.Module,
    lr: Positive,
    betas: Annotated[Sequence[Rate], Len(2, 2)],
    eps: Positive,
    weight_decay: NotNegative,
    decayed: Decayed,
) -> torch.optim.AdamW:
    """Adam with weight decay that is not part of the gradient (Loshchilov and Hutter 2019)."""
    beta1, beta2 = betas
    groups = parameter_groups(model, weight_decay, decayed)
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
