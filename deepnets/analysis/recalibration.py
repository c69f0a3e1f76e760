"""Batch statistics for a network that has not trained, so that evaluation normalises it at all."""

import torch
from torch import Tensor, nn


def recalibrate_batchnorm(model: nn.Module, x: Tensor) -> None:
    """Set the running statistics of every batch normalisation to those of the images x (N, C, H, W), all together.

    Before training they are 0 and 1: a fresh network in evaluation mode is one without normalisation. Expects
    evaluation mode; dropout stays off, and branches that may be dropped count by their probability.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    with torch.no_grad():
        model(x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.eval()
        layer.momentum = momentum
