"""Gradients along the line between two images, on any network (after Balduzzi et al. 2017)."""

import numpy as np
import torch
from torch import Tensor, nn

POINTS_AT_ONCE = 64


def line_gradients(model: nn.Module, start: Tensor, end: Tensor, output: int, points: int) -> np.ndarray:
    """df/dt of f = logit `output` at x = (1 - t) start + t end for t = 0 ... 1, (points,): images are (C, H, W).

    Batch normalisation must use stored statistics: each point's gradient is its own.
    """
    found = []
    for t in torch.linspace(0, 1, points, dtype=start.dtype, device=start.device).split(POINTS_AT_ONCE):
        x = torch.lerp(start, end, t.view(-1, 1, 1, 1)).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model(x)[:, output].sum(), x)
        found.append((gradient * (end - start)).double().flatten(1).sum(1))
    return torch.cat(found).cpu().numpy()
