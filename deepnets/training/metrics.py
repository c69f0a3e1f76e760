"""Sums the loss and the error of a set of images on the device, and reads the sums once."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepnets.distributed.world import ALONE, World


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


def _gathered(right: Tensor, images: int, world: World) -> Tensor:
    """Return `right` of all images, in their order, on the host; each process has it for its part of `World.shards`."""
    if world.size == 1:
        return right.cpu()
    shards = world.shards(images)
    padded = torch.zeros(shards[0].stop, dtype=torch.uint8, device=right.device)
    padded[: len(right)] = right
    parts = zip(world.all_gather(padded), shards, strict=True)
    return torch.cat([part[: shard.stop - shard.start] for part, shard in parts]).bool().cpu()


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
