"""Loss and error of a set of images, summed on the device and read once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepnets.distributed.world import ALONE, World


class Sums:
    """Running sums of cross-entropy, wrong predictions and images; adding never waits for the device.

    `values` is a float64 tensor (3,).
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: `loss` summed over its images, `logits` (N, classes), `labels` (N,)."""
        wrong = (logits.argmax(1) != labels).sum()
        images = torch.full_like(wrong, len(labels))
        self.values += torch.stack([loss.detach().double(), wrong.double(), images.double()])

    def mean(self, world: World = ALONE) -> "Mean":
        """The means so far, over all processes of `world`, by default over this one's. Waits for the device."""
        loss, wrong, images = world.all_reduce_sum(self.values).tolist()
        return Mean(loss=loss / max(images, 1), error=100 * wrong / max(images, 1))


@dataclass(frozen=True)
class Mean:
    """Mean cross-entropy in nats, and error in percent of the images."""

    loss: float
    error: float
